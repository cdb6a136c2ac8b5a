"""The serving policy: every setting that decides whether a cache entry hits.

A bundle is baked, verified and served under one policy, which the manifest stores.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from flytune.caches.codes import Code
from flytune.caches.hook.flytune_torch import PRECOMPILE, mends_for, set_default
from flytune.shapes.errors import FlytuneError

PolicyName = Literal["unfrozen", "frozen"]
CUDA_POLICY = "max-autotune-no-cudagraphs"
"""torch.compile's mode of that name."""

_BACKENDS = "max_autotune_gemm_backends"
_FLYDSL_LISTS = "flydsl_enable_autotuning"
# The compiler's name, which torch takes from $CXX, is in the key of every graph; those
# for an accelerator hold nothing that it compiled.
ANY_COMPILER = (None, "g++", "c++", "clang++")
# Dynamo's default limit is 8 static sizes of one function, then it falls back to
# eager; a policy leaves room for the sizes that it names and a few more.
DYNAMO_RECOMPILE_LIMIT = 8
DYNAMO_ACCUMULATED_LIMIT = 256


@dataclass(frozen=True, slots=True)
class ServingPolicy:
    """Settings that serving, baking and verifying share."""

    name: str
    tokens: tuple[int, ...]
    """Static token counts that are served, each at least 1; none of a command."""
    threads: int
    """OpenMP threads: they shape the C++ kernels' source."""
    attention: str
    """How the program computes attention: "eager" holds two bmm, "sdpa" none."""
    device: str = "cpu"
    """torch's type of the device: "cpu" or "cuda"."""
    dynamic: bool = False
    """Whether serving compiles one graph for all sizes, but that for one token."""
    inductor: Mapping[str, Any] = field(default_factory=dict)
    """`torch._inductor.config` values, by dotted name."""
    dynamo: Mapping[str, Any] = field(default_factory=dict)
    """`torch._dynamo.config` values, by dotted name."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that serving must have."""
    portable_keys: bool = False
    """Whether graphs have one key in every program, which torch's own lack: see
    `flytune_torch.name_formats`. Bundles of before have torch's."""

    @property
    def frozen(self) -> bool:
        """Whether graphs hold their weights, which torch then refuses to cache."""
        return bool(self.inductor.get("freezing"))

    @property
    def precompiled(self) -> bool:
        """Whether Dynamo's own entries are stored and looked for."""
        return bool(self.dynamo.get(PRECOMPILE))

    def for_command(self) -> "ServingPolicy":
        """Return this policy for a program that decides on its sizes by itself."""
        return replace(self, tokens=(), dynamic=True, dynamo={})

    def with_precompiled(self) -> "ServingPolicy":
        """Return this policy with Dynamo's own entries.

        Raises:
            FlytuneError: torch stores none of what the policy makes.
        """
        if self.frozen:
            raise FlytuneError(
                "torch stores no frozen graph, so that nothing can be precompiled",
                hint="leave out --precompiled, or build under the unfrozen policy",
            )
        # A size in each of the ways that torch tells apart has an entry of its own.
        limits = _limits(max(4 * len(self.tokens), self.dynamo["recompile_limit"]))
        return replace(self, dynamo={**self.dynamo, **limits, PRECOMPILE: True})

    def with_dynamic(self) -> "ServingPolicy":
        """Return this policy with one general graph instead of static ones."""
        dynamo = {
            **self.dynamo,
            # The module-wide form of torch.compile(dynamic=True).
            "automatic_dynamic_shapes": True,
            "assume_static_by_default": False,
            # Else Dynamo traces again where a kernel takes no symbol, such as a scale.
            "specialize_float": True,
        }
        return replace(self, dynamic=True, dynamo=dynamo)

    def with_layers_apart(self, layers: int) -> "ServingPolicy":
        """Return this policy with room for a Dynamo entry of each layer at each size.

        Dynamo tells layers apart that are of several kinds, and all that write to a
        cache: each has its own number there.
        """
        limits = _limits(2 * len(self.tokens) * layers)
        return replace(self, dynamo={**self.dynamo, **limits})

    def without_flydsl(self) -> "ServingPolicy | None":
        """Return this policy for a host that lacks FlyDSL; None where it asks for none.

        FlyDSL's variables stay: where it is absent nobody reads them.
        """
        without = inductor_without_flydsl(self.inductor)
        return None if without is None else replace(self, inductor=without)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's form."""
        return {**asdict(self), "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "ServingPolicy":
        """Read the manifest's form.

        Raises:
            FlytuneError: a field is missing, unknown or of the wrong type.
        """
        try:
            policy = cls(**{**row, "tokens": tuple(row["tokens"])})
        except (KeyError, TypeError) as error:
            raise _malformed(str(error)) from error
        for name in ("inductor", "dynamo", "env"):
            if not isinstance(getattr(policy, name), Mapping):
                raise _malformed(f"`{name}`")
        if not all(isinstance(value, str) for value in policy.env.values()):
            raise _malformed("`env`")
        # A command's sizes are its own.
        unsaid = not policy.tokens and not policy.dynamic
        if unsaid or not all(isinstance(t, int) for t in policy.tokens):
            raise FlytuneError(
                f"serving policy has no token counts: {policy.tokens}",
                code=Code.POLICY,
            )
        return policy

    def apply(self) -> None:
        """Set torch's configuration in this process, all threads, to the policy's.

        Environment variables are not touched: they must be set before torch is
        imported.

        Raises:
            FlytuneError: this torch has no setting of that name.
        """
        import torch._dynamo.config
        import torch._inductor.config

        for config, values in (
            (torch._inductor.config, self.inductor),
            (torch._dynamo.config, self.dynamo),
        ):
            for name, value in values.items():
                try:
                    set_default(config, name, value)
                except (AttributeError, LookupError) as error:
                    raise FlytuneError(str(error.args[0])) from error
        for name, mend in mends_for(self.to_json()).items():
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                mend(importlib.import_module(name))


def cpu_policy(
    name: str,
    *,
    tokens: tuple[int, ...],
    threads: int,
    attention: str,
    layers: int = 1,
) -> ServingPolicy:
    """Return one of the two policies that CPU serving has.

    `unfrozen`: graphs hit, so that nothing is lowered at the first call; a linear
    offers one candidate, a bmm two. `frozen`: weights are packed ahead, and each
    linear offers ATen and C++; torch refuses to cache such graphs and lowers them
    again in each process.

    Args:
        layers: Of the model. Frozen, Dynamo tells each layer's weights apart, and every
            layer is an entry of its own under the limits.

    Raises:
        FlytuneError: there is no policy of that name.
    """
    if name not in get_args(PolicyName):
        known = ", ".join(get_args(PolicyName))
        raise FlytuneError(f"unknown policy: `{name}`", hint=f"known are {known}")
    frozen = name == "frozen"
    return ServingPolicy(
        name=name,
        tokens=tokens,
        threads=threads,
        attention=attention,
        inductor={
            "max_autotune": True,
            _BACKENDS: "ATEN,CPP",
            "freezing": frozen,
        },
        dynamo=_static_sizes(2 * len(tokens) * (layers if frozen else 1)),
        # No variable that torch reads as a setting: what is set in the configuration
        # can be set back when the bundle does not fit, a default read at import cannot.
        env={"OMP_NUM_THREADS": str(threads)},
        portable_keys=True,
    )


def cuda_policy(
    *,
    tokens: tuple[int, ...],
    threads: int,
    attention: str,
    backends: tuple[str, ...] = ("ATEN", "TRITON"),
) -> ServingPolicy:
    """Return the policy that serves as `torch.compile(mode=CUDA_POLICY)` does.

    Args:
        backends: Of `max_autotune_gemm_backends`, upper case.
    """
    return ServingPolicy(
        name=CUDA_POLICY,
        tokens=tokens,
        threads=threads,
        attention=attention,
        device="cuda",
        inductor={
            "max_autotune": True,
            _BACKENDS: ",".join(backends),
            "coordinate_descent_tuning": True,
            "cpp.cxx": list(ANY_COMPILER),
        },
        dynamo=_static_sizes(2 * len(tokens)),
        env={"OMP_NUM_THREADS": str(threads)},
        portable_keys=True,
    )


def _malformed(what: str) -> FlytuneError:
    return FlytuneError(f"serving policy is malformed: {what}", code=Code.POLICY)


def _static_sizes(entries: int) -> dict[str, Any]:
    """Return Dynamo's settings for so many static sizes of one function."""
    return {
        # The module-wide form of torch.compile(dynamic=False).
        "automatic_dynamic_shapes": False,
        "assume_static_by_default": True,
        **_limits(entries),
    }


def _limits(entries: int) -> dict[str, Any]:
    """Return Dynamo's limits that leave room for so many entries of one function."""
    return {
        "recompile_limit": max(DYNAMO_RECOMPILE_LIMIT, entries),
        "accumulated_recompile_limit": max(DYNAMO_ACCUMULATED_LIMIT, 2 * entries),
    }


def rocm_policy(
    *,
    tokens: tuple[int, ...],
    threads: int,
    attention: str,
    arch: str,
    backends: tuple[str, ...] = ("ATEN", "TRITON", "FLYDSL"),
) -> ServingPolicy:
    """Return the policy of `cuda_policy` for an AMD GPU, FlyDSL's lists at full length.

    Args:
        arch: Of the GPU, such as "gfx950". FlyDSL takes another one where nothing says
            which, and lists less.
        backends: Of `max_autotune_gemm_backends`, upper case.
    """
    policy = cuda_policy(
        tokens=tokens, threads=threads, attention=attention, backends=backends
    )
    if "FLYDSL" not in backends:
        return policy
    inductor = {**policy.inductor, _FLYDSL_LISTS: True}
    return replace(
        policy, inductor=inductor, env={**policy.env, "FLYDSL_GPU_ARCH": arch}
    )


def uses_flydsl(policy: ServingPolicy) -> bool:
    """Whether Inductor may choose kernels of FlyDSL's under a policy."""
    return policy.without_flydsl() is not None


def inductor_without_flydsl(inductor: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a policy's settings of Inductor without FlyDSL; None if they lack it."""
    backends = str(inductor.get(_BACKENDS, "")).split(",")
    others = [name for name in backends if name.upper() != "FLYDSL"]
    if others == backends:
        return None
    return {**inductor, _BACKENDS: ",".join(others), _FLYDSL_LISTS: False}

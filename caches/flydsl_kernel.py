"""FlyDSL's own directory, and which entry of it a kernel of Inductor's is kept in.

FlyDSL keeps a compiled kernel in `<function>_<key of sources>/<key of call>.pkl` below
its directory, Inductor's default for which is `flydsl_compile_cache`. The keys hold the
toolchain, the kernel's sources, the architecture and the parameters, and neither the
directory nor the shape (`JitFunction` in flydsl/compiler/jit_function.py). Entries are
pickles: reading one runs code, so a bundle's digests are checked first.
"""

import functools
import inspect
import os
import pickle
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from flytune.caches.code_object import arch_of, code_objects
from flytune.caches.compat import private, wrap
from flytune.caches.directories import variables
from flytune.caches.host import ABSENT, installed
from flytune.shapes.errors import FlytuneError

JIT = "flydsl.compiler.jit_function"
# They would change the architecture that FlyDSL compiles for, or turn compiling off.
FOREIGN = ("ARCH", "HSA_OVERRIDE_GFX_VERSION", "COMPILE_ONLY")
BLIND = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
"""What a process must have to see no device of either vendor."""


class Tensor(NamedTuple):
    """What a kernel is called on; sizes in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    """Such as "bfloat16"."""


@dataclass(frozen=True, slots=True)
class FlyDSLKernel:
    """A module that Inductor rendered from its FlyDSL template, and its tensors."""

    name: str
    """Who asks for it, as a failure names it."""
    function: str
    """What the names of the module's functions begin with."""
    source: str
    tensors: tuple[Tensor, ...]
    """In the order of the module's arguments, the output last."""

    @classmethod
    def of_request(cls, name: str, request: bytes) -> Self:
        """Read Inductor's pickled `FlyDSLBenchmarkRequest`.

        Raises:
            Exception: it is none.
        """
        asked = pickle.loads(request)
        inputs, output = asked.input_tensor_meta, asked.output_tensor_meta
        return cls(
            name=name,
            function=str(asked.kernel_name),
            source=str(asked.source_code),
            tensors=tuple(
                Tensor(
                    tuple(map(int, meta.sizes)),
                    tuple(map(int, meta.strides)),
                    str(meta.dtype).removeprefix("torch."),
                )
                for meta in (*_several(inputs), *_several(output))
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return a form for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read the form of `to_json`."""
        tensors = tuple(
            Tensor(tuple(sizes), tuple(strides), dtype)
            for sizes, strides, dtype in row["tensors"]
        )
        return cls(row["name"], row["function"], row["source"], tensors)

    def precompile(self) -> tuple[Path, ...]:
        """Compile it, or find it, by its module's own function; return its entry.

        The module makes the kernel's parameters itself; nothing of them is made here.
        The process must be one that launches nothing (`set_environment`).

        Raises:
            FlytuneError: FlyDSL changed an interface.
            Exception: whatever FlyDSL or the module raises.
        """
        # Without a file, so that no path of this host is in what is compiled.
        module = types.ModuleType("flytune_flydsl")
        exec(compile(self.source, "<flydsl>", "exec"), module.__dict__)
        main = getattr(module, f"{self.function}_main")
        names = [
            name.removeprefix("arg_")
            for name in inspect.signature(main).parameters
            if name.startswith("arg_")
        ]
        tensors = dict(zip((*names, "output"), self.tensors, strict=True))
        make = getattr(module, f"{self.function}_precompile")
        return entries_of(
            lambda: make(
                {name: list(tensor.sizes) for name, tensor in tensors.items()},
                {name: list(tensor.strides) for name, tensor in tensors.items()},
                {name: tensor.dtype for name, tensor in tensors.items()},
                flydsl_gpu_arch=os.environ["FLYDSL_GPU_ARCH"],
            )
        )


def _several(meta: Any) -> Sequence[Any]:
    return meta if isinstance(meta, list | tuple) else (meta,)


def require_flydsl() -> None:
    """Refuse to go on without FlyDSL.

    Raises:
        FlytuneError: it is not installed.
    """
    if installed("flydsl") == ABSENT:
        raise FlytuneError(
            "FlyDSL is not installed", hint="install it with `pip install flytune[amd]`"
        )


def set_environment(cache_dir: Path, arch: str, **more: str) -> None:
    """Make this process one that compiles FlyDSL's kernels and launches none.

    To be called before FlyDSL is first used: it reads its directory and architecture
    once a function.

    Args:
        cache_dir: What `TORCHINDUCTOR_CACHE_DIR` names, or will name.
    """
    for name in list(os.environ):
        if name.startswith("FLYDSL_") or name in FOREIGN:
            del os.environ[name]
    os.environ.update(_environment(cache_dir, arch), **more)


def _environment(cache_dir: Path, arch: str) -> dict[str, str]:
    return {
        "FLYDSL_GPU_ARCH": arch,
        **variables(cache_dir),
        # Inductor's modules refuse to have one without the other.
        "COMPILE_ONLY": "1",
        "FLYDSL_COMPILE_ONLY": "1",
    }


def entries_of(call: Callable[[], object]) -> tuple[Path, ...]:
    """Run what compiles kernels of FlyDSL, and return the entries that it looked for.

    Whether they are there by then is the caller's to see: FlyDSL only logs it when it
    cannot write one.

    Raises:
        FlytuneError: FlyDSL changed an interface.
        Exception: whatever `call` raises.
    """
    looked_for = lookups()
    looked_for.clear()
    call()
    return tuple(dict.fromkeys(looked_for))


@functools.cache
def lookups() -> list[Path]:
    """Return the entries that FlyDSL has looked for; the list grows as it does.

    From the first call on FlyDSL finds what is on disk, and nothing in memory.

    Raises:
        FlytuneError: FlyDSL is not installed, or changed an interface.
    """
    require_flydsl()
    private(JIT, "JitCacheManager._cache_file")
    looked_for: list[Path] = []

    def forgetting(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(jit: Any, *args: Any, **kwargs: Any) -> Any:
            # A process of many kernels would keep each of them, besides.
            _clear(jit, "JitFunction", "_mem_cache")
            return call(jit, *args, **kwargs)

        return wrapped

    def noting(get: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(manager: Any, key: str) -> Any:
            _clear(manager, "JitCacheManager", "memory_cache")
            looked_for.append(manager._cache_file(key))
            return get(manager, key)

        return wrapped

    wrap(JIT, "JitFunction.__call__", forgetting)
    wrap(JIT, "JitCacheManager.get", noting)
    return looked_for


def _clear(owner: Any, kind: str, name: str) -> None:
    memory = getattr(owner, name, None)
    if memory is None:
        # Raises, in the words for an interface that is gone.
        private(JIT, f"{kind}.{name}")
    else:
        memory.clear()


def objects_of(entry: bytes, arch: str) -> tuple[bytes, ...]:
    """Return the code objects of an entry, after a look at what they are for.

    Raises:
        ValueError: it is no entry of FlyDSL's, or for another architecture.
    """
    artifact = private("flydsl.compiler.jit_executor", "CompiledArtifact")[2]
    try:
        stored = pickle.loads(entry)
    except Exception as error:  # a torn pickle may raise anything
        raise ValueError("unreadable") from error
    if not isinstance(stored, artifact):
        raise ValueError("no entry of FlyDSL's")
    found = code_objects(stored.ir)
    for one in found:
        if arch_of(one) != arch:
            raise ValueError(f"for {arch_of(one) or 'no device'}, not {arch}")
    return found

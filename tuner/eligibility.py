"""Whether FlyDSL can be asked at all, and why Inductor does not offer it for a list.

Both are told in Inductor's own words: its rules are run, and none is written here.

`python -m flytune.tuner.eligibility REQUEST RESULT` asks the first in a process of its
own: importing FlyDSL may fail in any way, and Inductor remembers the vendor that it was
imported for.
"""

import importlib
import importlib.metadata
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from flytune.caches.child import die_with_parent, plain_environment, run_module
from flytune.caches.compat import private, release, torch_version, wrap
from flytune.caches.device_profile import DeviceProfile, find_profile
from flytune.caches.stand_in import stand_in, take_build
from flytune.shapes.errors import FlytuneError
from flytune.tuner.gates import Gate

_UTILS = "torch._inductor.utils"
_MM = "torch._inductor.kernel.mm"
_GROUPED = "torch._inductor.kernel.mm_grouped"
_FLYDSL = "torch._inductor.codegen.flydsl"
_HEURISTICS = "torch._inductor.heuristics.template.flydsl"
_VENDORED = "torch._inductor.kernel.vendored_templates.flydsl.kernels.gemm_gfx950"
# What the lowerings ask, by the name that they ask it by.
_ASKED = (
    (_MM, "get_flydsl_mm_template_kwargs"),
    (_MM, "_get_rocm_mxfp_v2_format"),
    (_MM, "get_flydsl_mxfp_template_kwargs"),
    (_GROUPED, "use_flydsl_grouped_mm_template"),
    (_GROUPED, "get_flydsl_grouped_mm_template_kwargs"),
)
# What these ask in turn, of the whole list and of each configuration.
_OF_LIST = (*_ASKED, (_UTILS, "use_flydsl_gemm_template"))
_OF_CONFIG = (
    (_VENDORED, "make_gemm_param_and_validate"),
    (_VENDORED, "make_gemm_gfx950_param"),
    (_HEURISTICS, "is_grouped_gemm_config_valid_for_shape"),
)
NOT_ASKED = "its lowering asks for no FlyDSL template"
"""Of a list whose op, or whose way to it, Inductor has no FlyDSL kernel for."""
FIRST_TORCH = (2, 15)
# Whose properties stand for those of any of the vendor's devices.
_ANY_OF_AMD = "mi355x"
MODULE = "flytune.tuner.eligibility"


class Watch:
    """Keeps why the rules declined, for each node that is lowered.

    What declines is asked once more under a tracer; what is offered costs nothing.
    """

    def __init__(self, current: Callable[[], Any]) -> None:
        """Watch nothing yet.

        Args:
            current: Returns the node that is being lowered.
        """
        self._current = current
        self._node: Any = None
        self.said = ""
        """Why a rule declined last, whatever was lowered."""
        self._gates: dict[CodeType, tuple[Gate, bool]] = {}
        self._tracing = False
        self._of_list: list[str] = []
        self._of_configs: Counter[str] = Counter()
        self._error = ""

    def arm(self) -> None:
        """Watch every rule from now on.

        Raises:
            FlytuneError: this torch lacks one of them.
        """
        for module, name in _OF_LIST:
            gate = Gate(private(module, name)[2])
            self._gates[gate.code] = (gate, False)
        for module, name in _ASKED:
            wrap(module, name, self._asked)
        template = f"{_FLYDSL}.flydsl_template"
        wrap(template, "FlyDSLTemplate.maybe_append_choice", self._appended)

    def reason(self) -> str:
        """Return why the node that is being lowered has no candidate of FlyDSL."""
        same = self._node is not None and self._node is self._current()
        return self.said if same else NOT_ASKED

    def _asked(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            if not result and not self._tracing:
                self._keep(self.explain(inner, *args, **kwargs))
            return result

        return ask

    def _appended(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def append(*args: Any, **kwargs: Any) -> Any:
            error = inner(*args, **kwargs)
            if error is not None:
                self._keep(f"maybe_append_choice: {error}")
            return error

        return append

    def _keep(self, reason: str) -> None:
        self._node, self.said = self._current(), reason

    def explain(self, rule: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
        """Ask a rule that declines once more; return what in it decided."""
        self._learn_configs()
        self._of_list, self._of_configs, self._error = [], Counter(), ""
        before = sys.gettrace()
        self._tracing = True
        sys.settrace(self._enter)
        try:
            rule(*args, **kwargs)
        finally:
            sys.settrace(before)
            self._tracing = False
        if self._of_list:
            return self._of_list[0]  # the innermost decided
        for said, _ in self._of_configs.most_common(1):
            return f"no configuration fits: {said}"
        return f"{rule.__name__}: no configuration"

    def _learn_configs(self) -> None:
        """Know the rules of configurations, once FlyDSL is imported with them."""
        for module, name in _OF_CONFIG:
            if module in sys.modules:
                gate = Gate(private(module, name)[2])
                self._gates.setdefault(gate.code, (gate, True))

    def _enter(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        known = self._gates.get(frame.f_code)
        if known is None:
            return None
        frame.f_trace_lines = False
        gate, of_config = known

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "exception" and of_config:
                self._error = f"{gate.name}: {arg[1]}"
            elif event == "return":
                self._left(gate, of_config, frame, arg)
            return local

        return local

    def _left(self, gate: Gate, of_config: bool, frame: FrameType, result: Any) -> None:
        if result:
            self._error = ""
            return
        said = gate.words(frame) or self._error
        self._error = ""
        if said and of_config:
            self._of_configs[said] += 1
        elif said:
            self._of_list.append(said)


def keep_defaults() -> None:
    """List the default search's configurations in a wider one too, from now on.

    Inductor's exhaustive ones of the grouped and microscaling kernels lack some. Where
    serving misses it lists by default, and one that nobody has timed would make it
    time the whole list.

    Raises:
        FlytuneError: this torch has no such interface.
    """
    config: Any = importlib.import_module("torch._inductor.config")

    def widened(inner: Callable[..., Any]) -> Callable[..., Any]:
        def configs(*args: Any, **kwargs: Any) -> list[Any]:
            wide = list(inner(*args, **kwargs))
            with config.patch(max_autotune_gemm_search_space="DEFAULT"):
                narrow = inner(*args, **kwargs)
            return wide + [one for one in narrow if one not in wide]

        return configs

    for name in ("get_gemm_configs", "get_grouped_gemm_configs"):
        wrap(_HEURISTICS, name, widened)


def require_flydsl(arch: str) -> str:
    """Return the version of FlyDSL, if Inductor takes it and it knows the device.

    Args:
        arch: Of the device, such as "gfx950".

    Raises:
        FlytuneError: FlyDSL is absent, refused by Inductor or broken, this torch has
            no templates of it, or there are none for the architecture.
    """
    if release(torch_version()) < FIRST_TORCH:
        first = ".".join(map(str, FIRST_TORCH))
        raise FlytuneError(
            f"torch {torch_version()} has no FlyDSL templates",
            hint=f"install torch {first}, or leave FLYDSL out of --backends",
        )
    with tempfile.TemporaryDirectory(prefix="flytune-flydsl-") as directory:
        result = Path(directory) / "found.json"
        env = plain_environment() | {"FLYDSL_GPU_ARCH": arch}
        run_module(MODULE, {"arch": arch}, result, env, what="asking for FlyDSL")
        found = json.loads(result.read_text())
    if found["reason"]:
        raise FlytuneError(
            f"no FlyDSL for {arch}: {found['reason']}",
            hint="pip install 'flytune[amd]', or leave FLYDSL out of --backends",
        )
    return str(found["version"])


def _unavailable(arch: str) -> str:
    """Return why there is no FlyDSL for a device, or nothing.

    Raises:
        FlytuneError: this torch or Triton lacks an interface that this needs.
    """
    any_of_amd = find_profile(_ANY_OF_AMD)
    properties = {**any_of_amd.properties, "gcnArchName": arch}
    profile = replace(any_of_amd, arch=arch, properties=properties)
    take_build(profile)
    why = private(f"{_FLYDSL}.flydsl_utils", "_flydsl_runtime_unavailable_reason")[2]()
    if why is not None:
        return str(why)
    try:
        importlib.import_module("flydsl.compiler")
        importlib.import_module(_VENDORED)
    except Exception as error:  # an import may fail in any way
        first = (str(error).splitlines() or ["no message"])[0]
        return f"flydsl cannot be imported: {type(error).__name__}: {first}"
    return _refused(profile) or _without_configs(arch)


def _refused(profile: DeviceProfile) -> str:
    """Return why Inductor's rule of all templates says no to a device."""
    import torch
    import torch._inductor.config

    stand_in(profile)
    rule = private(_UTILS, "use_flydsl_gemm_template")[2]
    layout = private("torch._inductor.ir", "FixedLayout")[2](
        torch.device("cuda", 0), torch.bfloat16, [256, 256]
    )
    watch = Watch(lambda: None)
    watch.arm()
    with torch._inductor.config.patch(
        max_autotune=True, max_autotune_gemm_backends="FLYDSL"
    ):
        return "" if rule(layout) else watch.explain(rule, layout)


def _without_configs(arch: str) -> str:
    # FlyDSL's own table of architectures decides which are valid.
    configs = private(_HEURISTICS, "get_gemm_configs")[2](256, 256, 256)
    return "" if configs else f"flydsl has no valid configuration for {arch}"


def main() -> None:
    """Write what the request asks for."""
    die_with_parent()
    request_path, result_path = map(Path, sys.argv[1:3])
    request = json.loads(request_path.read_text())
    reason = _unavailable(request["arch"])
    version = None if reason else importlib.metadata.version("flydsl")
    result_path.write_text(json.dumps({"reason": reason, "version": version}))


if __name__ == "__main__":
    main()

"""List the candidates of a program, in a process and a cache directory to throw away.

`python -m flytune.tuner.probe REQUEST RESULT`. Inductor lowers the very program that
will be baked; each list that it would choose from is written down and nothing is
timed. The graph is abandoned once it is lowered: its code is not needed, and a graph
stored under a probe would be served to others (a probe is in no key).
"""

import functools
import importlib.util
import json
import logging
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flytune.caches.child import die_with_parent
from flytune.caches.compat import benchmark_key, precision_key, private, require_torch
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.inductor import (
    forget_graphs,
    system_info,
    torch_key,
    triton_key,
    widen_search,
)
from flytune.caches.ledger_hooks import SELECT
from flytune.caches.policy import ServingPolicy
from flytune.caches.program import Piece, ProgramSpec, build_program
from flytune.caches.stand_in import fake_tensors, stand_in
from flytune.tuner.candidate import (
    ATEN,
    CPP,
    TRITON,
    Candidate,
    CandidateList,
    Enumeration,
    Packing,
    TensorSpec,
)
from flytune.tuner.subgraph import DECOMPOSE_K, is_decompose_k, is_subgraph, source_of

logger = logging.getLogger(__name__)


class Lowered(Exception):
    """The graph is lowered: everything that the probe wants has been seen."""


class Probe:
    """Collects the lists that pass through Inductor's selection in this process."""

    def __init__(self) -> None:
        self.lists: list[CandidateList] = []
        self.piece, self.tokens = "", 0
        self._describing = False

    def arm(self) -> None:
        """Watch selection, keep one candidate of each list, stop after lowering.

        Raises:
            FlytuneError: this torch lacks an interface that the probe needs.
        """
        cache, attribute, select = private(SELECT, "AlgorithmSelectorCache.__call__")

        def call(
            selector: Any,
            name: str,
            choices: list[Any],
            input_nodes: Sequence[Any],
            layout: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            for filter_choices in selector.preprocessing_fns:
                choices = filter_choices(choices)
            # A candidate that is a graph is lowered to be described.
            if not self._describing:
                self._describing = True
                self.lists.append(self._describe(name, choices, input_nodes, layout))
                self._describing = False
            library = [c for c in choices if _backend(c) == ATEN]
            kept = (library or choices)[:1]
            return select(selector, name, kept, input_nodes, layout, *args, **kwargs)

        setattr(cache, attribute, call)
        graph, attribute, _ = private(
            "torch._inductor.graph", "GraphLowering.compile_to_module"
        )
        setattr(graph, attribute, _stop)

    def run(self, pieces: Iterable[Piece], policy: ServingPolicy, seed: int) -> None:
        """Lower every piece at every size of the policy."""
        import torch

        for piece in pieces:
            for tokens in sorted(policy.tokens, reverse=True):
                self.piece, self.tokens = piece.name, tokens
                args, kwargs = piece.inputs(tokens, seed)
                torch._dynamo.reset()
                compiled = torch.compile(piece.module, dynamic=policy.dynamic)
                _until_lowered(functools.partial(compiled, *args, **kwargs))
                del args, kwargs, compiled
            del piece
            forget_graphs()

    def _describe(
        self, op: str, choices: Sequence[Any], input_nodes: Sequence[Any], layout: Any
    ) -> CandidateList:
        inputs_key = private(SELECT, "create_inputs_key")[2](input_nodes)
        return CandidateList(
            op=op,
            inputs_key=benchmark_key(inputs_key, layout.device.type),
            precision=precision_key(),
            inputs=tuple(_spec(node.get_layout()) for node in input_nodes),
            output=_spec(layout),
            candidates=tuple(_candidate(choice) for choice in choices),
            piece=self.piece,
            tokens=self.tokens,
            module=_current_module(),
        )


def _stop(*_: Any, **__: Any) -> None:
    raise Lowered


def _until_lowered(call: Callable[[], Any]) -> None:
    """Run until the graph is lowered; Dynamo wraps what its backend raises."""
    try:
        call()
    except Exception as error:  # raised again, unless it is ours inside another
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, Lowered):
            cause = getattr(cause, "inner_exception", None) or cause.__cause__
        if cause is None:
            raise


def _backend(choice: Any) -> str:
    """Return the backend's name, as in `max_autotune_gemm_backends` but lower case."""
    extern = private(SELECT, "ExternKernelCaller")[2]
    if isinstance(choice, extern):
        return ATEN
    if is_decompose_k(choice):
        return DECOMPOSE_K
    info = choice.info_dict()
    return str(info.get("backend", type(choice).__name__)).lower()


def _candidate(choice: Any) -> Candidate:
    backend = _backend(choice)
    source, packing = "", None
    # A choice is numbered in the order of the process: "triton_mm_7".
    numbered = re.sub(r"_\d+$", "", choice.name)
    if backend == ATEN:
        template = str(choice.name)
        config = {name: repr(value) for name, value in choice.kwargs.items()}
    elif is_subgraph(choice):
        template, config = numbered, {"description": str(choice.description)}
    else:
        template = str(getattr(choice, "category", "") or numbered)
        config = {k: repr(v) for k, v in choice.info_dict().items() if k != "backend"}
    if backend == CPP:
        packing = _packing(choice)
    elif backend == TRITON:
        source = Path(choice.bmreq.module_path).read_text()
    elif backend == DECOMPOSE_K:
        source = _lowered(choice)
    if packing is not None:
        config["register_blocking"] = repr(packing.register_blocking)
        config["blocked"] = repr(packing.blocked)
    return Candidate(
        backend=backend,
        template=template,
        config=json.dumps(config, sort_keys=True),
        choice_hash=choice.hash_key(),
        # A graph's request, where it has one, is of a module of this process.
        request=pickle.dumps(
            None if is_subgraph(choice) else getattr(choice, "bmreq", None)
        ),
        packing=packing,
        source=source,
    )


def _lowered(choice: Any) -> str:
    """Return a graph's module, or nothing: the candidate is then not built."""
    try:
        return source_of(choice)
    except Exception:  # lowering may fail in any way: the others are listed
        logger.warning("not lowered: %s", choice.name, exc_info=True)
        return ""


def _packing(choice: Any) -> Packing:
    """Read from a C++ caller what its template does to the second operand."""
    template = choice.template
    row, column, depth = (int(size) for size in template.register_blocking)
    return Packing(
        template=type(template).__name__,
        micro_gemm=str(choice.category),
        blocked=bool(template.should_block_weights),
        register_blocking=(row, column, depth),
    )


def _spec(layout: Any) -> TensorSpec:
    return TensorSpec(
        sizes=tuple(int(size) for size in layout.size),
        strides=tuple(int(stride) for stride in layout.stride),
        dtype=str(layout.dtype).removeprefix("torch."),
        offset=int(layout.offset),
    )


def _current_module() -> str:
    """Return the path, within the piece, of the module that is being lowered.

    Empty where a fusion has made the node: it belongs to no module any more.
    """
    graph = private("torch._inductor.virtualized", "V")[2].graph
    node = getattr(graph, "current_node", None)
    stack = (node.meta if node is not None else {}).get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()]
    # Dynamo spells the root "L['self']" or "L['fn']".
    return paths[-1].partition("]")[2].lstrip(".") if paths else ""


def main() -> None:
    """Run the request named on the command line and write its lists, pickled."""
    die_with_parent()
    request_path, result_path = map(Path, sys.argv[1:3])
    require_torch()
    request = json.loads(request_path.read_text())
    policy = ServingPolicy.from_json(request["policy"])
    policy.apply()
    widen_search(request["search"])
    absent = request.get("profile")
    if absent is not None:
        stand_in(DeviceProfile.from_json(absent))
    probe = Probe()
    probe.arm()
    import torch

    spec = ProgramSpec.from_json(request["program"])
    with torch.no_grad(), nullcontext() if absent is None else fake_tensors():
        probe.run(build_program(spec, seed=0, device=policy.device), policy, seed=0)
    part = result_path.with_suffix(".part")
    found = Enumeration(
        tuple(probe.lists),
        torch_key(),
        triton_key() if importlib.util.find_spec("triton") else None,
        system_info(),
    )
    part.write_bytes(pickle.dumps(found))
    part.replace(result_path)


if __name__ == "__main__":
    main()

"""What Inductor's choices, layouts and nodes say, as data that outlives the process."""

import json
import logging
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flytune.caches.compat import private
from flytune.caches.ledger_hooks import SELECT
from flytune.tuner.candidate import (
    ATEN,
    CPP,
    FLYDSL,
    TRITON,
    Candidate,
    Packing,
    TensorSpec,
)
from flytune.tuner.flydsl_keys import build_key
from flytune.tuner.subgraph import DECOMPOSE_K, is_decompose_k, is_subgraph, source_of

logger = logging.getLogger(__name__)

# A parameter of a FlyDSL template: its choice tells none, its source one a line.
_CONSTANT = re.compile(r"(?m)^([A-Z_0-9]+): fx\.Constexpr = (.+)$")


def backend_of(choice: Any) -> str:
    """Return the backend's name, as in `max_autotune_gemm_backends` but lower case."""
    extern = private(SELECT, "ExternKernelCaller")[2]
    if isinstance(choice, extern):
        return ATEN
    if is_decompose_k(choice):
        return DECOMPOSE_K
    info = choice.info_dict()
    return str(info.get("backend", type(choice).__name__)).lower()


def candidate_of(choice: Any, inputs: Sequence[TensorSpec]) -> Candidate:
    """Describe one choice of a list.

    Args:
        choice: Inductor's `ChoiceCaller`.
        inputs: Of the list that the choice is in.
    """
    backend = backend_of(choice)
    template, config = _parameters(choice, backend)
    source, packing, key = "", None, ""
    if backend == CPP and hasattr(choice.template, "register_blocking"):  # a GEMM
        packing = _packing(choice)
        config["register_blocking"] = repr(packing.register_blocking)
        config["blocked"] = repr(packing.blocked)
    elif backend == TRITON:
        source = Path(choice.bmreq.module_path).read_text()
    elif backend == DECOMPOSE_K:
        source = _lowered(choice)
    elif backend == FLYDSL:
        source = str(choice.bmreq.source_code)
        key = build_key(source, inputs)
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
        build_key=key,
    )


def _parameters(choice: Any, backend: str) -> tuple[str, dict[str, str]]:
    """Return the template's name, and its parameters as Python spells them."""
    # A choice is numbered in the order of the process: "triton_mm_7".
    numbered = re.sub(r"_\d+$", "", choice.name)
    if backend == ATEN:
        kwargs = {name: repr(value) for name, value in choice.kwargs.items()}
        return str(choice.name), kwargs
    if is_subgraph(choice):
        return numbered, {"description": str(choice.description)}
    if backend == FLYDSL:
        return str(choice.template.name), constants(choice.bmreq.source_code)
    info = {k: repr(v) for k, v in choice.info_dict().items() if k != "backend"}
    return str(getattr(choice, "category", "") or numbered), info


def constants(source: str) -> dict[str, str]:
    """Return the compile-time parameters of a FlyDSL template's rendered source."""
    return dict(_CONSTANT.findall(source))


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


def spec_of(layout: Any) -> TensorSpec:
    """Describe a tensor by Inductor's layout of it.

    A dynamic size is the one that Inductor would time, which is in the list's key.
    """
    return TensorSpec(
        sizes=tuple(map(_hint, layout.size)),
        strides=tuple(map(_hint, layout.stride)),
        dtype=str(layout.dtype).removeprefix("torch."),
        offset=_hint(layout.offset),
    )


def _hint(size: Any) -> int:
    try:
        return int(size)
    except TypeError:  # of a symbol
        graph = private("torch._inductor.virtualized", "V")[2].graph
        return int(graph.sizevars.optimization_hint(size))


def current_node() -> Any:
    """Return the node of the graph that is being lowered, if it is one's turn."""
    graph = private("torch._inductor.virtualized", "V")[2].graph
    return getattr(graph, "current_node", None)


def current_module() -> str:
    """Return the path, within the piece, of the module that is being lowered.

    Empty where a fusion has made the node: it belongs to no module any more.
    """
    node = current_node()
    stack = (node.meta if node is not None else {}).get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()]
    # Dynamo spells the root "L['self']" or "L['fn']".
    return paths[-1].partition("]")[2].lstrip(".") if paths else ""

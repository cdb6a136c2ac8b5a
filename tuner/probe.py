"""List the candidates of a program, in a process and a cache directory to throw away.

`python -m flytune.tuner.probe REQUEST RESULT`. Inductor lowers the very program that
will be baked; each list that it would choose from is written down and nothing is
timed. The graph is abandoned once it is lowered: its code is not needed, and a graph
stored under a probe would be served to others (a probe is in no key).
"""

import functools
import importlib.util
import json
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
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
from flytune.caches.policy import ServingPolicy, uses_flydsl
from flytune.caches.program import Piece, ProgramSpec, build_program, lowered_counts
from flytune.caches.stand_in import fake_tensors, stand_in, take_build
from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import ATEN, FLYDSL, CandidateList, Enumeration
from flytune.tuner.describe import (
    backend_of,
    candidate_of,
    current_module,
    current_node,
    spec_of,
)
from flytune.tuner.eligibility import Watch, keep_defaults
from flytune.tuner.isolated import isolated_pieces, piece_name, why_unlisted
from flytune.tuner.tasks import join
from flytune.tuner.unlisted import LISTED_ALONE, NOT_SAID, Decided


class Lowered(Exception):
    """The graph is lowered: everything that the probe wants has been seen."""


class Probe:
    """Collects the lists that pass through Inductor's selection in this process."""

    def __init__(self) -> None:
        self.lists: list[CandidateList] = []
        self.piece, self.tokens = "", 0
        self._describing = False
        self._watch: Watch | None = None

    def arm(self, *, flydsl: bool = False, to_the_end: bool = False) -> None:
        """Watch selection, keep one candidate of each list, stop after lowering.

        Args:
            flydsl: Whether a list without FlyDSL's candidates says why.
            to_the_end: Whether the program goes on, with what was kept.

        Raises:
            FlytuneError: this torch lacks an interface that the probe needs.
        """
        if flydsl:
            self._watch = Watch(current_node)
            self._watch.arm()
            keep_defaults()
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
                graphed = bool(kwargs.get("benchmark_with_cudagraphs"))
                self.take(
                    lambda: self._describe(
                        name, choices, input_nodes, layout, cudagraphs=graphed
                    )
                )
                self._describing = False
            library = [c for c in choices if backend_of(c) == ATEN]
            kept = (library or choices)[:1]
            return select(selector, name, kept, input_nodes, layout, *args, **kwargs)

        setattr(cache, attribute, call)
        if to_the_end:
            return
        graph, attribute, _ = private(
            "torch._inductor.graph", "GraphLowering.compile_to_module"
        )
        setattr(graph, attribute, _stop)

    def take(self, make: Callable[[], CandidateList]) -> None:
        """Keep the list that `make` returns."""
        self.lists.append(make())

    def run(self, pieces: Iterable[Piece], policy: ServingPolicy, seed: int) -> None:
        """Lower every piece at every size of the policy."""
        import torch

        for piece in pieces:
            counts = piece.counts(policy)
            for tokens in lowered_counts(counts, dynamic=policy.dynamic):
                self.piece, self.tokens = piece.name, tokens
                args, kwargs = piece.inputs(tokens, seed)
                torch._dynamo.reset()
                compiled = torch.compile(piece.module, dynamic=policy.dynamic)
                _until_lowered(functools.partial(compiled, *args, **kwargs))
                del args, kwargs, compiled
            del piece
            forget_graphs()

    def why_unlisted(self, piece: Piece, policy: ServingPolicy) -> str:
        """Lower a piece that got no list by itself; return what decided that."""
        before = len(self.lists)
        if self._watch is not None:
            self._watch.said = ""
        decided = Decided()
        try:
            with decided.watched():
                self.run((piece,), policy, seed=0)
        except Exception as error:  # what cannot be explained ends no build
            return f"{NOT_SAID}, and by itself it fails: {type(error).__name__}"
        if len(self.lists) > before:
            del self.lists[before:]
            return LISTED_ALONE
        declined = [] if self._watch is None else [self._watch.said]
        return " and ".join(filter(None, (*declined, *decided.said))) or NOT_SAID

    def _describe(
        self,
        op: str,
        choices: Sequence[Any],
        input_nodes: Sequence[Any],
        layout: Any,
        *,
        cudagraphs: bool,
    ) -> CandidateList:
        inputs_key = private(SELECT, "create_inputs_key")[2](input_nodes)
        inputs = tuple(spec_of(node.get_layout()) for node in input_nodes)
        declined = ""
        if self._watch and not any(backend_of(c) == FLYDSL for c in choices):
            # Before a candidate that is a graph is lowered, which asks too.
            declined = self._watch.reason()
        candidates = tuple(candidate_of(choice, inputs) for choice in choices)
        return CandidateList(
            op=op,
            inputs_key=benchmark_key(
                inputs_key, layout.device.type, cudagraphs=cudagraphs
            ),
            precision=precision_key(),
            inputs=inputs,
            output=spec_of(layout),
            candidates=candidates,
            piece=self.piece,
            tokens=self.tokens,
            module=current_module(),
            declined=declined,
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


def _lower(
    probe: Probe,
    program: Mapping[str, Any] | None,
    shapes: Iterable[GemmShape],
    policy: ServingPolicy,
) -> None:
    """Lower the program, or where there is none the shapes one by one."""
    if program is not None:
        spec = ProgramSpec.from_json(program)
        probe.run(build_program(spec, seed=0, device=policy.device), policy, seed=0)
        return
    called = (shape for shape in shapes if not why_unlisted(shape))
    for shape, piece in isolated_pieces(called, policy.device):
        probe.run((piece,), replace(policy, tokens=(shape.m,)), seed=0)


def _unlisted(
    probe: Probe, shapes: Iterable[GemmShape], policy: ServingPolicy
) -> dict[str, str]:
    """Return why planned GEMMs are in no list, by the name of each as a piece."""
    missing = join(shapes, probe.lists).missing
    said = {piece_name(shape): why_unlisted(shape) for shape in missing}
    called = (shape for shape in missing if not said[piece_name(shape)])
    for shape, piece in isolated_pieces(called, policy.device):
        own = replace(policy, tokens=(shape.m,))
        said[piece.name] = probe.why_unlisted(piece, own)
    return said


def main() -> None:
    """Run the request named on the command line and write its lists, pickled.

    It holds `policy`, `search`, `profile` (of a device that is not here, or null),
    `program` where there is one, and `shapes`: a row of each planned `GemmShape`.
    """
    die_with_parent()
    request_path, result_path = map(Path, sys.argv[1:3])
    require_torch()
    request = json.loads(request_path.read_text())
    policy = ServingPolicy.from_json(request["policy"])
    absent = request.get("profile")
    profile = None if absent is None else DeviceProfile.from_json(absent)
    if profile is not None:
        take_build(profile)  # Inductor's configuration is already made from it
    policy.apply()
    widen_search(request["search"])
    if profile is not None:
        stand_in(profile)
    import torch

    shapes = [GemmShape(**row) for row in request["shapes"]]
    probe = Probe()
    probe.arm(flydsl=uses_flydsl(policy))
    with torch.no_grad(), nullcontext() if profile is None else fake_tensors():
        _lower(probe, request.get("program"), shapes, policy)
    with torch.no_grad(), fake_tensors():
        unlisted = _unlisted(probe, shapes, policy)
    part = result_path.with_suffix(".part")
    found = Enumeration(
        tuple(probe.lists),
        torch_key(),
        triton_key() if importlib.util.find_spec("triton") else None,
        system_info(),
        unlisted,
    )
    part.write_bytes(pickle.dumps(found))
    part.replace(result_path)


if __name__ == "__main__":
    main()

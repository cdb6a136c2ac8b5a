"""Why a GEMM has no list of candidates: Inductor's own words, from lowering it again.

Inductor decomposes some products, and leaves others to the library, before it would
choose. The functions that do so are watched while it lowers one such product by itself;
none of their conditions is written here.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from flytune.caches.compat import private
from flytune.shapes.errors import FlytuneError
from flytune.tuner.gates import Gate

_DECOMPOSITIONS = "torch._inductor.decomposition"
_MM = "torch._inductor.kernel.mm"
_DECIDE = (
    *((_DECOMPOSITIONS, name) for name in ("mm", "addmm", "bmm")),
    (_MM, "tuned_scaled_mm_v2"),
)
NOT_SAID = "its lowering asks for no candidates"
"""Of a product that none of the watched functions took away."""
LISTED_ALONE = "it has a list by itself: the program computes it in another way"


class Decided:
    """What decided that products are lowered without a choice, while it is watched."""

    def __init__(self) -> None:
        self._gates: dict[CodeType, Gate] = {}
        for module, name in _DECIDE:
            try:
                gate = Gate(private(module, name)[2])
            except FlytuneError:
                continue  # an older torch, that takes nothing away by it
            self._gates[gate.code] = gate
        self.said: dict[str, None] = {}
        """What decided, in order and each once."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Listen to this thread."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _: str, __: Any) -> Callable[..., Any] | None:
        gate = self._gates.get(frame.f_code)
        if gate is None:
            return None
        frame.f_trace_lines = False

        def local(frame: FrameType, event: str, result: Any) -> Any:
            # A decomposition that is none for these sizes says so by its result.
            if event == "return" and result is not NotImplemented:
                words = gate.words(frame)
                if words:
                    self.said[words] = None
            return local

        return local

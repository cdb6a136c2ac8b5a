"""What a bake with vLLM will take, told before it starts.

vLLM compiles in one thread, a graph after another: each static size and each range of
sizes for each kind of piece that attention cuts the model into.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flytune.caches.vllm_factors import PIECEWISE, VllmFactors
from flytune.caches.words import counted

_ONE_GRAPH = ("DYNAMO_TRACE_ONCE", "STOCK_TORCH_COMPILE")
_TUNING = "environment.VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE"

# Seconds a graph. CPU: 9 graphs of a Llama of 2 layers, tiny and at Llama-3.1-8B's
# width, took 29 to 50 s on 2 cores. GPU: a third of a first call of 2 layers at one
# size on an H200, of a stock compile, which tuned 4 lists or had their times.
_SECONDS = {"cpu": 5.0, "cuda": 8.0}
_TUNED_SECONDS = {"cuda": 15.0}
# Measured on that CPU alone.
_BYTES = 0.7e6


@dataclass(frozen=True, slots=True)
class Estimate:
    """Graphs, time and size of one rank's bake."""

    mode: str
    pieces: int
    """Kinds of piece: layers that are alike are compiled once."""
    sizes: tuple[int, ...]
    """Static sizes, in tokens, in vLLM's order."""
    ranges: tuple[tuple[int, int], ...]
    """General graphs, each for token counts from the first to the last."""
    captured: tuple[int, ...]
    """Sizes that the engine captures CUDA graphs of."""
    tuned: bool
    """Whether vLLM has Inductor tune the GEMMs of each static size."""
    device: str
    ranks: int

    @property
    def graphs(self) -> int:
        """Graphs that are compiled on a rank."""
        return self.pieces * (len(self.sizes) + len(self.ranges))

    @property
    def seconds(self) -> float:
        """Seconds of a rank's first pass, compiling alone; ranks compile at once."""
        plain = _SECONDS.get(self.device, _SECONDS["cuda"])
        static = _TUNED_SECONDS.get(self.device, plain) if self.tuned else plain
        return self.pieces * (static * len(self.sizes) + plain * len(self.ranges))

    @property
    def size_bytes(self) -> float:
        """Size of the bundle's part of all ranks."""
        return self.ranks * self.graphs * _BYTES


def estimate(factors: VllmFactors, sizes: tuple[int, ...] | None = None) -> Estimate:
    """Return what a bake under these factors will take.

    Args:
        sizes: Static sizes, where it is not those of the arguments.
    """
    shapes: Mapping[str, Any] = factors.shapes
    mode = str(shapes["mode"])
    own = tuple(int(size) for size in shapes["compile_sizes"])
    ranges = tuple((int(a), int(b)) for a, b in shapes["ranges"])
    if mode != PIECEWISE:
        # Another backend takes neither sizes nor ranges.
        own, ranges = (), ((1, ranges[-1][1]),) if ranges else ()
    named = dict(factors.named())
    return Estimate(
        mode=mode,
        pieces=_pieces(mode, shapes),
        sizes=own if sizes is None else sizes,
        ranges=ranges,
        captured=tuple(int(size) for size in shapes["capture_sizes"]),
        tuned=named.get(_TUNING, "true") == "true",
        device=str(shapes["device"]),
        ranks=int(shapes["ranks"]),
    )


def _pieces(mode: str, shapes: Mapping[str, Any]) -> int:
    """Return how many kinds of piece there are where all layers are alike.

    Attention cuts the model into what is before the first, between two, and after the
    last.
    """
    if mode in _ONE_GRAPH:
        return 1
    if mode != PIECEWISE:
        return 0
    return min(int(shapes["layers"]) + 1, 3) if shapes["pieces"] else 1


def estimate_lines(factors: VllmFactors) -> tuple[str, ...]:
    """Return the estimate in words, a fact a line."""
    found = estimate(factors)
    if not found.graphs:
        return (f"vLLM compiles nothing with these arguments: mode {found.mode}",)
    lines = [
        f"{found.graphs} graphs: {counted(found.pieces, 'kind')} of piece, "
        f"{counted(len(found.sizes), 'static size')} and {_general(found)}; "
        f"{_cost(found)}"
    ]
    if found.mode == PIECEWISE and found.captured and not found.sizes:
        whole = estimate(factors, found.captured)
        lines.append(
            f"no static sizes: compile_sizes names none; of the "
            f"{len(found.captured)} that are captured it would be "
            f"{whole.graphs} graphs, {_cost(whole)}"
        )
    if found.tuned and found.sizes and found.device != "cpu":
        lines.append("the GEMMs of each static size are tuned, those of ranges are not")
    if factors.shapes.get("lora"):
        lines.append(
            "with LoRA every linear has its adapters' buffers, whose sizes come of "
            "--max-loras, --max-lora-rank and --max-num-batched-tokens"
        )
    if "inductor" in factors.parts:
        lines.append(f"policy in the keys of timings: {timing_policy(factors)}")
    return tuple(lines)


def timing_policy(factors: VllmFactors) -> str:
    """Say which benchmark policy is part of the keys of Inductor's timings.

    torch 2.15 and later keep times apart by how they were measured, eagerly or by CUDA
    graphs; before, the keys have no such part.
    """
    named = dict(factors.named())
    automatic = named.get("inductor.autotune_cudagraph_benchmarking")
    if automatic is None:
        return "none before torch 2.15"
    if factors.shapes["device"] != "cuda" or automatic != "true":
        return "eager"
    repeats = named.get("inductor.autotune_cudagraph_benchmarking_iters", "1")
    return f"cudagraph_auto:cudagraph_unroll={repeats}"


def _general(found: Estimate) -> str:
    words = ", ".join(f"{start} to {end}" for start, end in found.ranges)
    return f"{counted(len(found.ranges), 'general range')} ({words})"


def _cost(found: Estimate) -> str:
    minutes = found.seconds / 60
    return f"about {minutes:.1f} min in one thread and {found.size_bytes / 1e6:.0f} MB"

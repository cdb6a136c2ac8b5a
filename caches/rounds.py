"""The calls of one piece of a program, in the orders that serving may meet."""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flytune.caches.calls import Arguments
from flytune.caches.compat import precompiles_inference_mode
from flytune.caches.policy import ServingPolicy
from flytune.caches.program import Piece

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a compiled piece."""

    piece: str
    tokens: int
    round: str
    """"first", largest size first; shuffled: "again", "steady", "variants", "reset".

    "device" is a replay of the call on a GPU, without what Python takes to launch it.
    """
    seconds: float
    rel_error: float | None
    """Largest difference from eager over eager's largest value; first round only."""


def run_rounds(
    piece: Piece,
    policy: ServingPolicy,
    seed: int,
    *,
    again: bool = True,
    variants: bool = True,
    mode: str | None = None,
    steady: int = 0,
    between: bool = False,
) -> list[Call]:
    """Call a piece at every size, in the orders that serving may meet.

    Args:
        again: Whether to forget the graphs, and to look for them in another order.
        variants: Whether to call it too as torch tells apart and serving may: with
            weights that require gradients, and, for Dynamo's entries, in inference
            mode.
        mode: Of torch.compile; None compiles as the policy alone says.
        steady: More calls of each size, to see how long one takes from then on.
        between: Whether sizes between those of the policy are called too.
    """
    import torch

    given: dict[str, Any] = {} if mode is None else {"mode": mode}

    largest_first = piece.counts(policy, between=between)
    shuffled = list(largest_first)
    random.Random(seed).shuffle(shuffled)
    start = time.perf_counter()
    compiled = torch.compile(piece.module, dynamic=policy.dynamic, **given)
    # Precompiled entries are loaded here: the first caller waits for that.
    made_s = time.perf_counter() - start
    calls = [_call(piece, compiled, tokens, "first", seed) for tokens in largest_first]
    calls[0] = replace(calls[0], seconds=calls[0].seconds + made_s)
    calls += [_call(piece, compiled, tokens, "again", seed) for tokens in shuffled]
    for tokens in shuffled * steady:
        calls.append(_call(piece, compiled, tokens, "steady", seed))
    if steady and policy.device == "cuda":
        for tokens in shuffled:
            calls += _replays(piece, compiled, tokens, seed, steady)
    # A frozen graph is lowered anew each time: more would only repeat the first.
    if variants and not policy.frozen:
        for context, grads in _variants(policy):
            piece.module.requires_grad_(grads)
            with context():
                calls += [
                    _call(piece, compiled, tokens, "variants", seed)
                    for tokens in shuffled
                ]
        piece.module.requires_grad_(False)
    if again and not policy.frozen:
        torch._dynamo.reset()
        compiled = torch.compile(piece.module, dynamic=policy.dynamic, **given)
        calls += [_call(piece, compiled, tokens, "reset", seed) for tokens in shuffled]
    return calls


def _variants(policy: ServingPolicy) -> Iterator[tuple[Callable[[], Any], bool]]:
    """Yield (context, whether weights require gradients), but those of the first round.

    A loaded model's weights do where nobody says otherwise.
    """
    import torch

    yield torch.no_grad, True
    if policy.precompiled and precompiles_inference_mode():
        yield torch.inference_mode, True
        yield torch.inference_mode, False


def _call(
    piece: Piece, compiled: Callable[..., Any], tokens: int, round_: str, seed: int
) -> Call:

    args, kwargs = _inputs(piece, tokens, seed)
    _finish(piece)
    start = time.perf_counter()
    output = compiled(*args, **kwargs)
    _finish(piece)
    seconds = time.perf_counter() - start
    error = None
    if round_ == "first":
        # As good as new: the first call has written to a cache among them.
        args, kwargs = _inputs(piece, tokens, seed)
        eager = piece.module(*args, **kwargs)
        error = relative_error(_result(output), _result(eager))
    return Call(piece.name, tokens, round_, seconds, error)


def _inputs(piece: Piece, tokens: int, seed: int) -> Arguments:
    import torch

    mode = torch.is_inference_mode_enabled() and not piece.outside
    with torch.inference_mode(mode):
        return piece.inputs(tokens, seed)


def _result(output: Any) -> "torch.Tensor":
    """Return the tensor that a model or a layer returns, alone or among others."""
    found = getattr(output, "logits", output)
    tensor: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return tensor


def _replays(
    piece: Piece, compiled: Callable[..., Any], tokens: int, seed: int, times: int
) -> Iterator[Call]:
    """Yield so many replays of one call, captured in a CUDA graph."""
    import torch

    args, kwargs = piece.inputs(tokens, seed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compiled(*args, **kwargs)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(times):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds = start.elapsed_time(end) / 1e3
        yield Call(piece.name, tokens, "device", seconds, None)


def _finish(piece: Piece) -> None:
    """Wait for the device: a call returns when its kernels are launched."""
    import torch

    if next(piece.module.parameters()).is_cuda:
        torch.cuda.synchronize()


def relative_error(output: Any, reference: Any) -> float:
    """Return the largest difference over the reference's largest value.

    A NaN anywhere makes it NaN, which is no number that passes a tolerance.
    """
    worst = scale = 0.0
    # In slices: the head's logits of a large model are gigabytes in float32.
    for out, ref in zip(
        output.flatten().split(2**24), reference.flatten().split(2**24), strict=True
    ):
        error = float((out.float() - ref.float()).abs().max())
        # max would keep the number.
        if math.isnan(error):
            return error
        worst = max(worst, error)
        scale = max(scale, float(ref.abs().max()))
    return worst / scale if scale else worst

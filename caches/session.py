"""Run a program once in this fresh process, under a policy, with a ledger.

`python -m flytune.caches.session REQUEST RESULT`: both are JSON files. Bake and
verify are this very run, on the bake's directory and on a copy of the bundle's.
"""

import json
import math
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flytune.caches.child import die_with_parent
from flytune.caches.compat import precompiles_inference_mode, require_torch
from flytune.caches.ledger import Ledger
from flytune.caches.policy import ServingPolicy
from flytune.caches.precompiled import Precompiler
from flytune.caches.program import Piece, ProgramSpec, build_program

# Largest error of one layer against eager, relative to the largest output: bf16 has 8
# bits of mantissa, and a layer adds a few roundings of 2^-8 in another order.
TOLERANCE = 0.03


def tolerance(program: ProgramSpec) -> float:
    """Return the largest error that a call may have against eager.

    Roundings of layers in a row add up as a random walk.
    """
    return TOLERANCE * math.sqrt(program.depth)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a compiled piece."""

    piece: str
    tokens: int
    round: str
    """"first", largest size first; shuffled: "again", "steady", "variants", "reset"."""
    seconds: float
    rel_error: float | None
    """Largest difference from eager over eager's largest value; first round only."""


def main() -> None:
    """Run the request named on the command line and write its result."""
    die_with_parent()
    request_path, result_path = map(Path, sys.argv[1:3])
    request = json.loads(request_path.read_text())
    result = run(request)
    part = result_path.with_suffix(".part")
    part.write_text(json.dumps(result))
    part.replace(result_path)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run every size of the policy: largest first, shuffled, and shuffled anew.

    Args:
        request: `program`, `policy` and `seed`; `again` and `variants`, as for
            `run_rounds`; `search`, the search space of what is lowered, as
            for `widen_search`; `keep_descents`, whether the function of that name is
            called; `precompile`, whether Dynamo's entries are stored, for a policy that
            looks for them; `without`, modules that this process must not
            find; `load` and `save` name files of torch's mega-cache, to read
            before the run and to write after it; `mode` of torch.compile and `steady`,
            as for `run_rounds`.

    Raises:
        FlytuneError: torch is unsupported, or the program cannot be built.
    """
    for name in request.get("without", ()):
        sys.modules[name] = None  # type: ignore[assignment]
    require_torch()
    policy = ServingPolicy.from_json(request["policy"])
    spec = ProgramSpec.from_json(request["program"])
    import torch

    from flytune.caches import inductor
    from flytune.caches.ledger_hooks import arm

    _configure(request, policy)
    ledger = Ledger()
    arm(ledger)
    precompiler = Precompiler()
    if request.get("precompile"):
        precompiler.arm()
    config = inductor.portable_config()
    load_s = _load_artifacts(request.get("load"))
    options = {name: request[name] for name in _OPTIONS if name in request}
    calls: list[Call] = []
    compile_s: Counter[str] = Counter()
    with torch.no_grad():
        for piece in build_program(spec, seed=request["seed"], device=policy.device):
            calls += run_rounds(piece, policy, request["seed"], **options)
            compile_s.update(inductor.take_compile_seconds())
            if request.get("precompile"):
                precompiler.store()
            del piece
            inductor.forget_graphs()
    saved = _save_artifacts(request.get("save"))
    return {
        "calls": [[c.piece, c.tokens, c.round, c.seconds, c.rel_error] for c in calls],
        "ledger": ledger.to_json(),
        "inductor_config": config,
        "threads": torch.get_num_threads(),
        "load_s": load_s,
        "saved_bytes": saved,
        "compile_s": compile_s,
        "dropped_guards": sorted(precompiler.dropped),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


# Of `run_rounds`.
_OPTIONS = ("again", "variants", "mode", "steady")


def _configure(request: dict[str, Any], policy: ServingPolicy) -> None:
    """Make torch compile as the request says."""
    from flytune.caches import inductor

    policy.apply()
    if "search" in request:
        inductor.widen_search(request["search"])
    if request.get("keep_descents"):
        inductor.keep_descents()


def _load_artifacts(path: str | None) -> float:
    """Give torch a mega-cache; return the seconds that it took."""
    import torch

    if path is None:
        return 0.0
    start = time.perf_counter()
    torch.compiler.load_cache_artifacts(Path(path).read_bytes())
    return time.perf_counter() - start


def _save_artifacts(path: str | None) -> int:
    """Write torch's mega-cache to `path`; return its bytes, 0 when torch has none."""
    import torch

    if path is None:
        return 0
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is None:
        return 0
    Path(path).write_bytes(artifacts[0])
    return len(artifacts[0])


def run_rounds(
    piece: Piece,
    policy: ServingPolicy,
    seed: int,
    *,
    again: bool = True,
    variants: bool = True,
    mode: str | None = None,
    steady: int = 0,
) -> list[Call]:
    """Call a piece at every size, in the orders that serving may meet.

    Args:
        again: Whether to forget the graphs, and to look for them in another order.
        variants: Whether to call it too as torch tells apart and serving may: with
            weights that require gradients, and, for Dynamo's entries, in inference
            mode.
        mode: Of torch.compile; None compiles as the policy alone says.
        steady: More calls of each size, to see how long one takes from then on.
    """
    import torch

    given: dict[str, Any] = {} if mode is None else {"mode": mode}

    largest_first = sorted(policy.tokens, reverse=True)
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
    import torch

    # A layer's inputs come from the layer before it, a model's from outside.
    outside = piece.name == "model"
    with torch.inference_mode(torch.is_inference_mode_enabled() and not outside):
        args, kwargs = piece.inputs(tokens, seed)
    _finish(piece)
    start = time.perf_counter()
    output = compiled(*args, **kwargs)
    _finish(piece)
    seconds = time.perf_counter() - start
    error = None
    if round_ == "first":
        eager = piece.module(*args, **kwargs)
        # A whole model returns its logits among other things.
        error = relative_error(*(getattr(o, "logits", o) for o in (output, eager)))
    return Call(piece.name, tokens, round_, seconds, error)


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


if __name__ == "__main__":
    main()

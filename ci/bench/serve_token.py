"""A model of transformers up to its first token: `fresh("serve_token", REQUEST)`.

The model is in memory when the clock starts, as a server has loaded it; its layers are
compiled one by one with the head, or all of it is. Weights are random.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from processes import answer

from flytune.caches.compat import require_torch
from flytune.caches.policy import ServingPolicy
from flytune.caches.program import ProgramSpec, build_program
from flytune.caches.rounds import relative_error
from flytune.caches.session import install_seconds, load_artifacts, save_artifacts


def served(request: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds to the first token, and what was compiled for it.

    Args:
        request: `program`, of transformers; `policy`; `seed`; `tokens` of the prompt;
            `install`, `load` and `save`, as for `flytune.caches.session`.
    """
    ready_s = install_seconds(request.get("install"))
    require_torch()
    import torch

    from flytune.caches import inductor
    from flytune.caches.ledger import Ledger, summary
    from flytune.caches.ledger_hooks import arm

    policy = ServingPolicy.from_json(request["policy"])
    if "install" not in request:
        policy.apply()
    ledger = Ledger()
    arm(ledger)
    ready_s += load_artifacts(request.get("load"))
    spec = ProgramSpec.from_json(request["program"])
    whole = replace(spec, bake="model")
    with torch.no_grad():
        (piece,) = build_program(whole, seed=request["seed"], device=policy.device)
        _, named = piece.inputs(request["tokens"], request["seed"])
        model: Any = piece.module
        eager = model.forward
        finish(policy.device)
        start = time.perf_counter()
        step, undo = compiled(model, spec.bake)
        logits, seconds = _timed(step, named, start, policy.device)
        _, again_s = _timed(step, named, time.perf_counter(), policy.device)
        compile_s = inductor.take_compile_seconds()
        undo()
        reference = eager(**named).logits
    return {
        "ready_s": ready_s,
        "first_token_s": seconds,
        "second_s": again_s,
        "rel_error": relative_error(logits, reference),
        "work": summary(ledger.events),
        "compile_s": compile_s,
        "saved_bytes": save_artifacts(request.get("save")),
    }


def compiled(model: Any, bake: str) -> tuple[Callable[..., Any], Callable[[], None]]:
    """Compile a model, or in its place its layers and head; return it and the way back.

    The head holds the norm, as the program that is baked has it.
    """
    import torch

    if bake == "model":
        return torch.compile(model, dynamic=False), lambda: None
    base, layers = model.model, model.model.layers
    norm, head = base.norm, model.lm_head

    def undo() -> None:
        base.layers, base.norm, model.lm_head = layers, norm, head

    base.layers = torch.nn.ModuleList(torch.compile(x, dynamic=False) for x in layers)
    base.norm = torch.nn.Identity()
    model.lm_head = torch.compile(torch.nn.Sequential(norm, head), dynamic=False)
    return model, undo


def _timed(
    step: Callable[..., Any], named: dict[str, Any], start: float, device: str
) -> tuple[Any, float]:
    """Return (logits, seconds until their last token is known)."""
    logits = step(**named).logits
    int(logits[0, -1].argmax())
    finish(device)
    return logits, time.perf_counter() - start


def finish(device: str) -> None:
    """Wait for the device."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    answer(served)

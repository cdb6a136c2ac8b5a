"""Inductor's own autotuning of isolated linears, in a process of its own.

What `torch.compile(mode="max-autotune-no-cudagraphs")` does with such a linear, with
torch's defaults but for what a policy of the CPU says.
"""

import functools
import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from processes import answer, fresh, threads

from flytune.caches.child import plain_environment
from flytune.caches.policy import CUDA_POLICY, ServingPolicy, cpu_policy

Shape = tuple[int, int, int]
_SEARCH = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE"
_PHASES = ("_template_precompiling", "_template_autotuning")


def peer(
    device: str, shapes: Iterable[Shape], *, search: str = "default"
) -> list[dict[str, Any]]:
    """Let Inductor tune each shape in one fresh process with an empty cache.

    Returns:
        A row a shape: `wall_s` of its first call, `autotune_s` of it in which Inductor
        compiled and timed candidates by its own account, and its `lists`.

    Raises:
        FlytuneError: the process failed.
    """
    shapes = list(shapes)
    request = {"device": device, "shapes": shapes, "threads": threads()}
    with tempfile.TemporaryDirectory(prefix="flytune-peer-") as directory:
        env = {
            **plain_environment(),
            "OMP_NUM_THREADS": str(threads()),
            "TORCHINDUCTOR_CACHE_DIR": directory,
            _SEARCH: search.upper(),
        }
        found = fresh("peer", request, env, what="Inductor's own autotuning")
    rows: list[dict[str, Any]] = found
    return rows


def pick_in(
    candidates: Sequence[Mapping[str, Any]], pick: Mapping[str, Any]
) -> tuple[str | None, str]:
    """Return the hash of a pick in flytune's list, and what it was found by.

    An isolated linear may be rendered otherwise than the same one in a program, and
    has another hash then: its parameters name it, or its backend where that has one.
    """
    for candidate in candidates:
        if candidate["hash"] == pick["hash"]:
            return candidate["hash"], "hash"
    same = [c for c in candidates if c["backend"] == pick["backend"]]
    alike = [c for c in same if _parameters(c) == _parameters(pick)]
    for found, by in ((alike, "parameters"), (same, "backend")):
        if len(found) == 1:
            return found[0]["hash"], by
    return None, "not in the list"


def _parameters(candidate: Mapping[str, Any]) -> tuple[Any, ...]:
    return candidate["template"], json.loads(candidate["config"])


def _tune(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer `peer`."""
    import torch
    from torch._inductor.select_algorithm import add_feedback_saver

    from flytune.caches.inductor import forget_graphs

    device = request["device"]
    lists: list[dict[str, Any]] = []
    add_feedback_saver(functools.partial(_save, lists))
    if device == "cpu":
        _frozen(request["threads"]).apply()
    rows = []
    with torch.no_grad():
        for m, n, k in request["shapes"]:
            lists.clear()
            row = _first_call(device, m, n, k)
            rows.append({"shape": [m, n, k], **row, "lists": list(lists)})
            forget_graphs()
    return rows


def _frozen(threads: int) -> ServingPolicy:
    """Return the policy under which a linear has a choice on a CPU."""
    return cpu_policy("frozen", tokens=(1,), threads=threads, attention="sdpa")


def _first_call(device: str, m: int, n: int, k: int) -> dict[str, float]:
    import torch
    from torch._dynamo.utils import compilation_time_metrics

    weights: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    linear = torch.nn.Linear(k, n, bias=False, **weights).eval().requires_grad_(False)
    x = torch.randn(1, m, k, **weights)
    compiled = torch.compile(linear, mode=CUDA_POLICY, dynamic=False)
    compilation_time_metrics.clear()
    _finish(device)
    start = time.perf_counter()
    compiled(x)
    _finish(device)
    wall_s = time.perf_counter() - start
    autotune_s = sum(
        sum(seconds)
        for name, seconds in compilation_time_metrics.items()
        if name.endswith(_PHASES)
    )
    return {"wall_s": round(wall_s, 3), "autotune_s": round(autotune_s, 3)}


def _finish(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _save(lists: list[Any], timings: Mapping[Any, float], name: str, *_: Any) -> None:
    """Keep one list that was tuned; Inductor takes the least time."""
    finite = {choice: ms for choice, ms in timings.items() if ms < float("inf")}
    pick = min(finite, key=finite.__getitem__)
    lists.append(
        {
            "op": name,
            "pick": _description(pick),
            "us": {choice.hash_key(): 1e3 * ms for choice, ms in finite.items()},
            "candidates": len(timings),
        }
    )


def _description(choice: Any) -> dict[str, Any]:
    """Name a choice as flytune's records do, as far as the choice itself tells."""
    from torch._inductor.select_algorithm import ExternKernelCaller

    if isinstance(choice, ExternKernelCaller):
        backend, template = "aten", str(choice.name)
        config = {name: repr(value) for name, value in choice.kwargs.items()}
    else:
        # A copy: it may be the choice's own.
        info = dict(choice.info_dict())
        backend = str(info.pop("backend", type(choice).__name__)).lower()
        template = str(getattr(choice, "category", "") or choice.name.rsplit("_", 1)[0])
        config = {name: repr(value) for name, value in info.items()}
    text = json.dumps(config, sort_keys=True)
    return {
        "hash": choice.hash_key(),
        "backend": backend,
        "template": template,
        "config": text,
    }


if __name__ == "__main__":
    answer(_tune)

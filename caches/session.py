"""Run a program once in this fresh process, under a policy, with a ledger.

`python -m flytune.caches.session REQUEST RESULT`: both are JSON files. Bake and
verify are this very run, on the bake's directory and on a copy of the bundle's.
"""

import json
import math
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from flytune.caches.child import die_with_parent, hide
from flytune.caches.compat import require_torch
from flytune.caches.ledger import Ledger
from flytune.caches.policy import ServingPolicy
from flytune.caches.precompiled import Precompiler
from flytune.caches.program import ProgramSpec, build_program
from flytune.caches.rounds import Call, run_rounds

# Largest error of one layer against eager, relative to the largest output: bf16 has 8
# bits of mantissa, and a layer adds a few roundings of 2^-8 in another order.
TOLERANCE = 0.03


def tolerance(program: ProgramSpec) -> float:
    """Return the largest error that a call may have against eager.

    Roundings of layers in a row add up as a random walk.
    """
    return TOLERANCE * math.sqrt(program.depth)


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
            for `widen_search`, in a bake, which also calls `weigh_fusions`;
            `keep_descents`, whether the function of that name is
            called; `precompile`, whether Dynamo's entries are stored, for a policy that
            looks for them; `without`, modules that this process must not
            find; `install`, a bundle and the directory that it is to be served from, as
            for `flytune.caches.install`; `load` and `save` name files of torch's
            mega-cache, to read before the run and to write after it; `mode` of
            torch.compile, `steady` and `between`, as for `run_rounds`.

    Raises:
        FlytuneError: torch is unsupported, or the program cannot be built.
    """
    hide(request.get("without", ()))
    install_s = install_seconds(request.get("install"))
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
    load_s = install_s + load_artifacts(request.get("load"))
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
    saved = save_artifacts(request.get("save"))
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
_OPTIONS = ("again", "variants", "mode", "steady", "between")


def _configure(request: dict[str, Any], policy: ServingPolicy) -> None:
    """Make torch compile as the request says."""
    from flytune.caches import inductor

    if "install" not in request:
        policy.apply()
    if "search" in request:
        inductor.widen_search(request["search"])
        inductor.weigh_fusions()
    if request.get("keep_descents"):
        inductor.keep_descents()


def install_seconds(served: list[str] | None) -> float:
    """Serve from an installed bundle; return the seconds that it took.

    Raises:
        FlytuneError: the bundle cannot be served from here.
    """
    if served is None:
        return 0.0
    start = time.perf_counter()
    from flytune.caches.install import install

    install(*served, strict=True)
    return time.perf_counter() - start


def load_artifacts(path: str | None) -> float:
    """Give torch a mega-cache; return the seconds that it took."""
    import torch

    if path is None:
        return 0.0
    start = time.perf_counter()
    torch.compiler.load_cache_artifacts(Path(path).read_bytes())
    return time.perf_counter() - start


def save_artifacts(path: str | None) -> int:
    """Write torch's mega-cache to `path`; return its bytes, 0 when torch has none."""
    import torch

    if path is None:
        return 0
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is None:
        return 0
    Path(path).write_bytes(artifacts[0])
    return len(artifacts[0])


if __name__ == "__main__":
    main()

"""What a watched process does when it has imported Inductor: `caches/watch.py` asks."""

import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flytune.caches.child import hide
from flytune.caches.hook.flytune_torch import mends_for, set_default
from flytune.caches.inductor import (
    CODECACHE,
    SCHEDULER,
    keep_descents,
    seed_timings,
    weigh_fusions,
    widen_search,
)
from flytune.caches.ledger_file import FileLedger
from flytune.caches.ledger_hooks import arm_late

REQUEST_NAME = "request.json"
_CONFIGS = {"inductor": "torch._inductor.config", "dynamo": "torch._dynamo.config"}
_Actions = dict[str, list[Callable[[], None]]]


def start(folder: str) -> None:
    """Hold this process to the request's policy, and keep its ledger."""
    request = json.loads((Path(folder) / REQUEST_NAME).read_text())
    hide(request["without"])
    ledger = FileLedger(Path(folder))
    actions = _policy_actions(request["policy"] or {})
    if space := request["search"]:
        _later(actions, "torch._inductor.graph", lambda: widen_search(space))
        _later(actions, SCHEDULER, weigh_fusions)
    if request["keep_descents"]:
        _later(actions, "torch._inductor.runtime.triton_heuristics", keep_descents)
    if path := request["timings"]:
        _later(actions, CODECACHE, lambda: seed_timings(Path(path)))
    for name in request["also"]:
        module = importlib.import_module(name)
        for watched, action in module.actions(Path(folder), ledger, request).items():
            _later(actions, watched, action)
    arm_late(ledger, actions)


def _policy_actions(policy: dict[str, Any]) -> _Actions:
    actions: _Actions = {}
    for kind, module in _CONFIGS.items():
        if values := policy.get(kind):
            _later(actions, module, functools.partial(_configure, module, values))
    for module, mend in mends_for(policy).items():
        _later(actions, module, functools.partial(_mend, module, mend))
    return actions


def _configure(module: str, values: dict[str, Any]) -> None:
    config = importlib.import_module(module)
    for name, value in values.items():
        set_default(config, name, value)


def _mend(module: str, mend: Callable[[Any], object]) -> None:
    mend(importlib.import_module(module))


def _later(actions: _Actions, module: str, action: Callable[[], None]) -> None:
    actions.setdefault(module, []).append(action)

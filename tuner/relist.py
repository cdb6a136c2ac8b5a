"""The lists of a finished bundle, made again on the device at hand.

Its own program is lowered, under its own policy, as a build does it first: the lists
are then those that serving asks for. Where it has none that can be run for this, its
GEMMs are lowered one by one.
"""

import json
import pickle
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flytune.caches.child import clean_environment, run_module
from flytune.caches.lists import TunedList
from flytune.caches.policy import ServingPolicy
from flytune.caches.records import TuningRecord
from flytune.caches.regression.sides import Pair, Side
from flytune.caches.several import parts_of
from flytune.tuner.candidate import (
    ATEN,
    Candidate,
    CandidateList,
    Enumeration,
    TuneTask,
)
from flytune.tuner.tasks import planned_for

PROBE = "flytune.tuner.probe"
SEARCHES = ("default", "exhaustive")
"""How wide lists are made; the second where the first lacks what is looked for."""


def relisted(side: Side, search: str) -> tuple[CandidateList, ...]:
    """Return the lists that a bundle's programs offer here.

    Args:
        side: A bundle that is trusted: its program is run.
        search: One of `SEARCHES`.

    Raises:
        FlytuneError: the program or the policy is malformed, or lowering it fails.
    """
    shapes = [one.shape.to_row() for one in side.lists]
    requests: dict[str, ServingPolicy] = {}
    for part in parts_of(side.manifest):
        policy = ServingPolicy.from_json(part["policy"])
        request: dict[str, Any] = {
            "policy": policy.to_json(),
            "search": search.upper(),
            "profile": None,
            "shapes": shapes,
        }
        if part["program"].get("kind") == "transformers":
            request["program"] = dict(part["program"])
        requests[json.dumps(request, sort_keys=True)] = policy
    found: list[CandidateList] = []
    for text, policy in requests.items():
        with tempfile.TemporaryDirectory(prefix="flytune-relist-") as directory:
            cache, result = Path(directory) / "cache", Path(directory) / "lists.pickle"
            # The C++ templates need the instruction set's name, not its trial builds.
            env = clean_environment(policy, cache, TORCHINDUCTOR_VEC_ISA_OK="1")
            what = "listing candidates again"
            run_module(PROBE, json.loads(text), result, env, what=what)
            made: Enumeration = pickle.loads(result.read_bytes())
        found += made.lists
    return tuple(found)


class Winners(NamedTuple):
    """The two winners of one list as candidates here."""

    task: TuneTask
    """Of both, and of the library's candidate, which says what is fused."""
    candidates: tuple[Candidate, ...]
    """The old winner, then the new one; one where both are one."""


def winners_in(
    pair: Pair, lists: Iterable[CandidateList]
) -> tuple[Winners | None, str]:
    """Return the two winners of a list, or why there is none.

    Both are for one list's tensors, also where two programs' lists offer them.
    """
    here = [one for one in lists if _is_list(pair.new, one)]
    if not here:
        return None, f"no list of the kind is offered here: {pair.new.records[0].op}"
    # The very list first, then those that differ in what only Inductor's keys tell: a
    # library's kernel has one hash in all of them.
    known = {r.choice_hash for tuned in (pair.old, pair.new) for r in tuned.records}
    here.sort(key=lambda one: -len(known & {c.choice_hash for c in one.candidates}))
    chosen: dict[str, Candidate] = {}
    for which, tuned in (("old", pair.old), ("new", pair.new)):
        winner = tuned.winner
        assert winner is not None, "only lists that two kernels won are asked"
        candidate = _offered(winner, here)
        if candidate is None:
            return None, f"the {which} winner is no candidate here: {_name(winner)}"
        chosen.setdefault(candidate.choice_hash, candidate)
    both = tuple(chosen.values())
    library = (c for c in here[0].candidates if c.backend == ATEN and c not in both)
    offered = replace(here[0], candidates=(*both, *library))
    task = TuneTask(pair.new.shape, offered, (pair.new.shape.module,))
    return Winners(task, both), ""


def _is_list(tuned: TunedList, offered: CandidateList) -> bool:
    """Whether a list that is offered here computes what a list on record does."""
    first = tuned.records[0]
    strides = tuple(spec.strides for spec in offered.inputs)
    offsets = tuple(spec.offset for spec in offered.inputs)
    return (
        offered.op == first.inductor_op
        and (strides, offsets) == (first.strides, first.offsets)
        and bool(planned_for(offered, (tuned.shape,)))
    )


def _offered(winner: TuningRecord, lists: Sequence[CandidateList]) -> Candidate | None:
    """Return a winner as a candidate: by Inductor's hash, else by what it is."""
    every = [candidate for one in lists for candidate in one.candidates]
    for candidate in every:
        if candidate.choice_hash == winner.choice_hash:
            return candidate
    return next((c for c in every if _is_choice(winner, c)), None)


def _is_choice(winner: TuningRecord, candidate: Candidate) -> bool:
    parts = (candidate.backend, candidate.template, candidate.config)
    return parts == (winner.backend, winner.template, winner.config)


def _name(winner: TuningRecord) -> str:
    return " ".join(filter(None, (winner.backend, winner.template, winner.config)))

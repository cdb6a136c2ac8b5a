"""What is compiled together, and who is found at fault where workers die."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from fakes import candidate

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.batches import (
    MOST_TOGETHER,
    Batches,
    BuildEvent,
    Ended,
    Lost,
    build_batches,
)
from flytune.tuner.candidate import BuildResult, Candidate

NAMES = [f"c{number}" for number in range(2000)]
Dies = Callable[[Candidate], Lost | None]


def lost_of(status: Status = Status.FAULT, *, blames: bool = True) -> Lost:
    return Lost((), status, "it died", blames)


@dataclass
class Simulated:
    """Builders that take one batch after another, some of which die."""

    dies: Dies = lambda _: None
    seconds: float = 0.01
    at_once: int = 4
    batches: list[list[str]] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self._waiting: list[Sequence[Candidate]] = []

    def most_at_once(self) -> int:
        return self.at_once

    def submit(self, batch: Sequence[Candidate]) -> None:
        assert len(self._waiting) < self.at_once
        self.batches.append([one.choice_hash for one in batch])
        self._waiting.append(batch)

    def wait(self) -> Sequence[BuildEvent]:
        batch = self._waiting.pop(0)
        events: list[BuildEvent] = []
        for at, one in enumerate(batch):
            if (lost := self.dies(one)) is not None:
                rest = tuple(batch[at:])
                return [*events, Lost(rest, lost.status, lost.reason, lost.blames)]
            done = BuildResult(one.choice_hash, Status.OK, compile_s=self.seconds)
            events.append(done)
        return [*events, Ended()]

    def close(self) -> None:
        self.closed = True


def built(builders: Simulated, names: Sequence[str] = NAMES) -> dict[str, BuildResult]:
    """Build all; each has one result."""
    # One that was pickled stands for all: ten thousand take a while.
    some = candidate("")
    candidates = [replace(some, choice_hash=name) for name in names]
    found = [r for r in build_batches(candidates, builders) if r]
    results = {result.choice_hash: result for result in found}
    assert len(results) == len(found) == len(names)
    assert builders.closed
    return results


def test_what_compiles_quickly_is_compiled_together() -> None:
    builders = Simulated(seconds=0.05)
    built(builders)
    # How long one takes is not known at first, and the last are shared out.
    assert [len(batch) for batch in builders.batches[:4]] == [1] * 4
    assert max(map(len, builders.batches)) == 20
    assert len(builders.batches[-1]) == 1
    assert [name for batch in builders.batches for name in batch] == NAMES
    assert len(builders.batches) < 2000 / 15


@pytest.mark.parametrize(
    ("seconds", "most"), [(0.0, MOST_TOGETHER), (0.4, 2), (1.0, 1), (30.0, 1)]
)
def test_a_batch_takes_a_second_or_one_compilation(seconds: float, most: int) -> None:
    builders = Simulated(seconds=seconds)
    built(builders)
    assert max(map(len, builders.batches)) == most


def test_batches_are_of_one_backend() -> None:
    batches = Batches([candidate("a"), candidate("b"), candidate("c", backend="x")])
    for name in "ab":
        batches.built(BuildResult(name, Status.OK, compile_s=0.01))
    assert [c.choice_hash for c in batches.next(1)] == ["a", "b"]
    assert [c.choice_hash for c in batches.next(1)] == ["c"]
    assert not batches.waiting


def test_the_one_that_kills_its_worker_is_found_and_costs_no_other() -> None:
    tries: Counter[str] = Counter()

    def dies(one: Candidate) -> Lost | None:
        tries[one.choice_hash] += 1
        return lost_of() if one.choice_hash in ("c100", "c1500") else None

    results = built(Simulated(dies))
    bad = {name for name, result in results.items() if result.status is not Status.OK}
    assert bad == {"c100", "c1500"}
    assert {results[name].reason for name in bad} == {"it died"}
    # Once among others, and twice by itself.
    assert [tries[name] for name in ("c100", "c1500")] == [3, 3]
    # Nothing is compiled again that was told of, and little that was not.
    assert sum(tries.values()) < len(NAMES) + 2 * MOST_TOGETHER


@pytest.mark.parametrize(
    ("status", "tries"),
    [(Status.TIMEOUT, 1), (Status.OUT_OF_MEMORY, 2), (Status.FAULT, 2)],
)
def test_how_often_one_is_tried_alone(status: Status, tries: int) -> None:
    count = 0

    def dies(_: Candidate) -> Lost:
        nonlocal count
        count += 1
        return lost_of(status)

    results = built(Simulated(dies), ["only"])
    assert results["only"] == BuildResult("only", status, "it died")
    assert count == tries


@pytest.mark.parametrize("seconds", [0.01, 2.0])
@pytest.mark.parametrize("seed", range(8))
def test_ten_thousand_survive_five_hundred_kills(seconds: float, seed: int) -> None:
    """Whom somebody kills is not at fault; who dies by himself is, all the same."""
    dice = random.Random(seed)
    names = [f"c{number}" for number in range(10_000)]
    killed = 0

    def dies(one: Candidate) -> Lost | None:
        nonlocal killed
        if one.choice_hash == "c5000":
            return lost_of()
        if dice.random() < 0.05:
            killed += 1
            return lost_of()
        return None

    results = built(Simulated(dies, seconds), names)
    bad = [name for name, result in results.items() if result.status is not Status.OK]
    assert bad == ["c5000"]
    assert killed > 400


def test_a_node_that_leaves_is_no_candidates_fault() -> None:
    left = Counter({name: 9 for name in NAMES[::50]})

    def dies(one: Candidate) -> Lost | None:
        if left[one.choice_hash]:
            left[one.choice_hash] -= 1
            return lost_of(blames=False)
        return None

    results = built(Simulated(dies))
    assert {result.status for result in results.values()} == {Status.OK}


def test_nothing_new_begins_once_it_is_to_stop() -> None:
    builders = Simulated(seconds=2.0)
    done: list[str] = []
    candidates = list(map(candidate, NAMES))
    for result in build_batches(candidates, builders, lambda: len(done) >= 10):
        if result is not None:
            done.append(result.choice_hash)
    # What was handed out is finished.
    assert done == NAMES[:13]


def test_what_was_handed_out_is_taken_back_where_the_build_ends() -> None:
    class Failing(Simulated):
        def wait(self) -> Sequence[BuildEvent]:
            raise FlytuneError("Ray has failed")

    builders = Failing()
    with pytest.raises(FlytuneError, match="Ray has failed"):
        built(builders)
    assert builders.closed

"""The search of one list: what each of its waves tries, and what came of it all."""

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from flytune.caches.columns import BUDGET, Status
from flytune.caches.records import TuningRecord
from flytune.tuner.candidate import ATEN, BuildResult, TuneTask
from flytune.tuner.decision import Decision, untimed_record
from flytune.tuner.recall import TRANSIENT, list_id
from flytune.tuner.smart.cost_model import CostModel, Observed
from flytune.tuner.smart.geometry import Geometry, geometry_of
from flytune.tuner.smart.limits import Limits, excess
from flytune.tuner.smart.neighbours import Neighbours, kernel_of

SHARE = 0.1
"""Of a list's candidates, that is compiled at most, but for `LEAST`."""
LEAST = 16
"""Candidates that are compiled of any longer list."""
SHORT = 32
"""Candidates of a list that is tried whole."""
WAVES = (0.5, 0.3, 0.2)
"""The part of that share that each wave takes."""
MODEL = "model"
"""The value of `pruned_by` of what the model expects to be slower."""
LEADERS = "leaders"
"""That of what was well in its wave, and behind those that raced again."""
_MOST_LEADERS = 8
_MOST_UNKNOWN = 10
_AT_RANDOM = 0.1
_OF_NEIGHBOURS = 0.25


def _is_well(record: TuningRecord) -> bool:
    return record.status is Status.OK


def _won(record: TuningRecord) -> bool:
    return record.winner


def _geometry(record: TuningRecord) -> Geometry | None:
    return geometry_of(record.backend, record.config)


class ListSearch:
    """One list, of which a wave after another is tried."""

    def __init__(
        self,
        task: TuneTask,
        limits: Limits,
        refused: Mapping[str, BuildResult] = MappingProxyType({}),
        first: Collection[str] = (),
        *,
        share: float = SHARE,
        seed: int = 0,
    ) -> None:
        """Leave out what the device cannot hold.

        Args:
            refused: What may not be tried, and why.
            first: Hashes of what comes in the first wave in any case.
            share: Of the candidates, that may be compiled.
            seed: Of what is tried at random.
        """
        self.task, self._refused, self._first = task, refused, first
        self._again: list[str] = []
        self.tried: dict[str, TuningRecord] = {}
        """What became of each candidate at last."""
        self._told: list[tuple[TuningRecord, ...]] = []
        self._seed = f"{seed} {list_id(task)}"
        self._blank = {
            c.choice_hash: untimed_record(task, c) for c in task.offered.candidates
        }
        self._seen = {n: Observed(r, limits) for n, r in self._blank.items()}
        self._over = {}
        for name, record in self._blank.items():
            rule, words = excess(record, _geometry(record), limits)
            if rule:
                self._over[name] = (rule, words)
        number = len(self._blank)
        self._is_short = number <= SHORT
        most = max(LEAST, math.floor(share * number))
        self._most = number if self._is_short else most
        self._predicted: dict[str, float] = {}
        self._factor = 1.0
        self._race: tuple[str, ...] = ()
        self._winner: str | None = None

    @property
    def waves(self) -> int:
        """How many there have been."""
        return len(self._told)

    def known(self, waves: int) -> Iterator[TuningRecord]:
        """Yield what became of each candidate in the first so many waves."""
        told = self._told[:waves]
        yield from {r.choice_hash: r for some in told for r in some}.values()

    @property
    def compiled(self) -> int:
        """How many candidates were tried that are no library's."""
        return sum(record.backend != ATEN for record in self.tried.values())

    def next(self, model: CostModel, neighbours: Neighbours) -> tuple[str, ...]:
        """Return the hashes of the next wave, the leaders so far among them.

        There is no next one where all is tried, or the share is spent: what the model
        expects to be much slower may yet be the best, of a shape unlike the known ones.
        """
        left = {n: r for n, r in self._blank.items() if self._is_left(n)}
        if self._is_short and left and not self._is_untimed():
            return (*self.leaders(), *left)
        self._predict(model, left)
        room = max(self._room(), len(self._again))
        if self._is_short or not left or room < 1 or self._is_untimed():
            return ()
        ordered = itertools.chain(
            self._again,
            self._nearest(left, room)
            if self.waves
            else self._firsts(left, neighbours, room),
            self._by_prediction(left, room),
        )
        picks: dict[str, None] = {}
        for name in ordered:
            picks[name] = None
            if self._cost(picks) >= room:
                break
        self._again = []
        return (*self.leaders(), *picks)

    def recalled(self, waves: Iterable[Sequence[TuningRecord]]) -> None:
        """Learn of the waves that an interrupted build has done.

        From one on that timed what may not be tried any more all is done again; what
        failed by chance has another.
        """
        for wave in waves:
            timed = {r.choice_hash for r in wave if r.median_us is not None}
            if not timed.isdisjoint(self._refused):
                return
            self.told(wave)
        chance = [n for n, r in self.tried.items() if r.status in TRANSIENT]
        for name in chance:
            del self.tried[name]
        self._again = chance

    def told(self, records: Sequence[TuningRecord]) -> tuple[TuningRecord, ...]:
        """Learn what became of a wave, its winner marked if it has one.

        Returns:
            The records, with what was expected of each.
        """
        expected = tuple(map(self._with_prediction, records))
        self._told.append(expected)
        for record in expected:
            before = self.tried.get(record.choice_hash)
            # What failed by chance keeps the time that it has.
            if before is None or record.status not in TRANSIENT or not _is_well(before):
                self.tried[record.choice_hash] = replace(record, winner=False)
        survivors = [r for r in expected if _is_well(r) and not r.pruned_by]
        survivors.sort(key=lambda r: r.median_us or math.inf)
        names = [r.choice_hash for r in (*filter(_won, expected), *survivors)]
        # Where nobody has survived those of the race before stand, if they are well.
        names = names or [n for n in self._race if _is_well(self.tried[n])]
        self._race = tuple(dict.fromkeys(names))
        self._winner = next(iter(self._race), None)
        return expected

    def _with_prediction(self, record: TuningRecord) -> TuningRecord:
        name = record.choice_hash
        before = self.tried.get(name)
        us = before.predicted_us if before else self._predicted.get(name)
        return record if us is None else replace(record, predicted_us=us)

    @property
    def best_us(self) -> float | None:
        """What the winner so far takes; None where there is none."""
        return None if self._winner is None else self.tried[self._winner].median_us

    def leaders(self) -> tuple[str, ...]:
        """Return the hashes of those that race again, the winner so far first."""
        return self._race[:_MOST_LEADERS]

    def decision(self, *, cut: bool = False) -> Decision | None:
        """Return the decision; None where nothing that was tried has survived.

        Args:
            cut: Whether a budget has ended the search.
        """
        if self._winner is None:
            return None
        rule = BUDGET if cut else MODEL
        return Decision(self.task, tuple(self._record(n, rule) for n in self._blank))

    def _record(self, name: str, left_out: str) -> TuningRecord:
        if (tried := self.tried.get(name)) is not None:
            lost = tried.status is Status.OK and name not in self._race
            rule = tried.pruned_by or (LEADERS if lost else None)
            return replace(tried, pruned_by=rule, winner=name == self._winner)
        blank = self._blank[name]
        if (refusal := self._refused.get(name)) is not None:
            return replace(blank, status=refusal.status, reason=refusal.reason)
        if name in self._over:
            rule, words = self._over[name]
            return replace(
                blank,
                status=Status.OVER_RESOURCES,
                reason=f"not compiled: {words}",
                pruned_by=rule,
            )
        return replace(blank, predicted_us=self._expected(name), pruned_by=left_out)

    def _is_left(self, name: str) -> bool:
        return not any(name in some for some in (self.tried, self._over, self._refused))

    def _is_untimed(self) -> bool:
        """Whether the device cannot time the list at all."""
        race = [self.tried[name] for name in self._race]
        return bool(race) and all(r.median_us is None for r in race)

    def _room(self) -> int:
        """Return how many compilations the next wave may take."""
        if self.waves >= len(WAVES):
            return 0
        until = round(sum(WAVES[: self.waves + 1]) * self._most)
        return until - self.compiled

    def _cost(self, names: Mapping[str, None]) -> int:
        return sum(self._blank[name].backend != ATEN for name in names)

    def _firsts(
        self, left: Mapping[str, TuningRecord], neighbours: Neighbours, room: int
    ) -> list[str]:
        """Return the libraries', each template's expected best, and what won nearby.

        Of a template whose parameters tell nothing some come, for none is its best.
        """
        picks = [name for name, record in left.items() if record.backend == ATEN]
        picks += [name for name in self._first if name in left]
        taken: Counter[object] = Counter()
        unknown = min(_MOST_UNKNOWN, max(1, room // 3))
        for name in sorted(left, key=self._predicted_or_last):
            record = left[name]
            most = unknown if _geometry(record) is None else 1
            template = (record.backend, record.template)
            if record.backend != ATEN and taken[template] < most:
                taken[template] += 1
                picks.append(name)
        by_kernel = {kernel_of(record): name for name, record in left.items()}
        some = next(iter(left.values()))
        near = [by_kernel[k] for k in neighbours.of(some) if k in by_kernel]
        return [*picks, *near[: math.floor(_OF_NEIGHBOURS * room)]]

    def _nearest(self, left: Mapping[str, TuningRecord], room: int) -> list[str]:
        """Return what is least unlike the leader: the model may not see that far."""
        leader = kernel_of(self.tried[self._race[0]]) if self._race else None
        if leader is None:
            return []
        steps = {
            name: leader[2].steps_to(kernel[2])
            for name, record in left.items()
            if (kernel := kernel_of(record)) is not None and kernel[:2] == leader[:2]
        }
        ordered = sorted(steps, key=lambda n: (steps[n], self._predicted_or_last(n)))
        return ordered[: math.floor(_OF_NEIGHBOURS * room)]

    def _by_prediction(
        self, left: Mapping[str, TuningRecord], room: int
    ) -> Iterator[str]:
        """Yield candidates, the fastest by prediction first, but some at random.

        Without a prediction all are at random.
        """
        dice = random.Random(f"{self._seed} {self.waves}")
        names = list(left)
        dice.shuffle(names)
        ordered = sorted(names, key=self._predicted_or_last)
        yield from names[: max(1, math.floor(_AT_RANDOM * room))]
        yield from ordered

    def _predicted_or_last(self, name: str) -> float:
        return self._predicted.get(name, math.inf)

    def _predict(self, model: CostModel, left: Mapping[str, TuningRecord]) -> None:
        if not model.knows:
            return
        # What has no parameters is not predicted: it comes with the firsts.
        known = [n for n, record in left.items() if _geometry(record) is not None]
        predicted = model.predict_us([self._seen[name] for name in known])
        self._predicted |= dict(zip(known, predicted, strict=True))
        pairs = [
            (record.median_us, record.predicted_us)
            for record in self.tried.values()
            if record.median_us is not None and record.predicted_us is not None
        ]
        if pairs:
            logs = [math.log(us / said) for us, said in pairs]
            self._factor = math.exp(statistics.median(logs))

    def _expected(self, name: str) -> float | None:
        us = self._predicted.get(name)
        return None if us is None else us * self._factor

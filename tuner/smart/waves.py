"""Smart search of many lists: each has a wave built and timed, and all learn of it."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from flytune.caches.records import TuningRecord
from flytune.caches.words import counted
from flytune.tuner.candidate import BuildResult, ListKey, TuneTask
from flytune.tuner.decision import Decision, judged, none_survived
from flytune.tuner.overlap import Timed
from flytune.tuner.recall import Recall
from flytune.tuner.recorded_runner import only
from flytune.tuner.smart.cost_model import CostModel, Observed
from flytune.tuner.smart.limits import Limits
from flytune.tuner.smart.list_search import SHARE, ListSearch
from flytune.tuner.smart.neighbours import Neighbours

Time = Callable[[Sequence[TuneTask]], Iterable[Timed]]
"""Builds and times lists, in no order; some may be left out where a budget ends."""


class SmartSearch:
    """Tries the candidates of lists in waves.

    For a seed, and the same knowledge and times, it tries the same candidates.
    """

    def __init__(
        self,
        limits: Limits,
        earlier: Iterable[Observed] = (),
        *,
        share: float = SHARE,
        seed: int = 0,
    ) -> None:
        """Begin with what is known.

        Args:
            limits: Of the device that is timed on.
            earlier: What other builds have timed.
            share: Of a list's candidates, that may be compiled.
            seed: Of what is tried at random, and of the model.
        """
        self._limits, self._earlier = limits, tuple(earlier)
        self._share, self._seed = share, seed

    def decisions(
        self,
        time: Time,
        recall: Recall,
        say: Callable[[str], None],
        tasks: Sequence[TuneTask],
        last: Mapping[ListKey, str],
        refusals: Callable[[TuneTask], Mapping[str, BuildResult]] = lambda _: {},
        first: Mapping[ListKey, Collection[str]] = MappingProxyType({}),
        goes_on: Callable[[TuneTask], bool] = lambda _: True,
        heat: Callable[[TuneTask, float | None], float] = lambda _, __: 0.0,
        decided: Callable[[TuneTask], None] = lambda _: None,
        failed: Callable[[TuneTask], None] = lambda _: None,
    ) -> Iterator[Decision]:
        """Yield a decision for every list, in no order.

        Where `goes_on` ends the search a list that had a wave is decided by what that
        told, and its other candidates are marked; of the others there is none.

        Args:
            recall: Holds the waves that are done; one that an interrupted build has
                done is not done again.
            last: By a list's key the winner of an older bundle, which a tie goes to.
            refusals: Returns what of a list may not be tried, and why.
            first: By a list's key what of it is tried first in any case.
            goes_on: Says whether a list may be searched further.
            heat: Of a list and what its best takes so far: the hottest come first.
            decided: Told of each list that has a winner, while it is searched on: from
                then on `goes_on` cannot leave it without one.
            failed: Told of each that has none though it had a wave: `goes_on` must not
                leave it before it has one.

        Raises:
            FlytuneError: a list has no candidate that survives.
        """
        searches = [
            ListSearch(
                *(task, self._limits, refusals(task), first.get(task.offered.key, ())),
                share=self._share,
                seed=self._seed,
            )
            for task in tasks
        ]
        for search in searches:
            search.recalled(recall.tried(search.task))
            if search.waves:
                (decided if search.leaders() else failed)(search.task)
        under_way = searches
        while under_way:
            # Once a budget has ended those alone go on that have no winner.
            going = [search for search in under_way if goes_on(search.task)]
            waves = min(search.waves for search in going or under_way)
            due = [search for search in under_way if search.waves == waves]
            chosen = self._chosen(searches, due, waves)
            ended = [search for search in due if search not in chosen]
            yield from map(_decided, ended)
            under_way = [search for search in under_way if search not in ended]
            if not any(goes_on(search.task) for search in under_way):
                break
            chosen = {s: names for s, names in chosen.items() if goes_on(s.task)}
            if not chosen:
                continue
            say(_words(waves, chosen))
            hottest = sorted(chosen, key=lambda one: -heat(one.task, one.best_us))
            ordered = {search: chosen[search] for search in hottest}
            for search, records in _timed(ordered, time, last):
                recall.keep_tried(search.task, waves, search.told(records))
                (decided if search.leaders() else failed)(search.task)
        cut = (search.decision(cut=True) for search in under_way)
        yield from (decision for decision in cut if decision is not None)

    def _chosen(
        self, searches: Iterable[ListSearch], due: Iterable[ListSearch], waves: int
    ) -> dict[ListSearch, tuple[str, ...]]:
        """Return what each search tries next; those that end are left out."""
        known = [
            *self._earlier,
            *(
                Observed(record, self._limits)
                for search in searches
                # Of this wave others may be done already, in an interrupted build.
                for record in search.known(waves)
            ),
        ]
        model = CostModel(known, seed=self._seed)
        neighbours = Neighbours(known)
        chosen = {search: search.next(model, neighbours) for search in due}
        return {search: names for search, names in chosen.items() if names}


def _timed(
    wave: Mapping[ListSearch, Sequence[str]], time: Time, last: Mapping[ListKey, str]
) -> Iterator[tuple[ListSearch, tuple[TuningRecord, ...]]]:
    """Yield each search with what became of its wave."""
    # Two lists may offer the same, and differ in what is not tried.
    by_key: dict[object, list[ListSearch]] = {}
    tasks: dict[object, TuneTask] = {}
    for search, names in wave.items():
        task = only(search.task, names)
        by_key.setdefault(task.offered.key, []).append(search)
        tasks.setdefault(task.offered.key, task)
    for timed in time(list(tasks.values())):
        builds = {build.choice_hash: build for build in timed.builds}
        for search in by_key[timed.task.offered.key]:
            task = only(search.task, wave[search])
            own = [builds[c.choice_hash] for c in task.offered.candidates]
            before = last.get(search.task.offered.key, "")
            yield search, judged(task, own, timed.results, before)


def _decided(search: ListSearch) -> Decision:
    decision = search.decision()
    if decision is None:
        raise none_survived(search.task, search.tried.values())
    return decision


def _words(waves: int, wave: Mapping[ListSearch, Sequence[str]]) -> str:
    every = sum(len(search.task.offered.candidates) for search in wave)
    tried = sum(len(names) for names in wave.values())
    return (
        f"tune: wave {waves + 1}: {tried} of {every} candidates of "
        f"{counted(len(wave), 'list')}"
    )

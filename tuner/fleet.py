"""`flytune build --models`: several models, what they share tuned once.

All are planned, then all are tuned, by workers that start once, and then each is baked:
a bake has the host to itself.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from flytune.caches.bundle import Bundle
from flytune.caches.held import records_of
from flytune.caches.lists import lists_of
from flytune.caches.policy import uses_flydsl
from flytune.shapes.errors import FlytuneError
from flytune.tuner.account import Account
from flytune.tuner.budget import Meter
from flytune.tuner.build import Tuned, finish, tune
from flytune.tuner.fleet_plan import FleetModel, table
from flytune.tuner.fleet_purse import FleetPurse
from flytune.tuner.journal import JOURNAL, Journal
from flytune.tuner.progress import Progress
from flytune.tuner.publish import Built
from flytune.tuner.shared_lists import SharedLists, Sharing
from flytune.tuner.spent_words import budget_text
from flytune.tuner.summary import verdict_lines
from flytune.tuner.work import StartFarm, farm_for
from flytune.tuner.workers import Farm

BUILT, KEPT, FAILED, MISSES = "built", "kept", "failed", "misses"


@dataclass(slots=True)
class Outcome:
    """What became of one model."""

    model: FleetModel
    sharing: Sharing
    account: Account | None = None
    """None of a model that is kept."""
    tuned: Tuned | None = None
    """Until it is baked."""
    bundle: Bundle | None = None
    result: str = FAILED

    def row(self) -> tuple[str, ...]:
        """Return its row of the summary."""
        lists = (len(self.sharing.choices), len(self.sharing.timed))
        counts = [str(n) for n in (*lists, len(self.sharing.taken))]
        if self.result == KEPT:
            counts = ["-"] * 3
        seconds = f"{self.model.progress.elapsed_s:.1f}"
        out = "-" if self.bundle is None else str(self.model.plan.out)
        return (self.model.name, self.result, *counts, seconds, out)


def build_fleet(
    models: Sequence[FleetModel], progress: Progress, meter: Meter | None = None
) -> tuple[Outcome, ...]:
    """Build every model that is not built yet; one that fails costs no other.

    Args:
        meter: Counts from the start of the command; None: from now.

    Raises:
        KeyboardInterrupt: it was stopped; what was finished is kept.
    """
    shared = _shared(models)
    outcomes = tuple(Outcome(m, Sharing(shared[m.key])) for m in models)
    for outcome in outcomes:
        if (kept := outcome.model.kept) is not None:
            outcome.bundle, outcome.result = kept, KEPT
            progress.say(f"{outcome.model.name}: kept: {kept.path} is of this build")
    left = [outcome for outcome in outcomes if outcome.result != KEPT]
    purse = FleetPurse(meter or Meter())
    for outcome in left:
        model = outcome.model
        outcome.account = purse.open(
            *(model.prepared, model.progress.elapsed_s, model.key)
        )
    purse.say(progress)
    with contextlib.ExitStack() as journals:
        with _Farms() as farms:
            for outcome in _by_workers(left):
                purse.begin(outcome.account)
                with _failing(outcome):
                    _tune(outcome, farms, journals)
                farms.stop_runners()
        for outcome in outcomes:
            if (tuned := outcome.tuned) is not None:
                outcome.tuned = None
                with _failing(outcome):
                    _end(outcome, finish(tuned, outcome.model.progress))
    purse.close(progress)
    return outcomes


def summary_table(outcomes: Iterable[Outcome]) -> str:
    """Return what became of each model, a row each."""
    titles = ("model", "result", "lists", "timed", "shared", "seconds", "bundle")
    rows = [titles, *(outcome.row() for outcome in outcomes)]
    return table(rows, numbers=("lists", "timed", "shared", "seconds"))


def budget_lines(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield what the budget left no time for, a line each model."""
    for outcome in outcomes:
        bundle = outcome.bundle
        if bundle is not None and (text := budget_text(bundle.manifest)):
            yield f"budget  {outcome.model.name}: {text}"


def _shared(models: Iterable[FleetModel]) -> Mapping[str, SharedLists]:
    """Return what is known of the lists before the first is tuned, by `key`."""
    shared: dict[str, SharedLists] = {}
    for model in models:
        lists = shared.setdefault(model.key, SharedLists())
        fresh = model.options.fresh and model.kept is None
        lists.read(model.plan.work, fresh=fresh)
    for model in models:
        kept = model.kept
        if kept is not None and not kept.manifest.compiled_only:
            # Its directory may be gone since, or be another host's.
            shared[model.key].add_bundle(lists_of(records_of(kept)))
    return shared


def _tune(outcome: Outcome, farms: "_Farms", journals: contextlib.ExitStack) -> None:
    """Tune one model; its journal stays locked until all are baked."""
    model = outcome.model
    journal = journals.enter_context(Journal(model.plan.work / JOURNAL))
    start = farms.start_for(model)
    given = (journal, start, model.progress, outcome.sharing, outcome.account)
    tuned = tune(model.prepared, *given)
    if isinstance(tuned, Built):
        _end(outcome, tuned)
    else:
        outcome.tuned = tuned


def _end(outcome: Outcome, built: Built) -> None:
    """Note the bundle that was published, and say of one that misses why."""
    outcome.bundle = Bundle.open(built.out)
    outcome.result = BUILT if built.ok else MISSES
    if not built.ok and built.verdict is not None:
        for line in verdict_lines(built.verdict):
            outcome.model.progress.say(line)


@contextlib.contextmanager
def _failing(outcome: Outcome) -> Iterator[None]:
    """Print what fails one model, and go on with the others."""
    try:
        yield
    except FlytuneError as error:
        click.echo(f"error: {outcome.model.name}: {error.line}", err=True)
        if error.hint is not None:
            click.echo(f"hint: {error.hint}", err=True)
    finally:
        outcome.model.progress.wait()


def _by_workers(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Yield models in their order, but those that the same workers tune in a row."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(_workers_key(outcome.model), []).append(outcome)
    for group in groups.values():
        yield from group


def _workers_key(model: FleetModel) -> str:
    """Return what decides on workers, as `farm_for` takes it."""
    plan, profile = model.plan, model.plan.profile
    env = dict(plan.policy.env)
    row = None if profile is None else profile.to_json()
    flydsl = uses_flydsl(plan.policy)
    return json.dumps([model.options.ray, env, row, flydsl], sort_keys=True)


@dataclass(slots=True)
class _Farms:
    """The workers of one model after another; models that may share them do."""

    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _farm: Farm | None = None
    _key: str = ""

    def __enter__(self) -> "_Farms":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def start_for(self, model: FleetModel) -> StartFarm:
        """Return what starts a model's workers, unless those that run are as good."""
        key = _workers_key(model)

        def start() -> Farm:
            if self._farm is None or self._key != key:
                self._close()
                farm = farm_for(model.plan, model.options)
                self._farm, self._key = self._stack.enter_context(farm), key
            return self._farm

        return start

    def stop_runners(self) -> None:
        """Give back the devices, and on a CPU the cores, for the next model."""
        if self._farm is not None:
            self._farm.stop_runners()

    def _close(self) -> None:
        self._farm = None
        self._stack.close()


def bundles_of(outcomes: Iterable[Outcome]) -> list[tuple[str, Bundle]]:
    """Return the bundles that are of use, each with its model's name."""
    good = (BUILT, KEPT)
    return [
        (outcome.model.name, outcome.bundle)
        for outcome in outcomes
        if outcome.bundle is not None and outcome.result in good
    ]


def all_good(outcomes: Iterable[Outcome]) -> bool:
    """Whether every model has a bundle that is of use."""
    return all(outcome.result in (BUILT, KEPT) for outcome in outcomes)


def made_folder(folder: Path) -> bool:
    """Make the folder of a fleet's bundles; return whether it was not there.

    Raises:
        FlytuneError: it cannot be made, or is no folder.
    """
    if folder.is_dir():
        return False
    try:
        folder.mkdir()
    except OSError as error:
        raise FlytuneError(
            f"cannot make a folder for the bundles: {folder}: {error.strerror}"
        ) from error
    return True

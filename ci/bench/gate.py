"""How often the gate errs: one thing tuned twice, and one kernel that takes 5 % longer.

`python ci/bench/gate.py [--quick] [--comparisons 200] [--twins 100] [--slowdowns 100]`

Every tune is a process of its own and times real kernels, and is compared with the one
before it, by the very code of `flytune check NEW --baseline OLD --retime`: by the times
on record, and where those decide nothing by timing both winners again.
A comparison of a thing with itself that
alarms is a false alarm; of them some are of a twin, the winner under another name,
which is raced whatever the records say. A slowdown is a kernel whose launch waits for
5 % of its own time, in place of the baseline's winner of one list. Exits with 1 where
more than one comparison in 200 is a false alarm, or fewer than 95 slowdowns in 100 are
found.
"""

import functools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from gate_tunes import SLOWDOWN, Tuner
from pieces import Bench, Pieces, bench_options
from results import RESULTS, write_result
from stages import run_stages

from flytune.caches.policy import ServingPolicy
from flytune.caches.regression.check import Check, Outcome
from flytune.caches.regression.finding import Kind, Standing
from flytune.shapes.errors import FlytuneError
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.workers import Farm

TINY = Path(__file__).parents[2] / "tests" / "data" / "tiny-llama.json"
# Kernels of 0.2 to 2 ms on one core.
SIZES = {"hidden_size": 2048, "intermediate_size": 1024, "vocab_size": 2000}
TOKENS = (32,)
# Of an accelerator's lists the long ones are of many tokens.
ACCELERATOR_MODEL, ACCELERATOR_TOKENS = "Llama-3.1-8B", (16, 1024)
ALLOWED_ALARMS = 1 / 200
WANTED_FOUND = 0.95
_TIMES = (Kind.SLOWER, Kind.SLOWER_PASS)
QUICK = {"comparisons": 1, "twins": 1, "slowdowns": 1, "lists": 2}


@click.command()
@click.option("--quick", is_flag=True, help="One of each, of two lists: a test.")
@click.option("--comparisons", default=200, show_default=True)
@click.option("--twins", default=100, show_default=True)
@click.option("--slowdowns", default=100, show_default=True)
@click.option("--lists", default=3, show_default=True, help="Of a tune.")
@click.option("--threads", default=1, show_default=True)
@click.option(
    "--results", default=RESULTS, show_default=True, type=click.Path(path_type=Path)
)
@bench_options
def main(
    quick: bool,
    comparisons: int,
    twins: int,
    slowdowns: int,
    lists: int,
    threads: int,
    results: Path,
    device: str,
    minutes: float | None,
    state: Path | None,
    work: Path | None,
) -> None:
    """Count false alarms, and slowdowns that are found."""
    if quick:
        comparisons, twins, slowdowns, lists = QUICK.values()
    bench = Bench("gate", device, minutes, state, work)
    with bench.in_pieces(lists=lists, threads=threads) as pieces:
        rows = _measured(bench, pieces, comparisons, twins, slowdowns, lists, threads)
    figures = figures_of(rows)
    print(figures)
    print(f"wrote {write_result('gate', bench.slug, figures, rows, results)}")
    if not good(figures):
        raise SystemExit(1)


def _measured(
    bench: Bench,
    pieces: Pieces,
    comparisons: int,
    twins: int,
    slowdowns: int,
    lists: int,
    threads: int,
) -> list[dict[str, Any]]:
    arguments = _arguments(bench, threads)
    first = bench.work / "first"
    build = functools.partial(run_stages, arguments, first)
    built = pieces.unit("build", build, expected_s=120, made=first)
    with ExitStack() as stack:

        @functools.cache
        def tuner() -> Tuner:
            policy = ServingPolicy.from_json(built["policy"])
            return Tuner(built, lists, stack.enter_context(_farm(policy)))

        def unit(name: str, work: Callable[[Tuner], Any]) -> Any:
            return pieces.unit(name, lambda: work(tuner()), expected_s=60)

        def baseline(number: int) -> Path:
            folder = bench.work / "tunes" / str(number)
            pieces.unit(
                f"tune {number}",
                lambda: str(tuner().tune(folder / "bundle")),
                expected_s=30,
                made=folder,
            )
            return folder / "bundle"

        rows = []
        for at in range(comparisons):
            pair = baseline(at + 1), baseline(at)
            row = unit(f"same {at}", lambda t, pair=pair: row_of(t.compare(*pair)))
            rows.append({"made": "nothing", **row})
        for kind, share, number in (
            ("twin", 0.0, twins),
            ("slowdown", SLOWDOWN, slowdowns),
        ):
            for at in range(number):
                old = baseline(at)
                changed = functools.partial(_changed, bench.work, old, at, share)
                rows.append({"made": kind, **unit(f"{kind} {at}", changed)})
    return rows


def _arguments(bench: Bench, threads: int) -> list[str]:
    if bench.device != "cpu":
        return bench.build_arguments(ACCELERATOR_MODEL, ACCELERATOR_TOKENS)
    model = bench.work / "gate.json"
    model.write_text(json.dumps({**json.loads(TINY.read_bytes()), **SIZES}))
    arguments = bench.build_arguments(str(model), TOKENS)
    return [*arguments, "--threads", str(threads)]


def _farm(policy: ServingPolicy) -> Farm:
    from flytune.caches.device_profile import live_profile

    profile = None if policy.device == "cpu" else live_profile()
    return Farm(None, policy.env, Deadlines(), profile)


def _changed(
    work: Path, baseline: Path, at: int, share: float, tuner: Tuner
) -> dict[str, Any]:
    """Tune with one kernel changed, and compare."""
    number = at % tuner.long
    tasks = tuner.slower(baseline, number, share)
    new = work / "changed"
    shutil.rmtree(new, ignore_errors=True)
    tuner.tune(new, tasks)
    # Else the records of a quiet device would spare a twin its race.
    checked = tuner.compare(new, baseline, tasks, raced=not share)
    row = row_of(checked, str(tasks[number].shape))
    return {"list": number, **row}


def row_of(checked: Check, changed: str = "") -> dict[str, Any]:
    """Return a comparison's row.

    Args:
        changed: The shape whose kernel was changed, if one was.

    Raises:
        FlytuneError: it fails by something that is no time.
    """
    fails = checked.of(Standing.FAILS)
    for finding in fails:
        if finding.kind not in _TIMES:
            raise FlytuneError(f"the bundles differ: {finding.kind}: {finding.line}")
    again = checked.retimed
    assert again is not None, "asked for"
    slower = [f.subject for f in fails if f.kind is Kind.SLOWER]
    return {
        "outcome": checked.outcome.name.lower(),
        "slower": slower,
        "undecided": [f.line for f in checked.of(Standing.UNDECIDED)],
        "found": bool(changed) and any(name.startswith(changed) for name in slower),
        "retimed": again.raced,
        "processes": again.processes[1],
        "values": {
            pair.name: [round(value, 5) for value in raced.values]
            for pair, raced in again.lists.values()
            if raced.values
        },
        "ratios": {
            one.name: round(one.ratio, 5)
            for one in checked.times.lists
            if one.shift and one.shift.race
        },
    }


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures; what is undecided is no alarm, and not found."""
    made = [row for row in rows if row["made"] == "slowdown"]
    same = [row for row in rows if row["made"] != "slowdown"]
    alarm = Outcome.REGRESSION.name.lower()
    undecided = Outcome.UNDECIDED.name.lower()
    return {
        "comparisons": len(same),
        "false_alarms": sum(row["outcome"] == alarm for row in same),
        "comparisons_undecided": sum(row["outcome"] == undecided for row in same),
        "twins": sum(row["made"] == "twin" for row in same),
        "slowdowns_made": len(made),
        "slowdowns_found": sum(row["found"] for row in made),
        "slowdowns_undecided": sum(row["outcome"] == undecided for row in made),
        "slowdown": SLOWDOWN,
        "retimed": sum(bool(row["retimed"]) for row in rows),
        "most_processes": max((row["processes"] for row in rows), default=0),
    }


def good(figures: Mapping[str, Any]) -> bool:
    """Whether the gate errs as rarely as is promised."""
    alarms = figures["false_alarms"] <= ALLOWED_ALARMS * figures["comparisons"]
    found = figures["slowdowns_found"] >= WANTED_FOUND * figures["slowdowns_made"]
    return alarms and found


if __name__ == "__main__":
    main()

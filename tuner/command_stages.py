"""What a build does with a command: runs it to list its candidates, and to bake it."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flytune.caches.command import (
    CommandRun,
    CommandSpec,
    command_environment,
    last_words,
    run_watched,
)
from flytune.caches.ledger import Event, Kind
from flytune.caches.ledger_file import joined
from flytune.caches.policy import ServingPolicy, uses_flydsl
from flytune.caches.ranks import absent_ranks, ranks_row
from flytune.caches.watch import Watch
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import Enumeration
from flytune.tuner.command_probe import read_lists

if TYPE_CHECKING:
    from flytune.tuner.plan import Plan

TIMINGS = "timings.json"
"""In a build's directory: Inductor's timings file, for any cache directory."""
_PROBE = "flytune.tuner.command_probe"


def list_command(plan: "Plan", spec: CommandSpec, space: str) -> Enumeration:
    """Run a command once and return the lists that its processes were offered.

    What it compiles meanwhile is thrown away.

    Raises:
        FlytuneError: it fails, or compiles nothing.
    """
    with tempfile.TemporaryDirectory(prefix="flytune-enumerate-") as directory:
        folder, cache_dir = Path(directory) / "seen", Path(directory) / "cache"
        folder.mkdir()
        env = command_environment(plan.policy, cache_dir)
        # The C++ templates need the instruction set's name, not its trial builds.
        env["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
        watch = Watch(
            policy=plan.policy,
            search=space,
            also=(_PROBE,),
            flydsl=uses_flydsl(plan.policy),
        )
        run = _logged(plan, spec, env, watch, "enumerate", folder)
        refuse_unseen(event for one in run.processes for event in one.events)
        return read_lists(folder)


def run_pass(
    plan: "Plan",
    spec: CommandSpec,
    policy: ServingPolicy,
    cache_dir: Path,
    number: int,
    space: str,
) -> dict[str, Any]:
    """Run a command in the bake's directory; return a result as a session's.

    Raises:
        FlytuneError: it fails, or only some of its ranks compile.
    """
    timings = plan.work / TIMINGS
    watch = Watch(
        policy=policy,
        search=space,
        keep_descents=number > 1 and plan.profile is not None,
        timings=timings if timings.exists() else None,
    )
    env = command_environment(policy, cache_dir)
    run = _logged(plan, spec, env, watch, f"bake-{number}")
    if absent := absent_ranks(run.processes):
        raise FlytuneError(
            f"{absent[0]} of the command compiles nothing while others do",
            hint="a bundle for them would keep the others waiting for that one",
        )
    return {
        "ledger": joined(run.processes),
        "inductor_config": {},
        "peak_gib": run.peak_gib,
        "ranks": ranks_row(run.processes),
    }


def refuse_unseen(events: Iterable[Event]) -> None:
    """Refuse a run that could not be watched.

    Raises:
        FlytuneError: there was such a thing.
    """
    for event in events:
        if event.kind is Kind.UNSEEN:
            raise FlytuneError(f"the program cannot be watched: {event.what}")


def _logged(
    plan: "Plan",
    spec: CommandSpec,
    environment: Mapping[str, str],
    watch: Watch,
    name: str,
    folder: Path | None = None,
) -> CommandRun:
    """Run the command with its output in a file of the build's."""
    log = plan.work / f"{name}.log"
    with log.open("wb") as output:
        run = run_watched(spec.command, environment, watch, output, folder)
    if run.code:
        raise FlytuneError(
            f"the command failed with exit {run.code}: {last_words(log)}",
            hint=f"all that it said is in {log}",
        )
    return run


def command_name(command: Sequence[str]) -> str:
    """Return what a command is called: its script's name, or its program's."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return Path(script).name.removesuffix(".py")

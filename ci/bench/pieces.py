"""Benchmarks in pieces: what is measured is kept, and the same command goes on.

A device may be at hand for minutes. Each unit of work is in a state file once it is
done, and one that would not end in time is left to the next run.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from processes import threads

from flytune.caches.compat import torch_version
from flytune.caches.device_profile import live_profile
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError

MORE = 75
"""Exit code of a run that has more to do: `EX_TEMPFAIL` of sysexits.h."""
# In a directory that a unit has filled: one that was killed meanwhile has none.
_DONE = "done"


class OutOfTime(Exception):
    """The unit that is named would not end in time."""


class Budget:
    """The minutes that one run may take; None is no limit."""

    def __init__(
        self, minutes: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = None if minutes is None else 60 * minutes
        self._clock, self._start = clock, clock()
        self._begun = False

    def begin(self, expected_s: float) -> bool:
        """Whether a unit of so long may begin; a run's first always may.

        Else a unit that is longer than the whole budget would never be done.
        """
        spent = self._clock() - self._start
        fits = self._seconds is None or spent + expected_s <= self._seconds
        may = fits or not self._begun
        self._begun = True
        return may


class State:
    """Units by name, in a JSON file that is replaced whole after each.

    Raises:
        click.ClickException: the file is of a run with other options.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        # As it comes back from a file: lists for tuples.
        self._identity = json.loads(json.dumps(identity))
        self._units: dict[str, dict[str, Any]] = self._read()

    def __contains__(self, name: str) -> bool:
        return name in self._units

    def __len__(self) -> int:
        return len(self._units)

    def result(self, name: str) -> Any:
        return self._units[name]["result"]

    def longest_s(self, kind: str) -> float:
        """Return the longest that a unit of this kind took; 0 where none is done."""
        return max(
            (u["seconds"] for name, u in self._units.items() if kind_of(name) == kind),
            default=0.0,
        )

    def keep(self, name: str, result: Any, seconds: float) -> None:
        """Store a unit; it is on disk when this returns."""
        self._units[name] = {"seconds": round(seconds, 2), "result": result}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"identity": self._identity, "units": self._units}, indent=1)
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with part.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            stored = json.loads(self.path.read_bytes())
            identity, units = stored["identity"], dict(stored["units"])
            whole = all({"seconds", "result"} <= unit.keys() for unit in units.values())
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            torn = self.path.with_name(f"{self.path.name}.torn")
            self.path.replace(torn)
            print(f"state is torn and begins anew; it is kept as {torn}")
            return {}
        names = sorted(identity.keys() | self._identity.keys())
        for name in names:
            if identity.get(name) != self._identity.get(name):
                raise click.ClickException(
                    f"{self.path} is of another run: {name} was "
                    f"{identity.get(name)}, is {self._identity.get(name)}; "
                    "remove it, or name another --state"
                )
        return units


class Pieces:
    """Does each unit of a benchmark once, while time is left."""

    def __init__(self, state: State, budget: Budget) -> None:
        self._state, self._budget = state, budget

    def has(self, name: str) -> bool:
        """Whether a unit is done, whatever became of what it left."""
        return name in self._state

    def unit(
        self,
        name: str,
        work: Callable[[], Any],
        *,
        expected_s: float,
        made: Path | None = None,
    ) -> Any:
        """Return a unit's result, of an earlier run or made now; it is JSON.

        Args:
            name: Its kind, then what tells it from others of the kind.
            work: Measures it.
            expected_s: What it may take, until one of its kind has been measured.
            made: Directory that it fills for others, empty when it begins; where that
                is gone it is done again.

        Raises:
            OutOfTime: it would not end in time.
        """
        if name in self._state and (made is None or (made / _DONE).exists()):
            return self._state.result(name)
        longest = self._state.longest_s(kind_of(name)) or expected_s
        if not self._budget.begin(longest):
            raise OutOfTime(name)
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
        start = time.monotonic()
        # As a later run reads it: lists for tuples.
        result = json.loads(json.dumps(work()))
        seconds = time.monotonic() - start
        if made is not None:
            (made / _DONE).touch()
        self._state.keep(name, result, seconds)
        print(f"{name}: {seconds:.0f} s", flush=True)
        return result


def kind_of(name: str) -> str:
    """Return the kind of a unit's name: its first word."""
    return name.partition(" ")[0]


@contextlib.contextmanager
def in_pieces(
    state: Path, identity: Mapping[str, Any], minutes: float | None
) -> Iterator[Pieces]:
    """Give the pieces of one run, which ends with exit code `MORE` when time is up."""
    kept = State(state, identity)
    try:
        yield Pieces(kept, Budget(minutes))
    except OutOfTime as error:
        print(f"stopped before `{error}`: {len(kept)} units are kept in {state}")
        print("the same command goes on from there")
        raise SystemExit(MORE) from None
    except FlytuneError as error:
        raise click.ClickException(str(error)) from error


class Bench:
    """What all benchmarks in pieces are told: device, time, and where things are."""

    def __init__(
        self,
        name: str,
        device: str,
        minutes: float | None,
        state: Path | None,
        work: Path | None,
    ) -> None:
        if device == "auto":
            device = "cpu" if live_profile() is None else "cuda"
        self.name, self.device = name, device
        self.slug = Target.live(device, threads=threads()).slug
        self.minutes = minutes
        root = Path(tempfile.gettempdir(), "flytune-bench")
        self.state = state or root / f"{name}.{self.slug}.json"
        self.work = (work or root / f"{name}.{self.slug}.work").absolute()
        self.work.mkdir(parents=True, exist_ok=True)

    def in_pieces(self, **options: Any) -> contextlib.AbstractContextManager[Pieces]:
        """Give the pieces of this benchmark with these options, as `in_pieces`."""
        identity = {
            "benchmark": self.name,
            "device": self.slug,
            "torch": torch_version(),
            **options,
        }
        return in_pieces(self.state, identity, self.minutes)

    def build_arguments(self, model: str, tokens: tuple[int, ...]) -> list[str]:
        """Return `flytune build`'s, without --work and --out.

        On a CPU a linear has a choice only where weights are packed ahead.
        """
        counts = ",".join(map(str, tokens))
        arguments = ["--model", model, "--tokens", counts, "--device", self.device]
        if self.device == "cpu":
            arguments += ["--policy", "frozen", "--attention", "sdpa"]
        return arguments


def bench_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `Bench` takes."""
    for option in (
        click.option("--work", type=click.Path(path_type=Path), help="Scratch."),
        click.option(
            "--state",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Keeps what is measured.  [default: in the temporary directory]",
        ),
        click.option("--minutes", type=float, help="Begin nothing that ends later."),
        click.option(
            "--device",
            type=click.Choice(["auto", "cpu", "cuda"]),
            default="auto",
            show_default=True,
        ),
    ):
        command = option(command)
    return command


def numbers(_: Any, __: Any, text: str) -> tuple[int, ...]:
    """Read `1,64` as click calls it."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"not numbers: `{text}`") from error

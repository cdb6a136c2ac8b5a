"""Mutated bundles: each is refused with one clear error, or is the very original.

`python ci/bench/fuzz.py [--inputs 1000000] [--workers N] [--first 0]`

The stored bundles of every schema are mutated, layer by layer, and read as `install`
reads them: opened, their signer asked for, every file checked and written. An input
is made from its number alone; `--first NUMBER --inputs 1` does it again. The run ends
at once with exit code 1 where an exception is not flytune's own, what is placed differs
from the original, or anything is written, made or removed outside the place.
"""

import itertools
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import click
from mutations import LAYERS, UNSIGNED, Seed, mutated
from pieces import in_pieces
from processes import threads
from results import RESULTS, write_result

from flytune.caches.bundle import Bundle
from flytune.caches.target import Target
from flytune.caches.trust import Trust, admit
from flytune.shapes.errors import FlytuneError

STORED = Path(__file__).parents[2] / "tests" / "data" / "bundles"
_UNIT = 50_000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Audit events of whatever changes a file system, by the number of paths that they name.
_CHANGES = {
    **dict.fromkeys(("os.rename", "os.link", "os.symlink"), 2),
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.chown"), 1),
    **dict.fromkeys(("os.truncate", "os.utime", "os.setxattr", "shutil.rmtree"), 1),
}


class Reader:
    """Reads inputs in a folder of its own, and watches what that changes."""

    def __init__(self, folder: Path) -> None:
        self._seeds = [Seed.read(path) for path in _stored()]
        self._digests = [Bundle.open(path).digest for path in _stored()]
        self._trust = Trust(tuple(sorted(STORED.glob("*.pub"))))
        self._folder = folder.resolve()
        self._strays: list[str] = []
        self._left = False
        os.environ["FLYTUNE_KEYS"] = str(self._folder / "keys")
        os.environ.pop("FLYTUNE_TRUST", None)
        sys.dont_write_bytecode = True
        sys.addaudithook(self._watch)

    def outcome(self, number: int) -> tuple[str, str]:
        """Read one input; return its layer and what became of it.

        Raises:
            AssertionError: it was neither refused nor the original.
        """
        random = Random(number)
        which = random.randrange(len(self._seeds))
        layer = random.choice(list(LAYERS))
        seed = self._seeds[which]
        path, into = self._folder / "b.tar.zst", self._folder / "into"
        path.write_bytes(mutated(seed, layer, random))
        name = str(path)
        unsigned = layer in UNSIGNED
        if not unsigned and not seed.has_signature:
            name += f"@sha256:{self._digests[which]}"
        said = "read"
        try:
            bundle = Bundle.open(name)
            admit(bundle, Trust(self._trust.keys, allow_unsigned=unsigned))
            bundle.place(into)
        except FlytuneError as error:
            said = re.sub(r"\d+", "N", str(error).partition(":")[0])
            assert not into.exists(), "something is left of a refused bundle"
        else:
            placed = {
                file.relative_to(into).as_posix(): file.read_bytes()
                for file in into.rglob("*")
                if file.is_file()
            }
            if unsigned:
                assert set(placed.values()) <= set(seed.files.values()), "other files"
            else:
                assert placed == seed.files, "other files than the original's"
            shutil.rmtree(into)
        path.unlink()
        left = os.listdir(self._folder)
        assert not left, f"left beside: {left}"
        assert not self._strays, f"changed elsewhere: {self._strays}"
        return layer, said

    def leave(self) -> None:
        """Watch no more, as a hook stays for as long as its process."""
        self._left = True

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._left:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str) and flags & _WRITING and path != os.devnull:
                self._expect(path)
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                # A bare name is in a folder that was opened, as shutil removes trees.
                if isinstance(path, str | Path) and "/" in str(path):
                    self._expect(str(path))

    def _expect(self, path: str) -> None:
        full = os.path.abspath(path)
        if not full.startswith(f"{self._folder}/"):
            self._strays.append(full)


def _stored() -> list[Path]:
    return sorted(STORED.glob("*.tar.zst"))


def read_range(first: int, last: int) -> tuple[dict[str, int], float]:
    """Read the inputs from `first` to the one before `last`.

    Returns:
        How often each layer came to each end, and the seconds of CPU that it took.

    Raises:
        AssertionError: one of them broke the rule, and which.
    """
    shared = Path("/dev/shm")
    root = shared if os.access(shared, os.W_OK) else None
    counts: Counter[str] = Counter()
    begun = time.process_time()
    with tempfile.TemporaryDirectory(prefix="flytune-fuzz-", dir=root) as folder:
        reader = Reader(Path(folder))
        for number in range(first, last):
            try:
                counts["\t".join(reader.outcome(number))] += 1
            # Whatever else is raised is what this looks for.
            except Exception as error:
                raise AssertionError(f"input {number}: {error!r}") from error
        reader.leave()
    return dict(counts), time.process_time() - begun


@click.command()
@click.option("--inputs", default=1_000_000, show_default=True)
@click.option("--first", default=0, show_default=True, help="Number of the first.")
@click.option("--workers", type=click.IntRange(min=1), help="[default: all cores]")
@click.option("--minutes", type=float, help="Begin nothing that ends later.")
@click.option("--state", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, show_default=False
)
def main(
    inputs: int,
    first: int,
    workers: int | None,
    minutes: float | None,
    state: Path | None,
    results: Path,
) -> None:
    """Read so many mutated bundles, in pieces, and write the result file."""
    workers = workers or threads()
    slug = Target.here(threads=threads()).slug
    state = state or Path(tempfile.gettempdir(), "flytune-bench", f"fuzz.{slug}.json")
    stored = {path.name: Bundle.open(path).digest for path in _stored()}
    identity = {"benchmark": "fuzz", "bundles": stored}
    counts: Counter[str] = Counter()
    cpu_s = 0.0
    with in_pieces(state, identity, minutes) as pieces:
        bounds = [*range(first, first + inputs, _UNIT), first + inputs]
        for start, stop in itertools.pairwise(bounds):
            unit = pieces.unit(
                f"inputs {start} to {stop - 1}",
                lambda start=start, stop=stop: _read_all(start, stop, workers),
                expected_s=60,
            )
            counts.update(unit["counts"])
            cpu_s += unit["cpu_s"]
    figures = {
        "fuzz_inputs": counts.total(),
        "first": first,
        "read": sum(n for name, n in counts.items() if name.endswith("\tread")),
        "ways_refused": len({name.split("\t")[1] for name in counts} - {"read"}),
        "inputs_per_core_s": round(counts.total() / cpu_s),
    }
    rows = [
        {**dict(zip(("layer", "outcome"), name.split("\t"), strict=True)), "inputs": n}
        for name, n in sorted(counts.items())
    ]
    print(f"{figures['inputs_per_core_s']} inputs/s and core; {figures}")
    print(f"wrote {write_result('fuzz', slug, figures, rows, results)}")


def _read_all(first: int, last: int, workers: int) -> dict[str, Any]:
    step = -(-(last - first) // workers)
    bounds = [*range(first, last, step), last]
    counts: Counter[str] = Counter()
    cpu_s = 0.0
    with ProcessPoolExecutor(workers) as pool:
        try:
            for some, seconds in pool.map(read_range, bounds[:-1], bounds[1:]):
                counts.update(some)
                cpu_s += seconds
        except AssertionError as error:
            raise click.ClickException(str(error)) from error
    return {"counts": counts, "cpu_s": cpu_s}


if __name__ == "__main__":
    main()

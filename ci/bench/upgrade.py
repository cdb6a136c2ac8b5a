"""What a build from an older bundle takes beside a fresh one, and what it does again.

`python ci/bench/upgrade.py [--model Qwen3-4B] [--tokens 1..12] [--triton DIR]`

The same build twice: from nothing, and from the first one's bundle with nothing
changed. A small one twice: from nothing, and from that with one flag more for the C++
compiler. With `--triton`, a folder into which another Triton was installed (`pip
install --target DIR --no-deps triton==3.8.0`), one list for a gfx950 is compiled under
that one, and then from that bundle under the environment's own.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from builds import COMMAND
from results import write_result

from flytune.caches import Bundle
from flytune.caches.columns import Status
from flytune.caches.held import records_of
from flytune.caches.target import Target

FLAG = "-fno-tree-vectorize"
BESIDE = {"unchanged": "fresh", "compiler": "small", "triton": "gfx950"}
"""Each build from an older bundle, and the one that made that bundle."""
DATA = "tests/data"
# The last line of each run of a stage.
_BUILT = re.compile(r"build: (\d+) of \1,")
_TIMED = re.compile(r"time: (\d+) of \1,")


@click.command()
@click.option("--model", default="Qwen3-4B", show_default=True)
@click.option("--tokens", default="1..12", show_default=True)
@click.option("--triton", type=click.Path(exists=True, path_type=Path))
@click.option("--work", type=click.Path(path_type=Path), help="Keeps what is done.")
def main(model: str, tokens: str, triton: Path | None, work: Path | None) -> None:
    """Build, print, and write the result file."""
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        place = work or Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        rows = [*_unchanged(model, tokens, place), *_compiler(place)]
        if triton is not None:
            rows += _gfx950(triton.absolute(), place)
    times = {row["build"]: row["wall_s"] for row in rows}
    figures = {
        f"{name}_share": round(times[name] / times[beside], 3)
        for name, beside in BESIDE.items()
        if name in times
    }
    slug = Target.here(threads=len(os.sched_getaffinity(0))).slug
    print(f"wrote {write_result('upgrade', slug, figures, rows)}")


def _unchanged(model: str, tokens: str, place: Path) -> list[dict[str, Any]]:
    words = ("--model", model, "--tokens", tokens)
    older = ("--from", str(place / "fresh.tar.zst"))
    return [
        _build("fresh", words, place, {}),
        _build("unchanged", (*words, *older), place, {}),
    ]


def _compiler(place: Path) -> list[dict[str, Any]]:
    wrapper = place / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} {FLAG} "$@"\n')
    wrapper.chmod(0o755)
    words = ("--model", f"{DATA}/tiny-llama.json", "--tokens", "1,8")
    older = ("--from", str(place / "small.tar.zst"))
    return [
        _build("small", words, place, {}),
        _build("compiler", (*words, *older), place, {"CXX": str(wrapper)}),
    ]


def _gfx950(triton: Path, place: Path) -> list[dict[str, Any]]:
    words = ("--model", f"{DATA}/square-llama.json", "--tokens", "64")
    words = (*words, "--target", "mi355x", "--compile-only")
    path = os.pathsep.join([str(triton), os.environ.get("PYTHONPATH", "")])
    older = ("--from", str(place / "gfx950.tar.zst"))
    return [
        _build("gfx950", words, place, {"PYTHONPATH": path}),
        _build("triton", (*words, *older), place, {}),
    ]


def _build(
    name: str, words: tuple[str, ...], place: Path, env: Mapping[str, str]
) -> dict[str, Any]:
    """Build into a work directory of its own, and say what was done.

    What was measured in this folder before is not done again.
    """
    measured = place / f"{name}.json"
    if measured.exists():
        known: dict[str, Any] = json.loads(measured.read_text())
        return known
    out = place / f"{name}.tar.zst"
    out.unlink(missing_ok=True)
    command = [*COMMAND, "build", *words, "--fresh", "--out", str(out)]
    command += ["--work", str(place / f"work-{name}")]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wall_s = round(time.perf_counter() - start, 1)
    if not out.exists():
        raise SystemExit(f"{name} made no bundle: {done.stderr[-2000:]}")
    row = {
        "build": name,
        "wall_s": wall_s,
        **_told(Bundle.open(out), words, done.stderr),
    }
    measured.write_text(json.dumps(row))
    print(row, flush=True)
    return row


def _told(bundle: Bundle, words: tuple[str, ...], log: str) -> dict[str, Any]:
    """Return what a bundle and its build's log tell."""
    records = records_of(bundle)
    verify = bundle.manifest.verify
    return {
        "model": bundle.manifest.model["name"],
        "tokens": words[words.index("--tokens") + 1],
        "triton": bundle.manifest.target["software"]["triton"],
        "stages": bundle.manifest.provenance.get("stages"),
        "compiled": sum(map(int, _BUILT.findall(log))),
        "timed": sum(map(int, _TIMED.findall(log))),
        "candidates": len(records),
        "by_backend": dict(
            Counter(r.backend for r in records if r.status is Status.OK)
        ),
        "verified": bool(verify and verify["ok"]),
    }


if __name__ == "__main__":
    main()

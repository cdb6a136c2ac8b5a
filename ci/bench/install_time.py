"""What a bundle weighs, and what `flytune.caches.install` adds to a process's start.

`python ci/bench/install_time.py [--model M] [--layers N] [--rounds 9] [--work DIR]`

The bundle is of a whole model of so many layers, one archive. Beside its bytes are
those of the cache directory that it was baked in, which would be copied without it.
Each round has three fresh processes: one that installs the bundle where nothing is, one
that installs it again, and one that copies the directory, as a start-up script would.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from builds import build_bundle, shortened
from results import write_result

from flytune.caches.bundle import ARCHIVE_SUFFIX, Bundle
from flytune.caches.target import Target

INSTALL = """
import sys, time
start = time.perf_counter()
import flytune.caches
installed = flytune.caches.install(sys.argv[1])
print(time.perf_counter() - start)
assert installed.status == "hit", installed
assert not {"torch", "ray", "flydsl"} & set(sys.modules)
"""
COPY = """
import shutil, sys, time
start = time.perf_counter()
shutil.copytree(sys.argv[1], sys.argv[2])
print(time.perf_counter() - start)
"""
_SECONDS = ("install_s", "again_s", "copy_s")


@click.command()
@click.option("--model", default="Llama-3.1-8B", show_default=True)
@click.option("--layers", default=2, show_default=True, help="Of the whole model.")
@click.option("--tokens", default="1,64", show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the build is kept, and found again.  [default: nowhere]",
)
def main(model: str, layers: int, tokens: str, rounds: int, work: Path | None) -> None:
    """Measure, print, and write the result file."""
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        root = Path(directory)
        kept = root / "build" if work is None else work.absolute()
        bundle, baked = _built(model, layers, tokens, kept)
        rows = [_round(root, bundle.path, baked) for _ in range(rounds)]
        sizes = {
            "bundle_bytes": bundle.path.stat().st_size,
            "unpacked_bytes": sum(
                entry.size_bytes for entry in bundle.manifest.files.values()
            ),
            "directory_bytes": _size(baked),
            "files": len(bundle.manifest.files),
        }
    figures: dict[str, Any] = {
        **{"model": model, "layers": layers, "tokens": tokens},
        **sizes,
        "bundle_over_directory": round(
            sizes["bundle_bytes"] / sizes["directory_bytes"], 4
        ),
        **{
            name: round(statistics.median(row[name] for row in rows), 4)
            for name in _SECONDS
        },
    }
    print(figures)
    slug = Target.here(threads=len(os.sched_getaffinity(0))).slug
    print(f"wrote {write_result('install_time', slug, figures, rows)}")


def _built(model: str, layers: int, tokens: str, work: Path) -> tuple[Bundle, Path]:
    """Return the bundle and the cache directory that it was baked in."""
    out = work / f"bundle{ARCHIVE_SUFFIX}"
    if out.exists():
        bundle = Bundle.open(out)
    else:
        short = str(shortened(model, layers, work))
        more = ("--bake", "model")
        bundle = build_bundle(short, tokens, "unfrozen", out, work / "build", more)
    (baked,) = (work / "build").glob("*/bake")
    return bundle, baked


def _round(root: Path, bundle: Path, baked: Path) -> dict[str, float]:
    for name in ("home", "copy"):
        shutil.rmtree(root / name, ignore_errors=True)
    env = {**os.environ, "FLYTUNE_HOME": str(root / "home")}
    return {
        "install_s": _seconds(INSTALL, env, bundle),
        "again_s": _seconds(INSTALL, env, bundle),
        "copy_s": _seconds(COPY, env, baked, root / "copy"),
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _seconds(script: str, env: dict[str, str], *arguments: Path) -> float:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, env=env, check=True, capture_output=True)
    return float(result.stdout.split()[-1])


if __name__ == "__main__":
    main()

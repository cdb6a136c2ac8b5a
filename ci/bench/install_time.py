"""What `flytune.caches.install` adds to the start of a serving process.

`python ci/bench/install_time.py [--bundle B] [--rounds 9]`

Each round is a fresh process that imports flytune.caches and installs a bundle that is
unpacked already, in turn with one that copies the bundle's directory, which is what a
start-up script would do without it.
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
from builds import build_bundle
from results import write_result

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


@click.command()
@click.option("--model", default="Qwen3-4B", show_default=True)
@click.option("--tokens", default="1,16", show_default=True)
@click.option("--rounds", default=9, show_default=True)
def main(model: str, tokens: str, rounds: int) -> None:
    """Measure, print with the ratio, and write the result file."""
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        root = Path(directory)
        bundle = build_bundle(model, tokens, "unfrozen", root / "bundle")
        env = {**os.environ, "FLYTUNE_HOME": str(root / "home")}
        _seconds(INSTALL, env, bundle.path)  # unpacks it
        rows = [
            {
                "install_s": _seconds(INSTALL, env, bundle.path),
                "copy_s": _copied(root, env, bundle.path),
            }
            for _ in range(rounds)
        ]
        size = sum(entry.size_bytes for entry in bundle.manifest.files.values())
        figures: dict[str, Any] = {
            "model": model,
            "tokens": tokens,
            "bundle_bytes": size,
            "files": len(bundle.manifest.files),
            **{
                name: round(statistics.median(row[name] for row in rows), 4)
                for name in ("install_s", "copy_s")
            },
        }
    ratio = figures["install_s"] / figures["copy_s"]
    print(f"install {figures['install_s']} s, {ratio:.1f} x a plain copy; {figures}")
    slug = Target.here(threads=len(os.sched_getaffinity(0))).slug
    print(f"wrote {write_result('install_time', slug, figures, rows)}")


def _copied(root: Path, env: dict[str, str], bundle: Path) -> float:
    shutil.rmtree(root / "copy", ignore_errors=True)
    return _seconds(COPY, env, bundle, root / "copy")


def _seconds(script: str, env: dict[str, str], *arguments: Path) -> float:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, env=env, check=True, capture_output=True)
    return float(result.stdout.split()[-1])


if __name__ == "__main__":
    main()

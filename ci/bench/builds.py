"""Bundles for benchmarks, made by the real command."""

import subprocess
import sys
from pathlib import Path

from flytune.caches import Bundle


def build_bundle(
    model: str, tokens: str, policy: str, out: Path, work: Path | None = None
) -> Bundle:
    """Run `flytune build` to its end and return the bundle.

    Args:
        work: Directory of the build's journal; the user's own where None.
    """
    flytune = Path(sys.executable).with_name("flytune")
    command = [str(flytune), "build", "--model", model, "--tokens", tokens]
    command += ["--policy", policy, "--out", str(out)]
    if work is not None:
        command += ["--work", str(work)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Bundle.open(out)

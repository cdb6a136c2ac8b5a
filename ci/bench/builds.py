"""Bundles for benchmarks, made by the real command."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flytune.caches import Bundle
from flytune.shapes.registry import find_model

# Not by a name on PATH: flytune may be importable and nothing more.
COMMAND = (sys.executable, "-c", "from flytune.tuner.cli import main; main()")


def build_bundle(
    model: str,
    tokens: str,
    policy: str | None,
    out: Path,
    work: Path | None = None,
    more: Sequence[str] = (),
) -> Bundle:
    """Run `flytune build` to its end and return the bundle, also an unverified one.

    Args:
        policy: Of a CPU.
        work: Directory of the build's journal; the user's own where None.
        more: Options besides.

    Raises:
        subprocess.CalledProcessError: there is no bundle.
    """
    command = [*COMMAND, "build", "--model", model, "--tokens", tokens, *more]
    command += ["--out", str(out)]
    if policy is not None:
        command += ["--policy", policy]
    if work is not None:
        command += ["--work", str(work)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    if not out.exists():
        done.check_returncode()
    return Bundle.open(out)


def shortened(model: str, layers: int, work: Path) -> Path:
    """Return a file with the model's config, of so many layers."""
    raw = {**json.loads(find_model(model).raw), "num_hidden_layers": layers}
    path = work / f"{Path(model).stem.lower()}-{layers}-layers.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw))
    return path

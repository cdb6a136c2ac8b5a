"""Engines of vLLM's with a tiny model that is a config alone, and a bundle of one."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytune.caches import vllm_factors
from flytune.caches.directories import VLLM_DIR, variables
from flytune.caches.expected import CACHES
from flytune.caches.keyring import own_key
from flytune.caches.manifest import Manifest
from flytune.caches.packing import pack
from flytune.caches.policy import ServingPolicy
from flytune.caches.target import Target

HERE = Path(__file__).parent
TINY = HERE / "tiny"
SERVE = (
    *(str(TINY), "--dtype", "bfloat16", "--max-model-len", "512"),
    *("--max-num-seqs", "8", "--max-num-batched-tokens", "512"),
    *("--compilation-config", '{"compile_sizes": [1, 8]}'),
)
"""An engine's arguments, as `vllm serve` takes them."""
BACKENDS = ("vllm", "torch")
"""vLLM's own compile backend, which its GPU platforms have, and its CPU platform's."""
# What torch's own backend compiles is loaded by torch's caches alone: vLLM stores it
# ahead of time and cannot load it.
POLICY_ENV = {"vllm": {}, "torch": {"VLLM_USE_AOT_COMPILE": "0"}}
_THREADS = 2
_FOREIGN = ("VLLM_", "TORCHINDUCTOR_", "TRITON_", "FLYTUNE_BUNDLE", "FLYTUNE_STRICT")


@dataclass(frozen=True, slots=True)
class Baked:
    """A bundle, and what each pass of its bake reported."""

    backend: str
    bundle: Path
    reports: tuple[Mapping[str, Any], ...]


def environment(home: Path, backend: str, **more: str) -> dict[str, str]:
    """Return the environment of an engine on a host of its own.

    Args:
        home: a folder with a short path, for vLLM's sockets are in its own one for
            temporary files.
    """
    (home / "tmp").mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    paths = [str(HERE / "switch"), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "HOME": str(home),
        "FLYTUNE_HOME": str(home / "flytune"),
        "TMPDIR": str(home / "tmp"),
        "SWITCH_BACKEND": backend,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        **more,
    }


def python(
    *words: str, env: Mapping[str, str], cwd: Path | None = None, code: int | None = 0
) -> str:
    """Run a Python to its end and return what it printed.

    Args:
        code: its exit code; None where it only must not be 0.
    """
    done = subprocess.run(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        cwd=cwd,
        check=False,
    )
    right = done.returncode == code or (code is None and done.returncode != 0)
    assert right, done.stdout[-6000:]
    return done.stdout


def session(*words: str, env: Mapping[str, str], report: Path) -> dict[str, Any]:
    """Run flytune's own session with an engine and return its report."""
    env = {**env, "FLYTUNE_VLLM_REPORT": str(report)}
    python("-m", "flytune.caches.vllm_session", *words, env=env)
    (line,) = report.read_text().splitlines()
    row: dict[str, Any] = json.loads(line)
    return row


def bake(folder: Path, backend: str) -> Baked:
    """Run an engine twice on one directory of caches and pack that."""
    staged = folder / "staged"
    policy = {"OMP_NUM_THREADS": str(_THREADS), **POLICY_ENV[backend]}
    served = ServingPolicy(
        name="vllm", tokens=(1, 8), threads=_THREADS, attention="vllm", env=policy
    )
    with tempfile.TemporaryDirectory(prefix="baker-") as home:
        more = {**policy, **variables(staged / CACHES)}
        env = environment(Path(home), backend, **more)
        reports = tuple(
            session(*SERVE, env=env, report=folder / f"pass{number}.json")
            for number in (1, 2)
        )
        asked = vllm_factors.ask(SERVE, env)
    for lock in [*staged.rglob("*.lock")]:
        lock.unlink()
    factors = asked.after_bake(staged / CACHES / VLLM_DIR)
    manifest = Manifest(
        created="2026-01-02T03:04:05Z",
        flytune="0.1.0",
        model={"name": "tiny"},
        program=vllm_factors.program_row(SERVE, factors),
        policy=served.to_json(),
        inductor_config={},
        target=Target.here(threads=_THREADS).to_json(),
        software="serving",
        timed_on=None,
        coverage={},
        winners=(),
        bake={},
    )
    out = folder / "bundle.tar.zst"
    return Baked(backend, pack(staged, manifest, out, keys=[own_key()]), reports)

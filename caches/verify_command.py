"""Prove that a bundle hits in a command, run as `flytune exec` runs it."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flytune.caches.bundle import Bundle
from flytune.caches.command import run_watched
from flytune.caches.expected import CACHES
from flytune.caches.hook.flytune_status import SERVING, STATUS_VARIABLE
from flytune.caches.install import exec_environment
from flytune.caches.judge import exit_failures, files_below, judge_processes
from flytune.caches.keys import KEYS_NAME, GraphKey, read_keys
from flytune.caches.policy import ServingPolicy
from flytune.caches.prepare import prepare
from flytune.caches.trust import HERE, Trust
from flytune.caches.verdict import Verdict, refused_bundle
from flytune.caches.watch import Watch


def verify_command(
    bundle: Bundle, command: Sequence[str], trust: Trust = HERE
) -> Verdict:
    """Run a command from a fresh installation and judge what its processes did.

    Its environment is this process's with what serving sets. What it prints goes to
    stderr.

    Raises:
        UntrustedError: nobody vouches for the bundle here.
        FlytuneError: the bundle is corrupt, is for another target, or there is no such
            command.
    """
    manifest = bundle.manifest
    if manifest.compiled_only:
        return refused_bundle(
            ("nothing is baked: the bundle holds kernels for a build",)
        )
    with tempfile.TemporaryDirectory(prefix="flytune-verify-") as directory:
        folder = Path(directory)
        named = (
            f"{bundle.path}@sha256:{bundle.digest}" if bundle.pinned else bundle.path
        )
        into = folder / "installed"
        placed = prepare(named, into, strict=True, command=True, trust=trust)
        assert placed.directory is not None, "strict"
        if placed.held >= 0:
            # Nobody else knows of this installation.
            os.close(placed.held)
        states = folder / "status"
        environment = {**exec_environment(placed), STATUS_VARIABLE: str(states)}
        before = files_below(placed.directory / CACHES)
        run = run_watched(command, environment, Watch(), sys.stderr)
        written = sorted(files_below(placed.directory / CACHES) - before)
        baked = _keys(bundle, folder / "keys")
        policy = ServingPolicy.from_json(manifest.policy)
        verdict = judge_processes(run.processes, policy, baked, written)
        failures = [*exit_failures(run.code), *_unused(states), *verdict.failures]
        return replace(verdict, failures=tuple(failures), peak_gib=run.peak_gib)


def _keys(bundle: Bundle, folder: Path) -> tuple[GraphKey, ...]:
    if KEYS_NAME not in bundle.manifest.files:
        return ()
    bundle.place(folder, only=[KEYS_NAME])
    return read_keys(folder / KEYS_NAME)


def _unused(states: Path) -> Iterator[str]:
    """Name the processes that did without the bundle."""
    for path in sorted(states.glob("*.json")):
        row = json.loads(path.read_text())
        if row["state"] not in SERVING:
            why = f"{row['reason']} ({row['code']})"
            yield f"process {row['pid']}: bundle not used: {why}"

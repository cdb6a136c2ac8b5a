"""Prove that a bundle hits: run its program in a fresh process and count the work.

The process has an empty cache directory plus the bundle's files, the bundle's policy
and other weights than the bake's. Whatever it compiles, tunes or lowers is a failure
that is named with the part of the key that differs.
"""

import functools
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from flytune.caches.bundle import Bundle
from flytune.caches.child import clean_environment, run_module
from flytune.caches.command import CommandSpec, command_environment, run_watched
from flytune.caches.directories import TRITON_DIR
from flytune.caches.expected import CACHES
from flytune.caches.judge import exit_failures, files_below, judge, judge_processes
from flytune.caches.keys import KEYS_NAME, GraphKey, read_keys
from flytune.caches.manifest import Manifest
from flytune.caches.several import program_name, singles
from flytune.caches.target import PartStatus, Target
from flytune.caches.triton_cache import relocate
from flytune.caches.trust import HERE, Trust, admit
from flytune.caches.variants import Variant, compare_parts, variants_here
from flytune.caches.verdict import Verdict, both, every, of_program, refused_bundle
from flytune.caches.vllm_program import command_of
from flytune.caches.watch import Watch

# Any seed but the bake's: a graph that holds its weights would then be found out.
VERIFY_SEED = 20_000
SESSION = "flytune.caches.session"


def verify(bundle: Bundle, trust: Trust = HERE) -> Verdict:
    """Run the bundle's program in a fresh process and judge what it did.

    Raises:
        UntrustedError: nobody vouches for the bundle here.
        FlytuneError: the bundle is corrupt, was built for another target, or its
            program cannot run here.
    """
    admit(bundle, trust)
    manifest = bundle.manifest
    if manifest.compiled_only:
        return refused_bundle(
            ("nothing is baked: the bundle holds kernels for a build",)
        )
    wrong = target_misses(manifest)
    if wrong:
        return refused_bundle(tuple(f"target differs: {line}" for line in wrong))
    with tempfile.TemporaryDirectory(prefix="flytune-verify-") as directory:
        placed = Path(directory) / "bundle"
        bundle.place(placed)
        return verify_directory(placed, manifest)


def target_misses(manifest: Manifest) -> tuple[str, ...]:
    """Return the parts of this host that rule the bundle out, one line each."""
    kind = str(manifest.target["hardware"].get("kind"))
    live = Target.live(kind, threads=manifest.policy.get("threads"))
    parts = compare_parts(manifest, live)
    return tuple(str(p) for p in parts if p.status is PartStatus.MISS)


def verify_directory(
    placed: Path,
    manifest: Manifest,
    output: IO[Any] | None = None,
    *,
    once: bool = False,
) -> Verdict:
    """Run the program of a bundle's unpacked files, which may be changed by it.

    Where the bundle serves with FlyDSL and without, both are run if it is here. Of a
    merged bundle each program is run, in a process of its own.

    Args:
        output: Gets what a command prints; stderr where None.
        once: Whether each graph of a program of our own is asked for once, and not in
            the other orders and ways that serving may.
    """
    output = sys.stderr if output is None else output
    cache_dir = placed / CACHES
    cache_dir.mkdir(exist_ok=True)
    relocate(cache_dir / TRITON_DIR)
    programs = singles(manifest)
    verdicts = []
    for program in programs:
        runs = [
            _run(placed, program, variant, output, once)
            for variant in variants_here(program)
        ]
        verdict = functools.reduce(both, runs)
        whose = f"{program_name(program)}: " if len(programs) > 1 else ""
        verdicts.append(of_program(verdict, whose))
    return functools.reduce(every, verdicts)


def _run(
    placed: Path, manifest: Manifest, variant: Variant, output: IO[Any], once: bool
) -> Verdict:
    """Run the program as one variant of the bundle is served."""
    cache_dir = placed / CACHES
    before = files_below(cache_dir)
    baked = read_keys(placed / KEYS_NAME) if (placed / KEYS_NAME).exists() else ()
    if (spec := command_of(manifest.program)) is not None:
        found = _run_command(placed, spec, variant, baked, before, output)
    else:
        found = _run_session(placed, manifest, variant, baked, before, once)
    return of_program(found, "".join(f"without {name}: " for name in variant.without))


def _run_session(
    placed: Path,
    manifest: Manifest,
    variant: Variant,
    baked: tuple[GraphKey, ...],
    before: frozenset[str],
    once: bool,
) -> Verdict:
    """Run a program of our own, whose outputs are compared with eager's."""
    cache_dir, result_path = placed / CACHES, placed / "result.json"
    request = {
        "program": dict(manifest.program),
        "policy": variant.policy.to_json(),
        # One graph must serve the sizes too that it was not baked with.
        "between": variant.policy.dynamic,
        "seed": VERIFY_SEED,
        "without": variant.without,
        "again": not once,
        "variants": not once,
    }
    env = clean_environment(variant.policy, cache_dir)
    run_module(SESSION, request, result_path, env, what="the verified program")
    result = json.loads(result_path.read_text())
    written = sorted(files_below(cache_dir) - before)
    return judge(result, manifest, variant.policy, baked, written)


def _run_command(
    placed: Path,
    spec: CommandSpec,
    variant: Variant,
    baked: tuple[GraphKey, ...],
    before: frozenset[str],
    output: IO[Any],
) -> Verdict:
    """Run the command that the bundle was baked by, as it was."""
    cache_dir = placed / CACHES
    env = command_environment(variant.policy, cache_dir)
    watch = Watch(policy=variant.policy, without=variant.without)
    run = run_watched(spec.command, env, watch, output)
    written = sorted(files_below(cache_dir) - before)
    verdict = judge_processes(run.processes, variant.policy, baked, written)
    failures = (*exit_failures(run.code), *verdict.failures)
    return replace(verdict, failures=failures, peak_gib=run.peak_gib)

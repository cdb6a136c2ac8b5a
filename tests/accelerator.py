"""Lists and kernels of an accelerator, on it or on a stand-in for it."""

import json
import multiprocessing
import os
import pickle
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from flytune.caches.child import clean_environment, run_module
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.policy import ServingPolicy, cuda_policy
from flytune.caches.program import Bake, ProgramSpec
from flytune.caches.stand_in import stand_in_environment
from flytune.shapes.gemm import GemmShape
from flytune.shapes.registry import find_model
from flytune.tuner.builder import build
from flytune.tuner.candidate import BuildResult, Candidate, CandidateList, Enumeration
from flytune.tuner.runner import place_files

POLICY = cuda_policy(tokens=(1, 64), threads=2, attention="sdpa")


def probed(
    folder: Path,
    absent: DeviceProfile | None,
    model: str = "Llama-3.1-8B",
    search: str = "DEFAULT",
    policy: ServingPolicy = POLICY,
    bake: Bake = "layers",
) -> tuple[CandidateList, ...]:
    """List candidates on the device, or on a stand-in for an absent one."""
    return probed_program(folder, absent, model, search, policy, bake=bake).lists


def probed_program(
    folder: Path,
    absent: DeviceProfile | None,
    model: str,
    search: str = "DEFAULT",
    policy: ServingPolicy = POLICY,
    planned: Iterable[GemmShape] = (),
    bake: Bake = "layers",
) -> Enumeration:
    """List candidates of a model's program, as `probed`.

    Args:
        planned: What a plan has; where the program has none of it, it says why.
    """
    found = find_model(model)
    spec = ProgramSpec(json.loads(found.raw), "sdpa", found.dtype, bake=bake)
    program = spec.to_json()
    rows = [shape.to_row() for shape in planned]
    return _enumerated(folder, absent, policy, search, program=program, shapes=rows)


def probed_shapes(
    folder: Path,
    absent: DeviceProfile,
    shapes: Iterable[GemmShape],
    policy: ServingPolicy,
    search: str = "DEFAULT",
) -> Enumeration:
    """List candidates of GEMMs by themselves on a stand-in for an absent device."""
    rows = [shape.to_row() for shape in shapes]
    return _enumerated(folder, absent, policy, search, shapes=rows)


def _enumerated(
    folder: Path,
    absent: DeviceProfile | None,
    policy: ServingPolicy,
    search: str,
    **asked: object,
) -> Enumeration:
    request = {
        **asked,
        "policy": policy.to_json(),
        "search": search,
        "profile": None if absent is None else absent.to_json(),
    }
    hidden = {} if absent is None else stand_in_environment(absent)
    env = clean_environment(policy, folder / "cache", **hidden)
    result = folder / "lists.pickle"
    run_module("flytune.tuner.probe", request, result, env, what="the probe")
    enumeration: Enumeration = pickle.loads(result.read_bytes())
    return enumeration


def built_blind(
    lists: Iterable[CandidateList], profile: DeviceProfile, folder: Path
) -> dict[str, BuildResult]:
    """Build every candidate of the lists in processes that see no device."""
    candidates = {c.choice_hash: c for one in lists for c in one.candidates}
    with ProcessPoolExecutor(
        max_workers=max(1, (os.cpu_count() or 2) - 1),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=blind,
        initargs=(str(folder),),
    ) as pool:
        profiles = [profile] * len(candidates)
        results = pool.map(build, candidates.values(), profiles, chunksize=4)
        return {result.choice_hash: result for result in results}


def blind(folder: str) -> None:
    """Make a builder of this process: it sees no device and shares no directory."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/{os.getpid()}"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def built_again(
    first: Sequence[BuildResult],
    candidates: Sequence[Candidate],
    profile: DeviceProfile,
) -> tuple[BuildResult, ...]:
    """Build in a process that has the files of earlier builds in its directory."""
    for result in first:
        place_files(result.files)
    return tuple(build(candidate, profile) for candidate in candidates)

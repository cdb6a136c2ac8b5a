"""Every op and type, listed on the device, built without it and run on it."""

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

import pytest
from accelerator import built_blind
from gemm_programs import probed_programs, programs

from flytune.caches.device_profile import DeviceProfile
from flytune.caches.records import Status
from flytune.tuner.candidate import ATEN, TRITON, CandidateList, RunResult
from flytune.tuner.subgraph import DECOMPOSE_K

pytestmark = pytest.mark.gpu

# A process of its own: a candidate that spoils the device ends no other test.
RUN = """
import pickle, sys
from pathlib import Path
import torch
from flytune.caches.records import Status
from flytune.tuner.accelerator_runner import AcceleratorRunner
from flytune.tuner.runner import Device
from flytune.tuner.tasks import join
from flytune.tuner.timing import TimingPlan

lists, builds = pickle.loads(Path(sys.argv[1]).read_bytes())
name = torch.cuda.get_device_name(0)
device = Device(name, 60 * 2**20, 8 * 2**30, "cuda", "nvidia")
runner = AcceleratorRunner(device)
rows = {}
for piece, offered in lists.items():
    (task,) = join((), [offered]).tasks
    runner.begin(task)
    checks = [runner.check(builds[c.choice_hash]) for c in offered.candidates]
    right = [r.choice_hash for r in checks if r.status is Status.OK]
    rows[piece] = (checks, runner.measure(right, TimingPlan()) if right else ())
    Path(sys.argv[2]).write_bytes(pickle.dumps(rows))
"""
PERSISTENT = ("mm bfloat16", "mm float16", "addmm bfloat16", "scaled_mm rowwise")
PERSISTENT += ("scaled_mm tensorwise",)
Rows = Mapping[str, tuple[tuple[RunResult, ...], tuple[RunResult, ...]]]


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CandidateList]:
    """Lists by program, and again with persistent templates, as the device has them."""
    folder, again = (tmp_path_factory.mktemp(name) for name in ("plain", "persistent"))
    persistent = probed_programs(
        again, None, *PERSISTENT, enable_persistent_tma_matmul=True
    )
    found = probed_programs(folder, None)
    return found | {f"persistent {name}": one for name, one in persistent.items()}


@pytest.fixture(scope="module")
def rows(
    lists: dict[str, CandidateList],
    profile: DeviceProfile,
    tmp_path_factory: pytest.TempPathFactory,
) -> Rows:
    """What became of every candidate, built in processes that see no device."""
    folder = tmp_path_factory.mktemp("ops")
    builds = built_blind(lists.values(), profile, folder)
    request, result = folder / "request", folder / "result"
    request.write_bytes(pickle.dumps((lists, builds)))
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    subprocess.run([sys.executable, "-c", RUN, request, result], env=env, check=False)
    made: Rows = pickle.loads(result.read_bytes())
    return made


@pytest.mark.parametrize("name", programs())
def test_every_candidate_is_right_or_too_large(
    name: str, rows: Rows, lists: dict[str, CandidateList]
) -> None:
    judged(name, rows, lists)


@pytest.mark.parametrize("name", [f"persistent {name}" for name in PERSISTENT])
def test_persistent_templates_are_right(
    name: str, rows: Rows, lists: dict[str, CandidateList]
) -> None:
    judged(name, rows, lists)
    assert any("tma" in c.template for c in lists[name].candidates)


def test_slices_of_k_are_summed_right(
    rows: Rows, lists: dict[str, CandidateList]
) -> None:
    found = {
        c.choice_hash for c in lists["mm deep"].candidates if c.backend == DECOMPOSE_K
    }
    checks, timed = rows["mm deep"]
    assert found
    assert {r.status for r in checks if r.choice_hash in found} == {Status.OK}
    assert found <= {r.choice_hash for r in timed if r.samples_us}


def judged(name: str, rows: Rows, lists: dict[str, CandidateList]) -> None:
    """Assert that each candidate of a list was right and timed, or did not fit."""
    checks, timed = rows[name]
    by_name = {c.choice_hash: c for c in lists[name].candidates}
    print(name, Counter((by_name[r.choice_hash].backend, r.status) for r in checks))
    bad = [
        (by_name[r.choice_hash].config, r.status, r.reason)
        for r in checks
        if r.status not in (Status.OK, Status.OVER_RESOURCES)
    ]
    assert not bad
    right = {r.choice_hash for r in checks if r.status is Status.OK}
    backends = {by_name[one].backend for one in right}
    assert backends >= {ATEN, DECOMPOSE_K if name == "mm deep" else TRITON}
    assert {r.choice_hash for r in timed} == right
    for one in timed:
        assert one.samples_us, one.reason
        assert min(one.samples_us) > 0
    best = sorted(timed, key=lambda r: sorted(r.samples_us)[len(r.samples_us) // 2])
    for one in best[:3]:
        middle = sorted(one.samples_us)[len(one.samples_us) // 2]
        print(f"  {middle:.2f} us", by_name[one.choice_hash].template, one.method)

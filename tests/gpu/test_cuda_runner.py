"""Candidates built without the device, then run on it: nothing is compiled there."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from accelerator import probed

from flytune.caches.device_profile import DeviceProfile
from flytune.tuner.candidate import BuildResult, CandidateList

pytestmark = pytest.mark.gpu

RUN = """
import pickle, sys, time
from pathlib import Path
import torch
from flytune.caches.columns import Status
from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import TuneTask
from flytune.tuner.accelerator_runner import AcceleratorRunner
from flytune.tuner.runner import Device
from flytune.tuner.timing import TimingPlan

lists, builds = pickle.loads(Path(sys.argv[1]).read_bytes())
name = torch.cuda.get_device_name(0)
device = Device(name, 60 * 2**20, 8 * 2**30, "cuda", "nvidia")
runner = AcceleratorRunner(device)
rows = []
for offered in lists:
    m, n = offered.output.sizes
    shape = GemmShape(op="mm", m=m, n=n, k=offered.inputs[0].sizes[-1])
    start = time.perf_counter()
    runner.begin(TuneTask(shape, offered, ("module",)))
    checks = [runner.check(builds[c.choice_hash]) for c in offered.candidates]
    checked = time.perf_counter()
    names = [r.choice_hash for r in checks if r.status is Status.OK]
    timed = runner.measure(names, TimingPlan())
    rows.append((checks, timed, checked - start, time.perf_counter() - checked))
Path(sys.argv[2]).write_bytes(pickle.dumps(rows))
"""


@pytest.fixture(scope="module")
def rows(
    lists: tuple[CandidateList, ...],
    builds: Mapping[str, BuildResult],
    tmp_path_factory: pytest.TempPathFactory,
) -> Sequence[Any]:
    """Checks, timings and seconds of every list, twice."""
    folder = tmp_path_factory.mktemp("run")
    request, result = folder / "request", folder / "result"
    request.write_bytes(pickle.dumps(((*lists, *lists), dict(builds))))
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    subprocess.run([sys.executable, "-c", RUN, request, result], env=env, check=True)
    made: Sequence[Any] = pickle.loads(result.read_bytes())
    return made


def test_every_candidate_is_built_right_and_timed(rows: Sequence[Any]) -> None:
    for checks, timed, check_s, measure_s in rows:
        bad = [(r.choice_hash, r.status, r.reason) for r in checks if r.reason]
        print(len(checks), bad, f"{check_s:.2f} s {measure_s:.2f} s")
        best = sorted(timed, key=lambda r: sorted(r.samples_us)[len(r.samples_us) // 2])
        for r in best[:3]:
            middle = sorted(r.samples_us)[len(r.samples_us) // 2]
            print(
                "  ", r.choice_hash[:20], f"{middle:.2f}", len(r.samples_us), r.method
            )
        assert not bad
        assert all(sample > 0 for r in timed for sample in r.samples_us)


def test_a_stand_in_lists_the_very_same_candidates(
    lists: tuple[CandidateList, ...], profile: DeviceProfile, tmp_path: Path
) -> None:
    absent = probed(tmp_path, profile)
    assert [one.key for one in absent] == [one.key for one in lists]
    print(json.dumps(profile.to_json()))

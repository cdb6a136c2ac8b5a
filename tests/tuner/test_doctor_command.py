import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flytune.caches import device_profile, target
from flytune.caches.device_profile import DeviceProfile, find_profile
from flytune.caches.target import Target
from flytune.tuner.cli import main
from flytune.tuner.findings import findings
from flytune.tuner.masks import CUDA, HIP, MASKS, ROCR
from flytune.tuner.support import SUPPORT, support_lines, support_markdown


@pytest.fixture(autouse=True)
def unmasked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MASKS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a host with nothing wrong, whatever this one has."""
    monkeypatch.setattr("flytune.tuner.findings.host_findings", tuple)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be a host without an accelerator, whatever this one has."""
    monkeypatch.setattr(device_profile, "_DEVICE_FILES", ())
    device_profile.live_profile.cache_clear()
    yield
    device_profile.live_profile.cache_clear()


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> DeviceProfile:
    """Be a host with one."""
    profile = find_profile("h200")
    for module in (device_profile, target):
        monkeypatch.setattr(module, "live_profile", lambda: profile)
    return profile


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


@pytest.mark.usefixtures("absent")
def test_a_host_in_words() -> None:
    result = doctor()
    assert (result.exit_code, result.stderr) == (0, "")
    host, build, table = result.stdout.split("\n\n")
    rows = dict(line.split(maxsplit=1) for line in host.splitlines())
    here = Target.here(threads=None)
    assert rows["kind"] == "cpu"
    assert rows["cores"] == str(len(os.sched_getaffinity(0)))
    assert rows["torch"] == here.software["torch"]
    # What is not known is no row.
    known = {**here.hardware, **here.software}.items()
    assert rows.keys() == {name for name, value in known if value is not None}
    assert tuple(table.splitlines()) == support_lines()
    first, *taken = build.splitlines()
    assert first == "flytune build --model M would take:"
    assert taken[:2] == ["device          the CPU", "policy          unfrozen"]


def test_the_readme_says_what_runs_where() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert support_markdown() in readme
    assert len({(s.engine, s.torch, s.backend, s.platform) for s in SUPPORT}) == len(
        SUPPORT
    )


@pytest.mark.usefixtures("absent")
def test_no_accelerator_has_no_profile(tmp_path: Path) -> None:
    result = doctor("--profile", tmp_path / "profile.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: no accelerator here, or torch cannot use it\n"
    assert list(tmp_path.iterdir()) == []


def test_a_profile_is_what_target_takes(present: DeviceProfile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    result = doctor("--profile", path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"profile  NVIDIA H200: {path}\n"
    assert find_profile(str(path)) == present
    assert json.loads(path.read_text()) == present.to_json()


@pytest.mark.usefixtures("present")
def test_a_profile_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("mine")
    result = doctor("--profile", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: output exists: {path}\nhint: remove it\n"
    assert path.read_text() == "mine"


@pytest.mark.usefixtures("present")
def test_a_profile_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "none" / "profile.json"
    result = doctor("--profile", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: cannot write: {path.parent}: No such file or directory (FT302)\n"
        "hint: choose another path\n"
    )


@pytest.mark.usefixtures("present")
def test_an_accelerator_is_the_host() -> None:
    rows = dict(
        line.split(maxsplit=1) for line in doctor().stdout.split("\n\n")[0].splitlines()
    )
    assert (rows["kind"], rows["product"], rows["arch"]) == (
        *("cuda", "NVIDIA H200", "sm_90"),
    )


@pytest.mark.parametrize(
    "masks",
    [
        {},
        {CUDA: ""},
        {CUDA: "0"},
        {HIP: "1,2"},
        {ROCR: "1"},
        {CUDA: "3", HIP: "3"},
    ],
)
def test_masks_that_agree(
    monkeypatch: pytest.MonkeyPatch, masks: dict[str, str]
) -> None:
    for name, value in masks.items():
        monkeypatch.setenv(name, value)
    assert findings(None) == ()


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(
    ("masks", "line"),
    [
        (
            {CUDA: "0", HIP: "1"},
            f"masks of devices contradict each other: {CUDA}=0, {HIP}=1",
        ),
        (
            {CUDA: "", HIP: "0", ROCR: "0"},
            f"masks of devices contradict each other: {CUDA}=, {HIP}=0",
        ),
        (
            {HIP: "0", ROCR: ""},
            f"a mask counts beyond the 0 devices that {ROCR}= leaves: {HIP}=0",
        ),
        # HIP counts anew in what is left: equal values are no agreement.
        (
            {HIP: "2", ROCR: "2"},
            f"a mask counts beyond the 1 devices that {ROCR}=2 leaves: {HIP}=2",
        ),
        (
            {CUDA: "0,2", ROCR: "4,5"},
            f"a mask counts beyond the 2 devices that {ROCR}=4,5 leaves: {CUDA}=0,2",
        ),
    ],
)
def test_masks_that_contradict_each_other(
    monkeypatch: pytest.MonkeyPatch, masks: dict[str, str], line: str
) -> None:
    for name, value in masks.items():
        monkeypatch.setenv(name, value)
    assert findings(None) == (("wrong", "FT703", line),)
    result = doctor()
    said = f"wrong: {line} (FT703)\nhint: set one of them\n"
    assert (result.exit_code, result.stderr) == (1, said)
    assert result.stdout.startswith("kind            cpu\n")


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(
    ("masks", "counting"),
    [
        ({HIP: "0", ROCR: "2"}, f"{HIP}=0"),
        ({HIP: "1", ROCR: "2,3"}, f"{HIP}=1"),
        ({HIP: "GPU-5f", ROCR: "GPU-5f"}, f"{HIP}=GPU-5f"),
        ({CUDA: "0", HIP: "0", ROCR: "0,1"}, f"{CUDA}=0, {HIP}=0"),
        ({HIP: "", ROCR: "0"}, f"{HIP}="),
    ],
)
def test_masks_that_filter_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, masks: dict[str, str], counting: str
) -> None:
    for name, value in masks.items():
        monkeypatch.setenv(name, value)
    result = doctor()
    assert (result.exit_code, result.stderr) == (
        0,
        f"note: {ROCR}={masks[ROCR]} filters first, and {counting} counts in what is "
        f"left; timing on an AMD GPU takes {HIP} alone (FT704)\n"
        "hint: set one of them\n",
    )


def test_an_amd_gpu_that_amdsmi_tells_nothing_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flytune.tuner.eligibility.require_flydsl", lambda arch: arch)
    amd = find_profile("mi355x")
    (found,) = findings(amd)
    assert (found.level, found.code) == ("note", "FT705")
    assert found.text.startswith("amdsmi, which comes with ROCm, tells nothing of this")
    assert findings(replace(amd, board={"memory_partition": "NPS1"})) == ()
    assert findings(find_profile("h200")) == ()


@pytest.mark.usefixtures("absent")
def test_every_problem_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flytune.caches.compat.torch_version", lambda: "1.13.1")
    monkeypatch.setenv(CUDA, "0")
    monkeypatch.setenv(HIP, "")
    result = doctor()
    assert result.exit_code == 1
    first, _, second, _ = result.stderr.splitlines()
    assert first.startswith("wrong: torch is older than 2.11")
    assert first.endswith(" (FT701)")
    assert second.startswith("wrong: masks of devices contradict each other")


@pytest.mark.usefixtures("absent")
def test_findings_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA, "0")
    monkeypatch.setenv(HIP, "1")
    result = doctor("--json")
    assert (result.exit_code, result.stderr) == (1, "")
    host, build, wrong = map(json.loads, result.stdout.splitlines())
    assert (host["row"], host["hardware"]["kind"]) == ("host", "cpu")
    assert (build["row"], build["policy"]) == ("build", "unfrozen")
    assert (wrong["row"], wrong["code"]) == ("wrong", "FT703")

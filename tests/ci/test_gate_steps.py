"""The gate for others' CI: its own steps are run, against a real registry."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from gate_steps import GATE, Repository, command
from registry import Registry, registry
from tuned_bundles import Made, Tune, shape, tuned, usual

from flytune.shapes.gemm import GemmShape

LISTS = {shape(n): usual(20.0 + n) for n in range(6)}
SLOW: dict[GemmShape, tuple[Made, ...]] = {
    **LISTS,
    shape(0): (LISTS[shape(0)][0].slower(0.1), *LISTS[shape(0)][1:]),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as one:
        yield one


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = {
        "served": (Tune(1), LISTS),
        "same": (Tune(2), LISTS),
        "slow": (Tune(3), SLOW),
        "elsewhere": (Tune(4, canary_us=110.0), LISTS),
    }
    return {
        name: str(tuned(tmp_path_factory.mktemp(name), tune, lists))
        for name, (tune, lists) in made.items()
    }


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    place, home = tmp_path / "repository", tmp_path / "home"
    place.mkdir()
    home.mkdir()
    subprocess.run(["git", "init", "--quiet", str(place)], check=True, timeout=60)
    return Repository(place, home)


def inputs(running: Registry, name: str, bundle: str, folder: Path) -> dict[str, str]:
    return {
        "reference": f"{running.place}/gate/{name}:main",
        "bundle": bundle,
        "flytune": str(command(folder)),
        "pull": "--insecure",
        "push": "--insecure",
    }


def test_a_branch_is_compared_and_the_default_one_becomes_the_baseline(
    running: Registry, bundles: dict[str, str], repository: Repository, tmp_path: Path
) -> None:
    def of(bundle: str) -> dict[str, str]:
        return inputs(running, "github", bundles[bundle], tmp_path)

    first = repository.github("topic", "pull_request", **of("served"))
    assert (first.code, first.outputs) == (0, {"outcome": "first"})
    assert "There is no baseline yet" in first.summary
    assert "the baseline stays: this is not the default branch" in first.output

    begun = repository.github("main", **of("served"))
    assert (begun.code, len(begun.steps)) == (0, 4)
    assert "moved   " in begun.output

    fine = repository.github("7/merge", "pull_request", **of("same"))
    assert (fine.code, fine.outputs) == (0, {"outcome": "fine"})

    slow = repository.github("8/merge", "pull_request", **of("slow"))
    assert (slow.code, slow.outputs) == (1, {"outcome": "regression"})
    assert slow.steps[-1] == "Compare them"
    assert "::error" in slow.output
    assert "check REGRESSION: 1 slower" in slow.summary
    assert "mm (16, 1024, 4096)" in slow.output
    # Nor does the default branch take it.
    assert repository.github("main", **of("slow")).code == 1

    unclear = repository.github("9/merge", "pull_request", **of("elsewhere"))
    assert (unclear.code, unclear.outputs) == (3, {"outcome": "undecided"})
    passed = repository.github(
        "9/merge", "pull_request", **of("elsewhere"), undecided="pass"
    )
    assert (passed.code, passed.outputs) == (0, {"outcome": "undecided"})


def test_options_reach_the_commands(
    running: Registry, bundles: dict[str, str], repository: Repository, tmp_path: Path
) -> None:
    base = inputs(running, "options", bundles["served"], tmp_path)
    assert repository.github("topic", **base, publish="true").code == 0
    slow = {**base, "bundle": bundles["slow"]}
    lenient = repository.github("topic", **slow, check="--max-regression 50%")
    assert (lenient.code, lenient.outputs) == (0, {"outcome": "fine"})
    # What a word of theirs would do in a shell it does not do.
    (tmp_path / "touched").unlink(missing_ok=True)
    wild = repository.github("topic", **base, check=f"$(touch {tmp_path}/touched) *")
    assert wild.code == 2
    assert not (tmp_path / "touched").exists()


def test_neither_a_bundle_nor_how_to_build_one(
    running: Registry, repository: Repository, tmp_path: Path
) -> None:
    ran = repository.github("topic", **inputs(running, "none", "", tmp_path))
    assert ran.code == 2
    assert "error: neither GATE_BUNDLE nor GATE_BUILD is set" in ran.output
    gone = inputs(running, "none", str(tmp_path / "gone"), tmp_path)
    assert repository.github("topic", **gone).code == 2


def test_a_registry_that_is_down_is_no_missing_baseline(
    bundles: dict[str, str], repository: Repository, tmp_path: Path
) -> None:
    lost = Registry("127.0.0.1:9", tmp_path)
    ran = repository.github("topic", **inputs(lost, "x", bundles["same"], tmp_path))
    assert ran.code == 1
    assert ran.steps == ["Pull the baseline"]
    assert "There is no baseline" not in ran.summary


def test_gitlab_runs_the_same(
    running: Registry, bundles: dict[str, str], repository: Repository, tmp_path: Path
) -> None:
    def variables(bundle: str, **more: str) -> dict[str, str]:
        return {
            "GATE_REFERENCE": f"{running.place}/gate/gitlab:main",
            "GATE_SOURCE": f"file://{GATE}/gate.sh",
            "GATE_BUNDLE": bundles[bundle],
            "GATE_PULL": "--insecure",
            "GATE_PUSH": "--insecure",
            "FLYTUNE": str(command(tmp_path)),
            **more,
        }

    begun = repository.gitlab("main", **variables("served"))
    assert begun.code == 0, begun.output
    fine = repository.gitlab(None, **variables("same"))
    assert fine.code == 0
    assert "the baseline stays" in fine.output
    slow = repository.gitlab(None, **variables("slow"))
    assert slow.code == 1
    job = yaml.safe_load((GATE / "gitlab.yml").read_text())[".flytune-gate"]
    kept = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    assert all((repository.place / path).is_file() for path in kept)
    lost = repository.gitlab(None, **variables("same", GATE_SOURCE=""))
    assert "where gate.sh is" in lost.output


def test_it_runs_without_a_platform(
    running: Registry, bundles: dict[str, str], tmp_path: Path
) -> None:
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "FLYTUNE": str(command(tmp_path)),
        "GATE_REFERENCE": f"oci:{tmp_path}/layout:main",
        "GATE_BUNDLE": bundles["served"],
    }

    def ran(*steps: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = [str(GATE / "gate.sh"), *steps]
        return subprocess.run(
            words,
            cwd=tmp_path,
            env={**env, **more},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert ran("check").stderr == "error: no new bundle: gate.sh build comes first\n"
    assert "GATE_BUILD" in ran("--help").stdout
    for wrong in (
        {"GATE_REFERENCE": ""},
        {"GATE_UNDECIDED": "x"},
        {"GATE_PUBLISH": "x"},
    ):
        refused = ran(**wrong)
        assert refused.returncode == 2
        assert next(iter(wrong)) in refused.stderr
    assert ran().returncode == 0
    assert ran("push", GATE_PUBLISH="true").returncode == 0
    layout = (tmp_path / "layout" / "index.json").read_bytes()
    assert ran(GATE_BUNDLE=bundles["slow"]).returncode == 1
    refused = ran("push", GATE_PUBLISH="true")
    assert refused.returncode == 2
    assert "the gate has not passed" in refused.stderr
    # What was checked once is no leave for another bundle, nor for a check that failed.
    assert ran().returncode == 0
    assert ran("build", GATE_BUNDLE=bundles["slow"]).returncode == 0
    assert "was not checked" in ran("push", GATE_PUBLISH="true").stderr
    assert ran().returncode == 0
    failed = ran("check", GATE_CHECK="--limitz x")
    assert failed.returncode == 2
    assert "was not checked" in ran("push", GATE_PUBLISH="true").stderr
    kept = tmp_path / "again.tar.zst"
    shutil.copy(bundles["same"], kept)
    assert ran(GATE_BUNDLE=str(kept)).returncode == 0
    shutil.copy(bundles["slow"], kept)
    assert "another bundle" in ran("push", GATE_PUBLISH="true").stderr
    assert layout == (tmp_path / "layout" / "index.json").read_bytes()


def test_a_command_that_fails_is_no_regression(
    running: Registry, bundles: dict[str, str], repository: Repository, tmp_path: Path
) -> None:
    base = inputs(running, "failing", bundles["served"], tmp_path)
    assert repository.github("topic", **base, publish="true").code == 0
    fine = repository.github("topic", **base)
    assert fine.outputs == {"outcome": "fine"}
    broken = repository.github("topic", **base, check="--limits nowhere.toml")
    assert broken.code == 1
    assert (broken.outputs, broken.summary) == ({}, "")


def test_the_hook_of_pre_commit(bundles: dict[str, str], tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((GATE.parents[1] / ".pre-commit-hooks.yaml").read_text())
    arguments = [bundles["slow"], "--baseline", bundles["served"]]
    program, *words = hook["entry"].split()
    assert program == "flytune"
    done = subprocess.run(
        [str(command(tmp_path)), *words, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "REGRESSION" in done.stdout

"""Bundles of kernels that were compiled for a device that is not here."""

import json
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builds import SQUARE, Build, copied, flytune, unpacked

from flytune.caches.bundle import Bundle
from flytune.caches.columns import Status
from flytune.caches.device_profile import find_profile
from flytune.caches.records import TuningRecord, read_records
from flytune.tuner import enumeration as stage
from flytune.tuner.candidate import ATEN, TRITON, Candidate, Enumeration
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import make_plan
from flytune.tuner.progress import Progress
from flytune.tuner.publish import KERNELS, RECORDS_NAME

H200 = find_profile("h200")


def found(build: Build) -> Enumeration:
    (path,) = build.work.glob("*/lists.pickle")
    enumeration: Enumeration = pickle.loads(path.read_bytes())
    return enumeration


def candidates(build: Build) -> dict[str, Candidate]:
    """Every candidate of the build's one list."""
    return {c.choice_hash: c for c in found(build).lists[0].candidates}


def records(build: Build, folder: Path) -> dict[str, TuningRecord]:
    rows = read_records(unpacked(build.bundle, folder) / RECORDS_NAME)
    by_hash = {row.choice_hash: row for row in rows}
    assert len(by_hash) == len(rows)
    return by_hash


def folders(bundle: Path) -> set[str]:
    """The kernels of a bundle, a folder a candidate."""
    files = Bundle.open(bundle).manifest.files
    return {name.split("/")[1] for name in files if name.startswith(f"{KERNELS}/")}


def again(build: Build, out: Path, *more: object, work: Path) -> tuple[int, str, str]:
    """The same command to another output; its exit code, stdout and log."""
    arguments = [a if a != str(build.work) else str(work) for a in build.arguments]
    done = flytune(out.parent / "home", *arguments, "--out", out, *more)
    return done.returncode, done.stdout, done.stderr


def error_of(log: str) -> str:
    """The one error of a log, which ends it but for a hint."""
    lines = log.splitlines()
    (number,) = [n for n, line in enumerate(lines) if line.startswith("error: ")]
    assert all(line.startswith("hint: ") for line in lines[number + 1 :])
    assert "Traceback" not in log
    return lines[number]


def test_the_manifest_says_that_nothing_ran(compiled_build: Build) -> None:
    manifest = Bundle.open(compiled_build.bundle).manifest
    assert (manifest.timed_on, manifest.verify) == (None, None)
    assert manifest.software == "stand-in"
    assert manifest.winners == ()
    assert manifest.bake == {
        "passes": [],
        "settled": False,
        "remaining": {},
        "tools": {},
    }
    assert manifest.inductor_config == {}
    coverage = manifest.coverage
    assert (coverage["planned"], coverage["lists"], coverage["tuned"]) == (8, 1, 0)
    assert (coverage["reached"], coverage["unreached"]) == (8, {})
    assert (manifest.model["tp"], manifest.model["ep"]) == (1, 1)
    assert (coverage["missing"], coverage["unplanned"]) == ({}, [])
    count = len(candidates(compiled_build))
    assert (coverage["candidates"], coverage["compiled"]) == ({"ok": count}, count - 1)
    assert coverage["by_kind"] == {
        "aten mm bfloat16": {"ok": 1},
        "triton mm bfloat16": {"ok": count - 1},
    }
    assert (coverage["enumerated"], coverage["declined"]) == ("program", {})


def test_the_manifest_has_the_target_and_the_software(compiled_build: Build) -> None:
    manifest = Bundle.open(compiled_build.bundle).manifest
    assert manifest.target["hardware"] == H200.hardware()
    software = manifest.target["software"]
    assert software["torch_key"] == found(compiled_build).torch_key
    assert software["triton_key"] == found(compiled_build).triton_key
    assert len(software["torch_key"]) == 64
    assert manifest.policy["device"] == "cuda"
    assert manifest.policy["inductor"]["max_autotune_gemm_backends"] == "ATEN,TRITON"


def test_every_candidate_has_a_record_and_nobody_won(
    compiled_build: Build, tmp_path: Path
) -> None:
    rows, known = records(compiled_build, tmp_path / "b"), candidates(compiled_build)
    assert rows.keys() == known.keys()
    for name, row in rows.items():
        assert (row.status, row.reason) == (Status.OK, None)
        assert (row.backend, row.config) == (known[name].backend, known[name].config)
        assert (row.source, row.median_us, row.samples_us) == (None, None, ())
        assert (row.device_uuid, row.winner, row.baked) == (None, False, False)
        compiled = row.backend == TRITON
        assert (row.backend == ATEN) != compiled
        assert (row.compile_s is not None) == compiled
        assert (row.kernel_digest is not None) == compiled
        if row.compile_s is not None:
            assert row.compile_s > 0
    digests = {row.kernel_digest for row in rows.values() if row.backend == TRITON}
    assert len(digests) == len(rows) - 1


def test_every_kernel_is_packed(compiled_build: Build) -> None:
    files = Bundle.open(compiled_build.bundle).manifest.files
    known = candidates(compiled_build).values()
    assert len(folders(compiled_build.bundle)) == len(known) - 1
    kernels = [name for name in files if name.endswith(".cubin")]
    assert len(kernels) == len(known) - 1
    assert all(name.startswith(f"{KERNELS}/") for name in kernels)
    assert not any(name.startswith("inductor/") for name in files)


def test_what_a_person_reads(compiled_build: Build, tmp_path: Path) -> None:
    count = len(candidates(compiled_build))
    assert compiled_build.stdout.splitlines() == [
        "square-llama for NVIDIA H200",
        "policy max-autotune-no-cudagraphs: as torch.compile's mode of that name",
        "",
        f"compiled for 1 lists: {count} ok; none was timed",
        "        aten mm bfloat16: 1 ok",
        f"        triton mm bfloat16: {count - 1} ok",
        "        where the device is: flytune build --from BUNDLE",
        f"bundle  {compiled_build.bundle}",
    ]
    assert " lists to time" not in compiled_build.log
    done = flytune(tmp_path, "inspect", compiled_build.bundle)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "built by  stand-in software: install refuses it" in lines
    words = "nothing: candidates were compiled, for a build where the device is"
    assert f"timed on  {words}" in lines
    assert "verified  no" in lines
    assert "winners   0" in lines
    done = flytune(tmp_path, "inspect", compiled_build.bundle, "--json")
    row = json.loads(done.stdout)
    assert (row["timed_on"], row["verify"], row["winners"]) == (None, None, [])
    assert row["target"]["hardware"]["product"] == "NVIDIA H200"


def test_it_is_not_installed(compiled_build: Build, tmp_path: Path) -> None:
    done = flytune(tmp_path / "home", "install", compiled_build.bundle)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "error: bundle is for another target: bundle: built for `another build`, "
        "here `serving`"
    )
    assert done.stderr.splitlines()[1:] == [
        "hint: give it to `flytune build --from` where the device is"
    ]
    assert not (tmp_path / "home").exists()


def test_a_command_runs_without_it(compiled_build: Build, tmp_path: Path) -> None:
    code = "import os; print(os.environ.get('FLYTUNE_INSTALLED'))"
    command = (sys.executable, "-c", code)
    done = flytune(tmp_path / "home", "exec", compiled_build.bundle, "--", *command)
    assert (done.returncode, done.stdout) == (0, "None\n")
    assert done.stderr.startswith("flytune: bundle not used: bundle: built for ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "home" / "installed").exists()


def test_it_does_not_pass_for_verified(compiled_build: Build, tmp_path: Path) -> None:
    done = flytune(tmp_path / "home", "verify", compiled_build.bundle)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "error: nothing to verify: the bundle holds bare kernels for a build, none of "
        "them FlyDSL's",
        "hint: where the device is: flytune build --from BUNDLE",
    ]


def test_a_serving_environment_that_differs_ends_it_before_anything_is_compiled(
    compiled_build: Build, tmp_path: Path
) -> None:
    here = found(compiled_build)
    software = Bundle.open(compiled_build.bundle).manifest.target["software"]
    same = {
        "python_abi": software["python_abi"],
        "torch": software["torch"],
        "torch_key": here.torch_key,
        "triton_key": f"{here.triton_key}-other",
    }
    captured = tmp_path / "profile.json"
    captured.write_text(json.dumps(replace(H200, captured_with=same).to_json()))
    out = tmp_path / "out" / "b.tar.zst"
    out.parent.mkdir()
    work = copied(compiled_build.work, tmp_path / "work")
    code, stdout, log = again(
        *(compiled_build, out, "--target-env", captured), work=work
    )
    assert (code, stdout) == (1, "")
    assert error_of(log).startswith(
        "error: the serving environment differs: software.triton_key: "
    )
    assert error_of(log).endswith(f"-other` there, `{here.triton_key}` here")
    assert " build: " not in log
    assert list(out.parent.iterdir()) == []


@pytest.mark.slow
def test_another_build_takes_the_kernels_and_compiles_none(
    compiled_build: Build, tmp_path: Path
) -> None:
    out, work = tmp_path / "b", tmp_path / "work"
    code, _, log = again(
        *(compiled_build, out, "--from", compiled_build.bundle),
        *("--target-env", sys.prefix),
        work=work,
    )
    assert code == 0, log
    known = candidates(compiled_build)
    assert f"build: {len(known) - 1} candidates compiled by an earlier build" in log
    assert re.findall(r"build: \d+ of", log) == []
    manifest = Bundle.open(out).manifest
    # The environment that serves is this very one, so its kernels hit.
    assert (manifest.software, manifest.timed_on) == ("serving", None)
    first = Bundle.open(compiled_build.bundle).manifest
    kernels = {n: e for n, e in first.files.items() if n.startswith(f"{KERNELS}/")}
    assert kernels == {
        n: e for n, e in manifest.files.items() if n.startswith(f"{KERNELS}/")
    }
    second = Build(compiled_build.arguments, out, work, "", log)
    old, new = records(compiled_build, tmp_path / "1"), records(second, tmp_path / "2")
    assert old == new


@pytest.mark.slow
def test_what_is_excluded_is_a_row_and_no_kernel(
    compiled_build: Build, tmp_path: Path
) -> None:
    name = next(n for n, c in candidates(compiled_build).items() if c.backend == TRITON)
    out, work = tmp_path / "b", tmp_path / "work"
    code, stdout, log = again(
        *(compiled_build, out, "--from", compiled_build.bundle, "--exclude", name),
        work=work,
    )
    assert code == 0, log
    second = Build(compiled_build.arguments, out, work, "", log)
    rows = records(second, tmp_path / "records")
    assert rows.keys() == candidates(compiled_build).keys()
    row = rows.pop(name)
    assert (row.status, row.reason) == (Status.FAULT, "excluded by --exclude")
    assert f"{len(rows)} ok, 1 fault; none was timed" in stdout
    assert (row.compile_s, row.kernel_digest) == (None, None)
    assert {r.status for r in rows.values()} == {Status.OK}
    assert not (work / "quarantine.jsonl").exists()
    assert len(folders(out)) == len(folders(compiled_build.bundle)) - 1


@pytest.mark.parametrize("live", ["none", "other", "same", "same with less memory"])
def test_only_the_very_device_is_asked_for_its_candidates(
    live: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, dict[str, object]] = {
        "other": {"name": "NVIDIA H100", "multi_processor_count": 114},
        "same": {},
        "same with less memory": {"total_memory": 140 * 2**30},
    }
    here = None
    if live in changes:
        here = replace(H200, properties={**H200.properties, **changes[live]})
    monkeypatch.setattr(stage, "live_profile", lambda: here)
    asked: list[object] = []

    def run_module(
        _: str, request: dict[str, object], result: Path, env: dict[str, str], **__: str
    ) -> None:
        asked.extend([request["profile"], env.get("CUDA_VISIBLE_DEVICES")])
        result.write_bytes(pickle.dumps(Enumeration((), "ab", None, {})))

    monkeypatch.setattr(stage, "run_module", run_module)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    options = BuildOptions(
        model=str(SQUARE),
        tokens=(64,),
        attention=None,
        policy="unfrozen",
        threads=2,
        out=tmp_path / "b",
        work=tmp_path,
        ray=None,
        from_bundle=None,
        bake_passes=2,
        target="h200",
        compile_only=True,
    )
    plan = make_plan(options)
    plan.work.mkdir()
    farm: Any = SimpleNamespace(warm=lambda: None)
    stage.enumerate_lists(plan, options, lambda: farm, Progress())
    real = live.startswith("same")
    assert asked == ([None, "3"] if real else [H200.to_json(), ""])

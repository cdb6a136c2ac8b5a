"""Real builds through the command line: again, onward, stopped and refused."""

import json
import pickle
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from builds import (
    LLAMA,
    Build,
    Stopped,
    arguments_of,
    copied,
    flytune,
    kill_build,
    run_build,
    run_python,
    unpacked,
)
from click.testing import CliRunner, Result

from flytune.caches.bundle import Bundle
from flytune.caches.keyring import read_keyring
from flytune.caches.manifest import Manifest, canonical_json
from flytune.caches.policy import DYNAMO_RECOMPILE_LIMIT
from flytune.caches.records import read_records
from flytune.caches.trust import HERE, admit
from flytune.tuner.candidate import ATEN, CPP
from flytune.tuner.cli import main

# What a server does: its first line, then torch, then a plain compilation.
SERVE = """
import json, sys
bundle, mode = sys.argv[1:]
if mode == "install":
    import flytune.caches
    flytune.caches.install(bundle)
from flytune.caches.bundle import Bundle
from flytune.caches.ledger import ASIDE, Ledger, summary
from flytune.caches.ledger_hooks import arm
from flytune.caches.program import ProgramSpec, build_program
ledger = Ledger()
arm(ledger)
import torch
spec = ProgramSpec.from_json(Bundle.open(bundle).manifest.program)
with torch.no_grad():
    for piece in build_program(spec, seed=77):
        compiled = torch.compile(piece.module)
        for tokens in (1, 8):
            arguments, named = piece.inputs(tokens, 5)
            compiled(*arguments, **named)
lookups = sorted({f"{k.layer} {k.state}" for k in ledger.lookups})
work = summary(e for e in ledger.events if e.kind not in ASIDE)
print(json.dumps([work, lookups]))
"""


def winners(bundle: Path) -> bytes:
    return canonical_json(Bundle.open(bundle).manifest.winners)


def names(manifest: Manifest) -> set[str]:
    """The files of a bundle; one that holds a graph is named after its own bytes."""
    return {
        path.rpartition("/")[0] if "graph/" in path or "grad/" in path else path
        for path in manifest.files
    }


def strictly_verified(bundle: Path, home: Path) -> dict[str, Any]:
    """What `flytune verify --strict` says of a bundle that must pass."""
    done = flytune(home, "verify", bundle, "--strict", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    row: dict[str, Any] = json.loads(done.stdout)
    # Nothing was tuned, compiled or lowered.
    assert (row["failures"], row["uncacheable"], row["work"]) == ([], [], {})
    return row


def lines_of(stage: str, log: str) -> list[str]:
    return re.findall(rf"^\[\d\d:\d\d\] {stage}: .*$", log, re.MULTILINE)


def test_the_bundle_says_how_it_was_baked(unfrozen_build: Build) -> None:
    row = Bundle.open(unfrozen_build.bundle).manifest
    first, *_, last = row.bake["passes"]
    assert first["lowered"] == 4
    assert first["cpp_compiled"] > 0
    assert "tuned" not in first
    assert (last, row.bake["settled"], row.bake["remaining"]) == ({}, True, {})
    assert row.coverage["tuned"] == 2
    assert row.coverage["unplanned"] == []
    assert row.verify is not None
    assert row.verify["ok"]
    assert {w["candidates"] for w in row.winners if w["op"] == "bmm"} == {2}
    assert "verify  hit: 0 lowered, 0 tuned, 0 compiled" in unfrozen_build.stdout


def test_the_bundle_is_signed_and_says_how_it_was_built(
    unfrozen_build: Build,
) -> None:
    bundle = Bundle.open(unfrozen_build.bundle)
    assert bundle.envelope is not None
    assert bundle.envelope.signatures[0].keyid in read_keyring().trusted
    admit(bundle, HERE)
    words = ["flytune", *unfrozen_build.arguments, "--out", str(bundle.path)]
    assert bundle.manifest.provenance["command"] == words
    assert bundle.manifest.provenance["host"] == platform.node()
    stages = bundle.manifest.provenance["stages"]
    parts = ["plan", "enumerate", "tune", "bake", "verify"]
    assert [part for part, _ in stages] == parts
    assert min(seconds for _, seconds in stages) > 0
    assert bundle.manifest.provenance["ceilings"]["gemm_tflops"]["bfloat16"] > 0


@pytest.mark.slow
def test_a_second_build_tunes_nothing(unfrozen_build: Build, tmp_path: Path) -> None:
    # It bakes anew where others look.
    work = copied(unfrozen_build.work, tmp_path / "work")
    arguments = (*arguments_of(LLAMA, "1,8", "unfrozen", work), "--bake-passes", "2")
    second = run_build(arguments, tmp_path / "b.tar.zst", tmp_path / "home")
    assert "tune: 0 lists to time, 2 known from earlier work" in second.log
    assert lines_of("(build|time)", second.log) == []
    assert "enumerate: lowering" not in second.log
    first = Bundle.open(unfrozen_build.bundle)
    assert winners(second.bundle) == winners(first.path)
    manifest = Bundle.open(second.bundle).manifest
    assert len(manifest.bake["passes"]) == 2
    # An archive holds what a directory holds.
    assert names(manifest) == names(first.manifest)
    same = "records.parquet"
    assert manifest.files[same] == first.manifest.files[same]


@pytest.mark.slow
def test_a_build_from_an_older_bundle_of_the_same_only_verifies(
    unfrozen_build: Build, tmp_path: Path
) -> None:
    older = unfrozen_build.bundle
    arguments = arguments_of(LLAMA, "1,8", "unfrozen", tmp_path / "work")
    built = run_build((*arguments, "--from", str(older)), tmp_path / "b", tmp_path)
    assert "from: nothing has changed; verify: running the program" in built.log
    assert lines_of("(enumerate|tune|build|time|bake)", built.log) == []
    old, new = Bundle.open(older).manifest, Bundle.open(built.bundle).manifest
    assert new.files == old.files
    assert (new.winners, new.bake, new.target) == (old.winners, old.bake, old.target)
    assert new.verify is not None
    assert new.verify["ok"]
    assert new.verify["again"]["ok"]
    assert new.provenance["command"][-4:-2] == ["--from", str(older)]
    assert [name for name, _ in new.provenance["stages"]] == ["plan", "verify"]


@pytest.mark.slow
def test_a_build_from_an_older_bundle_of_another_compiler(
    unfrozen_build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag more makes other C++ kernels: they alone are compiled and timed."""
    wrapper = tmp_path / "g++"
    real = shutil.which("g++")
    wrapper.write_text(f'#!/bin/sh\nexec {real} -fno-tree-vectorize "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    older = unfrozen_build.bundle
    arguments = arguments_of(LLAMA, "1,8", "unfrozen", tmp_path / "work")
    built = run_build((*arguments, "--from", str(older)), tmp_path / "b", tmp_path)
    assert "cpp kernels           2 candidates compiled again: software.co" in built.log
    assert "library timings       2 times      kept" in built.log
    assert "upgrade: 2 lists are known; 4 of their 4 candidates come first" in built.log
    assert "upgrade: lists that stand as they were: 0" in built.log
    assert re.findall(r"build: (\d+) of (\d+)", built.log)[-1] == ("2", "2")
    manifest = Bundle.open(built.bundle).manifest
    assert manifest.verify is not None
    assert manifest.verify["ok"]


def test_a_stopped_build_leaves_nothing_behind(stopped_build: Stopped) -> None:
    assert stopped_build.code == 130
    assert "\nerror: stopped: the same command goes on from here\n" in stopped_build.log
    assert "Traceback" not in stopped_build.log
    assert stopped_build.left == ()
    assert stopped_build.strays == ()


def test_a_stopped_build_goes_on(stopped_build: Stopped, frozen_build: Build) -> None:
    assert "enumerate: lowering" in stopped_build.log
    assert "enumerate: lowering" not in frozen_build.log
    before, after = (
        int(re.findall(r"build: \d+ of (\d+)", log)[0])
        for log in (stopped_build.log, frozen_build.log)
    )
    assert after < before
    assert [path.name for path in frozen_build.bundle.parent.iterdir()] == [
        "bundle.tar.zst"
    ]


def test_libraries_of_mere_candidates_are_left_out(
    frozen_build: Build, tmp_path: Path
) -> None:
    (path,) = frozen_build.work.glob("*/lists.pickle")
    candidates = {
        pickle.loads(candidate.request).source_code
        for offered in pickle.loads(path.read_bytes()).lists
        for candidate in offered.candidates
        if candidate.backend == CPP
    }
    (built,) = frozen_build.work.glob("*/built")
    assert candidates
    sources = {path.read_text(): path.stem for path in built.rglob("*.cpp")}
    assert candidates <= sources.keys()
    folder = unpacked(frozen_build.bundle, tmp_path / "b")
    libraries = {path.stem for path in folder.rglob("*.so")}
    assert libraries
    # A library is named after its source.
    assert libraries.isdisjoint(sources[text] for text in candidates)
    # torch writes sources itself, from the graph.
    assert not list((folder / "inductor").rglob("*.cpp"))


def test_a_bmm_that_cpp_won_is_baked(unfrozen_build: Build) -> None:
    winners = Bundle.open(unfrozen_build.bundle).manifest.winners
    choices = [row for row in winners if row["candidates"] > 1]
    assert sorted(row["backend"] for row in choices) == [ATEN, CPP]
    assert {row["op"] for row in choices} == {"bmm"}
    # The template of the list that C++ won, and not that of the list that it lost.
    sources = unfrozen_build.work.glob("*/bake/*/*.cpp")
    (source,) = (path for path in sources if "micro_gemm" in path.read_text())
    libraries = (unfrozen_build.bundle / "inductor").rglob("*.so")
    assert source.stem in {path.stem for path in libraries}
    records = read_records(unfrozen_build.bundle / "records.parquet")
    baked = [r.backend for r in records if r.baked and r.inductor_op == "bmm"]
    assert sorted(baked) == [ATEN, CPP]


@pytest.mark.slow
def test_more_sizes_than_dynamos_default_limit(tmp_path: Path) -> None:
    sizes = range(1, DYNAMO_RECOMPILE_LIMIT + 2)
    tokens = ",".join(map(str, sizes))
    arguments = arguments_of(LLAMA, tokens, "unfrozen", tmp_path / "work")
    built = run_build(arguments, tmp_path / "b", tmp_path / "home")
    passes = Bundle.open(built.bundle).manifest.bake["passes"]
    assert passes[0]["lowered"] == 2 * len(sizes)
    assert all("fell_back" not in work for work in passes)
    row = strictly_verified(built.bundle, tmp_path / "home")
    assert row["lookups"] == {"aot hit": 6 * len(sizes), "fx hit": 6 * len(sizes)}


@pytest.mark.slow
def test_a_build_killed_in_its_bake_leaves_no_process_and_goes_on(
    unfrozen_build: Build, tmp_path: Path
) -> None:
    work = copied(unfrozen_build.work, tmp_path / "work")
    for baked in work.glob("*/bake"):
        shutil.rmtree(baked)
    arguments = arguments_of(LLAMA, "1,8", "unfrozen", work)
    out, home = tmp_path / "b", tmp_path / "home"
    assert kill_build(arguments, out, home) == ()
    assert not out.exists()
    again = run_build(arguments, out, home)
    assert "tune: 0 lists to time, 2 known from earlier work" in again.log
    assert names(Bundle.open(out).manifest) == names(
        Bundle.open(unfrozen_build.bundle).manifest
    )


def test_records_hold_every_candidate(frozen_build: Build, tmp_path: Path) -> None:
    folder = unpacked(frozen_build.bundle, tmp_path / "b")
    (path,) = frozen_build.work.glob("*/lists.pickle")
    offered = {
        (one.op, one.inputs_key, candidate.choice_hash)
        for one in pickle.loads(path.read_bytes()).lists
        for candidate in one.candidates
    }
    records = read_records(folder / "records.parquet")
    assert {(r.inductor_op, r.inputs_key, r.choice_hash) for r in records} == offered
    won = [r for r in records if r.winner]
    assert len(won) == len(Bundle.open(folder).manifest.winners)
    assert all(r.baked == r.winner for r in records)


@pytest.mark.parametrize("mode", ["install", "exec"])
def test_a_server_hits(unfrozen_bundle: Path, tmp_path: Path, mode: str) -> None:
    home = {"FLYTUNE_HOME": str(tmp_path)}
    if mode == "install":
        printed = run_python(SERVE, unfrozen_bundle, mode, env=home)
    else:
        script = tmp_path / "serve.py"
        script.write_text(SERVE)
        command = (sys.executable, script, unfrozen_bundle, mode)
        done = flytune(tmp_path, "exec", unfrozen_bundle, "--", *command)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    work, lookups = json.loads(printed.splitlines()[-1])
    assert (work, lookups) == ({}, ["aot hit", "fx hit"])


def refused(folder: Path, *arguments: object) -> Result:
    """A build that must be refused before it has made anything."""
    before = sorted(folder.rglob("*"))
    fixed = ("--model", LLAMA, "--tokens", "1", "--work", folder / "work")
    result = CliRunner().invoke(main, ["build", *map(str, (*fixed, *arguments))])
    assert (result.exit_code, result.stdout) == (1, "")
    assert sorted(folder.rglob("*")) == before
    return result


@pytest.mark.parametrize("name", ["b", "b.tar.zst"])
def test_an_output_that_exists(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    out.touch()
    assert refused(tmp_path, "--out", out).stderr == (
        f"error: output exists: {out}\nhint: remove it, or give another --out\n"
    )


def test_no_directory_for_the_output(tmp_path: Path) -> None:
    result = refused(tmp_path, "--out", tmp_path / "none" / "b")
    assert result.stderr == f"error: no directory for the output: {tmp_path}/none\n"


def test_a_corrupt_older_bundle(frozen_bundle: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.tar.zst"
    cut.write_bytes(frozen_bundle.read_bytes()[:5000])
    result = refused(tmp_path, "--from", cut, "--out", tmp_path / "b")
    error = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert len(error) == 1
    assert error[0].startswith("error: archive is truncated")

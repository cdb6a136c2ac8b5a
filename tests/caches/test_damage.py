"""Files of an installed bundle that are damaged: mended, set aside, never loaded."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundles import installable
from spoiled import (
    GRAPH,
    GROUP,
    KERNEL,
    LIBRARY,
    TIMINGS,
    WHOLE,
    cut,
    empty,
    flip,
    fold,
    found,
    placed,
    rewrite,
)

from flytune.caches.bundle import Bundle
from flytune.caches.child import clean_environment, run_module
from flytune.caches.hook.flytune_files import (
    set_aside,
)
from flytune.caches.install import attempt, exec_environment
from flytune.caches.judge import judge
from flytune.caches.policy import ServingPolicy
from flytune.caches.prepare import prepare
from flytune.caches.verify import SESSION, VERIFY_SEED
from flytune.shapes.errors import FlytuneError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return installable(tmp_path, "b", files=WHOLE)


@pytest.mark.parametrize("path", WHOLE)
@pytest.mark.parametrize("damage", [empty, cut, flip, rewrite, fold])
def test_what_a_child_finds(
    bundle: Path, path: str, damage: Callable[[Path], None]
) -> None:
    directory = placed(bundle)
    assert found(directory) == []
    damage(directory / path)
    if damage is rewrite and path == TIMINGS:
        (directory / path).write_bytes(b'{"cache": []}')
    assert found(directory) == [path]


@pytest.mark.parametrize("path", WHOLE)
def test_what_is_absent_is_a_miss(bundle: Path, path: str) -> None:
    directory = placed(bundle)
    (directory / path).unlink()
    assert found(directory) == []
    # An installation has the bundle, and makes it anew.
    assert prepare(bundle).mended == (path,)


@pytest.mark.parametrize("path", WHOLE)
def test_an_installation_reads_every_file(bundle: Path, path: str) -> None:
    directory = placed(bundle)
    before = (directory / path).read_bytes()
    flip(directory / path)
    assert prepare(bundle).mended == (path,)
    assert (directory / path).read_bytes() == before
    assert prepare(bundle).mended == ()


def test_timings_that_serving_added_are_kept(bundle: Path) -> None:
    directory = placed(bundle)
    more = b'{"system": {}, "cache": {"mm": {"m": 1}, "addmm": {}}}'
    (directory / TIMINGS).write_bytes(more)
    assert found(directory) == []
    assert prepare(bundle).mended == ()
    (directory / GRAPH).unlink()
    assert prepare(bundle).mended == (GRAPH,)
    assert (directory / TIMINGS).read_bytes() == more
    assert prepare(bundle).mended == ()


@pytest.mark.parametrize("text", [b'{"XBLOCK": 64}', b"0.0123"])
def test_what_serving_found_best_is_kept(tmp_path: Path, text: bytes) -> None:
    name = f"inductor/ab/cab.{'best_config' if text[:1] == b'{' else 'kernel_perf'}"
    bundle = installable(tmp_path, files={name: b'{"XBLOCK": 32}'})
    directory = placed(bundle)
    (directory / name).write_bytes(text)
    assert (found(directory), prepare(bundle).mended) == ([], ())
    (directory / name).write_bytes(b"{")
    assert found(directory) == [name]
    assert prepare(bundle).mended == (name,)


@pytest.mark.parametrize("path", WHOLE)
def test_what_the_bundle_cannot_mend_is_set_aside(
    bundle: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = placed(bundle)
    flip(directory / path)
    (bundle / GRAPH).unlink()
    installed = attempt(bundle)
    assert (installed.status, installed.set_aside) == ("hit", (path,))
    said = capsys.readouterr().err
    assert said == (
        f"flytune: 1 damaged files of an installed bundle are set aside: {path} "
        "(FT402)\n"
    )
    assert not (directory / path).exists()
    # It is said once: what is not there is a miss.
    assert attempt(bundle).set_aside == ()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("path", [KERNEL, GROUP])
def test_a_kernel_of_tritons_goes_as_a_whole(bundle: Path, path: str) -> None:
    # Else Inductor, which finds its folder, does not write it anew from the graph.
    directory = placed(bundle)
    assert set_aside(str(directory), [KERNEL, GROUP]) == ([KERNEL, GROUP], [])
    assert not (directory / "inductor/triton/0/KEY").exists()
    # A second time there is something in the way.
    shutil.copytree(
        directory / "damaged/inductor__triton__0__KEY",
        directory / path.rpartition("/")[0],
    )
    assert set_aside(str(directory), [path]) == ([path], [])


def served(environment: dict[str, str], code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )


STATUS = (
    "import torch, os, pathlib, json\n"
    "folder = pathlib.Path(os.environ['FLYTUNE_STATUS_DIR'])\n"
    "(path,) = folder.glob(f'{os.getpid()}-*.json')\n"
    "print(path.read_text())\n"
)


def test_a_child_sets_aside_what_was_damaged_since(bundle: Path) -> None:
    directory = placed(bundle)
    environment = exec_environment(prepare(bundle, command=True))
    empty(directory / LIBRARY)
    done = served(environment, STATUS)
    row = json.loads(done.stdout)
    assert (row["state"], row["code"]) == ("damaged", "FT402")
    assert row["files"] == {"set_aside": 1}
    assert done.stderr == (
        "flytune: 1 damaged files of an installed bundle are set aside: "
        f"{LIBRARY} (FT402)\n"
    )
    assert not (directory / LIBRARY).exists()
    assert (directory / "damaged/inductor__xy__cxyz.main.so").read_bytes() == b""
    second = served(environment, STATUS)
    assert (second.stderr, json.loads(second.stdout)["state"]) == ("", "hit")
    assert prepare(bundle).mended == (LIBRARY,)


def test_a_command_goes_on_from_what_was_said_of_it(bundle: Path) -> None:
    empty(placed(bundle) / LIBRARY)
    main = "from flytune.tuner.cli import main; main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            main,
            "exec",
            bundle,
            "--",
            sys.executable,
            "-c",
            STATUS,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.endswith(f": {LIBRARY} (FT401)\n")
    row = json.loads(done.stdout)
    assert (row["state"], row["files"]) == ("hit", {"mended": 1})
    assert row["errors"] == {"FT401": 1}


@pytest.mark.parametrize("text", [b"", b"[]", b'{"files": {"a": [1]}, "bundle": ""}'])
def test_a_child_without_a_marker_serves_plain(bundle: Path, text: bytes) -> None:
    directory = placed(bundle)
    environment = exec_environment(prepare(bundle, command=True))
    (directory / "installed.json").write_bytes(text)
    code = "import torch, os; print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    done = served(environment, code)
    assert done.stdout == "None\n"
    assert done.stderr.startswith("flytune: bundle not used: ")
    assert done.stderr.endswith("(FT404)\n")
    assert done.stderr.count("\n") == 1


def test_what_cannot_be_set_aside_is_not_served(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = placed(bundle)
    (directory / "damaged").write_text("in the way")
    flip(directory / LIBRARY)
    (bundle / GRAPH).unlink()
    with pytest.raises(FlytuneError, match="cannot be set aside"):
        prepare(bundle)
    assert attempt(bundle).code == "FT403"
    assert capsys.readouterr().err.endswith(f"set aside: {LIBRARY} (FT403)\n")


@pytest.mark.slow
def test_a_real_program_goes_on_where_its_files_are_damaged(
    unfrozen_bundle: Path, tmp_path: Path
) -> None:
    manifest = Bundle.open(unfrozen_bundle).manifest
    installed = prepare(unfrozen_bundle, command=True)
    assert installed.directory is not None
    caches = installed.directory / "inductor"
    library = sorted(caches.rglob("*.main.so"))[0]
    graph = sorted(caches.glob("fxgraph/*/*/*"))[0]
    (timings,) = caches.glob("cache/*")
    # Each of these alone ends a program: torch loads the library, takes the graph
    # for whole, and looks up the lists of the graph that it then lowers.
    for path in (library, graph, timings):
        empty(path)
    policy = ServingPolicy.from_json(manifest.policy)
    request = {
        "program": dict(manifest.program),
        "policy": policy.to_json(),
        "seed": VERIFY_SEED,
        "without": (),
    }
    hook = {
        name: exec_environment(installed)[name]
        for name in ("PYTHONPATH", "FLYTUNE_INSTALLED", "FLYTUNE_STATUS_DIR")
    }
    result = tmp_path / "result.json"
    env = clean_environment(policy, caches, **hook)
    run_module(SESSION, request, result, env, what="the program")
    found = judge(json.loads(result.read_text()), manifest, policy, (), [])
    assert found.work["cpp_compiled"] >= 1
    assert found.work["lowered"] >= 1
    assert not [line for line in found.failures if "differs from eager" in line]
    rows = (json.loads(path.read_text()) for path in status_files(tmp_path))
    (row,) = (row for row in rows if row["state"] == "damaged")
    assert row["files"] == {"set_aside": 3}
    # The graph is a miss, and the others are hits.
    assert row["graphs"]["miss"] >= 1
    assert row["graphs"]["hit"] >= 1


def status_files(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / "home" / "status").glob("*.json")

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flytune.shapes.errors import FlytuneError
from flytune.tuner import rocm_tools
from flytune.tuner.rocm_tools import BITCODE, LINKER, rocm_for_flydsl, tools_of

NONE = {"ROCM_PATH": "/nowhere"}


def real_rocm(root: Path) -> Path:
    """Make what looks like a ROCm."""
    (root / LINKER).parent.mkdir(parents=True)
    (root / LINKER).write_text("#!/bin/sh\n")
    (root / LINKER).chmod(0o755)
    (root / BITCODE).mkdir(parents=True)
    for name in ("ocml", "ockl"):
        (root / BITCODE / f"{name}.bc").write_bytes(name.encode())
    (root / ".info").mkdir()
    (root / ".info" / "version").write_text("7.2.0-70\n")
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rocm_for_flydsl(tmp_path_factory.mktemp("a place"), NONE)


def test_a_rocm_of_the_host_is_used_as_it_is(tmp_path: Path) -> None:
    rocm = real_rocm(tmp_path / "rocm")
    place = tmp_path / "place"
    assert rocm_for_flydsl(place, {"ROCM_PATH": str(rocm)}) == rocm
    assert not place.exists()
    parts = tools_of(rocm)
    assert (parts["kind"], parts["version"]) == ("rocm", "7.2.0-70")
    assert sorted(parts) == [
        *("flydsl_compiler", "kind", "linker", "ockl", "ocml", "version"),
    ]


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        (("ROCM_PATH", "ROCM_ROOT", "ROCM_HOME"), "ROCM_PATH"),
        (("ROCM_ROOT", "ROCM_HOME"), "ROCM_ROOT"),
        (("ROCM_HOME",), "ROCM_HOME"),
    ],
)
def test_variables_are_looked_at_in_flydsls_order(
    tmp_path: Path, variables: tuple[str, ...], found: str
) -> None:
    environ = {name: str(real_rocm(tmp_path / name)) for name in variables}
    assert rocm_for_flydsl(tmp_path, environ) == tmp_path / found


@pytest.mark.parametrize("missing", [LINKER, f"{BITCODE}/ockl.bc", ""])
def test_what_flydsl_would_find_wanting_is_replaced(
    tmp_path: Path, missing: str
) -> None:
    """An empty variable is set, and FlyDSL looks no further."""
    rocm = real_rocm(tmp_path / "rocm")
    good = {"ROCM_ROOT": str(real_rocm(tmp_path / "other"))}
    environ: Mapping[str, str] = {"ROCM_PATH": ""}
    if missing:
        (rocm / missing).unlink()
        environ = {"ROCM_PATH": str(rocm)}
    root = rocm_for_flydsl(tmp_path / "place", {**good, **environ})
    assert root.parent == tmp_path / "place"
    assert tools_of(root)["kind"] == "triton-wheel"


def test_those_who_inherit_it_make_none(made: Path, tmp_path: Path) -> None:
    assert rocm_for_flydsl(tmp_path, {"ROCM_PATH": str(made)}) == made
    assert rocm_for_flydsl(made.parent, NONE) == made
    assert list(tmp_path.iterdir()) == []
    assert list(made.parent.iterdir()) == [made]


def test_many_at_once_make_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        roots = set(pool.map(lambda _: rocm_for_flydsl(tmp_path, NONE), range(16)))
    assert list(tmp_path.iterdir()) == list(roots)


def test_parts_that_no_key_holds_are_told(made: Path) -> None:
    parts = tools_of(made)
    assert parts.pop("kind") == "triton-wheel"
    assert parts.pop("version").startswith("3.")
    assert sorted(parts) == ["flydsl_compiler", "linker", "ockl", "ocml"]
    assert {len(digest) for digest in parts.values()} == {64}
    assert len(set(parts.values())) == 4


def test_linker_says_what_it_cannot_link(made: Path, tmp_path: Path) -> None:
    """It runs in any environment: nothing of a shell's settings reaches it."""
    (tmp_path / "x.o").write_bytes(b"no object")
    command = [str(made / LINKER), "-shared", "x.o", "-o", "x.hsaco"]
    env = {**os.environ, "PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "lld" in done.stderr.lower() or "link" in done.stderr.lower()
    assert not (tmp_path / "x.hsaco").exists()


def test_neither_rocm_nor_triton_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(rocm_tools.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(FlytuneError, match="nothing to link with") as caught:
        rocm_for_flydsl(tmp_path, NONE)
    assert "ROCM_PATH" in str(caught.value.hint)


def test_a_place_that_takes_no_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FlytuneError, match="cannot make what FlyDSL links with"):
        rocm_for_flydsl(tmp_path / "file", NONE)


def test_any_directory_has_no_parts(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match=f"no {LINKER}"):
        tools_of(tmp_path)

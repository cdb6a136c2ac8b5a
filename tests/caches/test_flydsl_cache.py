"""The proof that FlyDSL finds what was compiled elsewhere, by FlyDSL itself."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from flydsl_candidates import ARCH, Rendered, entry_of, place

from flytune.caches import flydsl_kernel
from flytune.caches.flydsl_cache import missing_entries
from flytune.caches.flydsl_kernel import FlyDSLKernel, objects_of
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult

Builds = dict[str, BuildResult]
Kernels = tuple[Rendered, ...]


def entry_file(root: Path, builds: Builds, one: Rendered) -> Path:
    return root / entry_of(builds[one.kernel.name])


def test_entries_are_found_wherever_their_directory_is(
    flydsl_kernels: Kernels,
    flydsl_builds: Builds,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the shell has set, and whatever else lies beside them."""
    monkeypatch.setenv("FLYDSL_COMPILE_OPT_LEVEL", "1")
    monkeypatch.setenv("FLYDSL_RUNTIME_CACHE_DIR", "/nowhere")
    monkeypatch.setenv("ARCH", "x86_64")
    root = place(flydsl_builds, tmp_path / "made")
    root = root.rename(tmp_path / "moved")
    folder = entry_file(root, flydsl_builds, flydsl_kernels[0]).parent
    (folder / "torn.pkl").write_bytes(b"\x80\x05")
    (folder / "other.pkl").write_bytes(pickle.dumps({"not": "an entry"}))
    (folder.parent / "readme").write_text("foreign")
    kernels = [one.kernel for one in flydsl_kernels]
    assert missing_entries(root, kernels, ARCH) == ()


def test_each_entry_that_is_not_there_or_not_one_is_named(
    flydsl_kernels: Kernels, flydsl_builds: Builds, tmp_path: Path
) -> None:
    root = place(flydsl_builds, tmp_path)
    same, _, torn, foreign, text, whole, empty = flydsl_kernels
    spoilt = {
        one.kernel.name: entry_file(root, flydsl_builds, one) for one in flydsl_kernels
    }
    spoilt[same.kernel.name].unlink()
    cut = spoilt[torn.kernel.name]
    cut.write_bytes(cut.read_bytes()[:-20])
    spoilt[foreign.kernel.name].write_bytes(pickle.dumps({"not": "an entry"}))
    spoilt[text.kernel.name].write_text("<html>")
    spoilt[empty.kernel.name].write_bytes(b"")
    kernels = [one.kernel for one in flydsl_kernels]
    lines = missing_entries(root, kernels, ARCH)

    def line(one: Rendered, why: str, more: str = "", rest: str = "") -> str:
        path = spoilt[one.kernel.name]
        name = f"{path.parent.name}/{path.name}"
        return f"FlyDSL kernel is {why}: {name}{more}: {one.kernel.name}{rest}"

    assert lines == (
        line(same, "absent", rest=" and 1 more"),
        line(torn, "not one", ": unreadable"),
        line(foreign, "not one", ": no entry of FlyDSL's"),
        line(text, "not one", ": unreadable"),
        line(empty, "not one", ": unreadable"),
    )
    assert entry_file(root, flydsl_builds, whole).exists()


def test_a_module_that_cannot_be_asked_is_a_line(tmp_path: Path) -> None:
    kernel = FlyDSLKernel("x", "f", "raise KeyError('no such thing')", ())
    (line,) = missing_entries(tmp_path, [kernel], ARCH)
    assert line == "KeyError: 'no such thing': x"


def test_an_entry_of_another_device_is_refused(
    flydsl_kernels: Kernels, flydsl_builds: Builds
) -> None:
    result = flydsl_builds[flydsl_kernels[0].kernel.name]
    (entry,) = result.files.values()
    (code,) = objects_of(entry, ARCH)
    assert code.startswith(b"\x7fELF")
    with pytest.raises(ValueError, match="for gfx950, not gfx942"):
        objects_of(entry, "gfx942")


def test_no_flydsl_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flydsl_kernel, "installed", lambda _: "absent")
    with pytest.raises(FlytuneError, match="FlyDSL is not installed"):
        missing_entries(tmp_path, [], ARCH)


def test_kernels_come_back_from_json(flydsl_kernels: Kernels) -> None:
    import json

    for one in flydsl_kernels:
        row = json.loads(json.dumps(one.kernel.to_json()))
        assert FlyDSLKernel.from_json(row) == one.kernel
        assert replace(one.kernel, name="y") != one.kernel

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import candidate, library, task
from small_bundles import bare_manifest

from flytune.caches.columns import Status
from flytune.caches.host import Part
from flytune.caches.keyring import own_key
from flytune.caches.packing import pack
from flytune.caches.records import TuningRecord, write_records
from flytune.caches.target import Target
from flytune.caches.trust import Trust, UntrustedError
from flytune.shapes.errors import FlytuneError
from flytune.tuner.built_kernels import BuiltKernels
from flytune.tuner.candidate import BuildResult
from flytune.tuner.decision import untimed_records
from flytune.tuner.older import OlderBundle
from flytune.tuner.progress import Progress
from flytune.tuner.publish import KERNELS, RECORDS_NAME

HARDWARE: dict[str, Part] = {"kind": "cuda", "product": "NVIDIA H200", "arch": "sm_90"}
SOFTWARE: dict[str, Part] = {
    **{"torch": "2.15.0", "torch_key": "ab", "driver": None, "triton": "3.8.0"}
}
TARGET = Target(HARDWARE, SOFTWARE)
BUILDS = {
    "library": BuildResult("library", Status.OK),
    "a": BuildResult("a", Status.OK, compile_s=1.0, files={"triton/0/A/a.cubin": b"a"}),
    "b": BuildResult("b", Status.OK, compile_s=2.0, files={"triton/0/B/b.cubin": b"b"}),
}

OTHERS = {
    "fly": BuildResult("fly", Status.OK, compile_s=1.0, files={"f/0/a.pkl": b"f"}),
    "cpp": BuildResult("cpp", Status.OK, compile_s=1.0, files={"ab/a.so": b"c"}),
}


def records() -> tuple[TuningRecord, ...]:
    made = task([library(), candidate("a"), candidate("b")])
    return untimed_records(made, BUILDS)


def bundle(folder: Path, name: str = "b.tar.zst", **changes: Any) -> Path:
    """A bundle of kernels that were compiled and not timed."""
    staging = folder / f"staged-{name}"
    staging.mkdir()
    if changes.pop("records", True):
        write_records(records(), staging / RECORDS_NAME)
    kernels = BuiltKernels(staging / KERNELS)
    builds = {**BUILDS, **changes.pop("more", {})}
    for result in builds.values() if changes.pop("kernels", True) else ():
        if result.files:
            kernels.keep(result)
    manifest = bare_manifest(
        model={"name": "tiny"},
        target=TARGET.to_json(),
        software="stand-in",
    )
    whole = replace(manifest, **changes)
    return pack(staging, whole, folder / name, keys=[own_key()])


def built_in(folder: Path) -> Path:
    """The directory of what a build has compiled, which is not there yet."""
    (folder / "work").mkdir()
    return folder / "work" / "built"


@pytest.mark.parametrize("name", ["b.tar.zst", "b"])
def test_kernels_are_taken_as_if_this_build_had_made_them(
    tmp_path: Path, name: str
) -> None:
    built = built_in(tmp_path)
    assert OlderBundle(bundle(tmp_path, name), TARGET).take_kernels(built) == 2
    for choice_hash in ("a", "b"):
        assert BuiltKernels(built).find(choice_hash) == BUILDS[choice_hash]
    assert BuiltKernels(built).find("library") is None
    # Nothing but the kernels is left in the build's directory.
    assert [path.name for path in built.parent.iterdir()] == ["built"]


def test_what_this_build_has_made_itself_is_kept(tmp_path: Path) -> None:
    built, older = built_in(tmp_path), OlderBundle(bundle(tmp_path), TARGET)
    own = BuildResult("a", Status.OK, compile_s=9.0, files={"x": b"own"})
    BuiltKernels(built).keep(own)
    assert older.take_kernels(built) == 1
    assert BuiltKernels(built).find("a") == own
    assert BuiltKernels(built).find("b") == BUILDS["b"]
    assert older.take_kernels(built) == 0


def test_a_bundle_without_kernels_has_none_to_take(tmp_path: Path) -> None:
    built = built_in(tmp_path)
    older = OlderBundle(bundle(tmp_path, kernels=False), TARGET)
    assert older.take_kernels(built) == 0
    assert not built.exists()


def test_its_records_are_those_that_it_holds(tmp_path: Path) -> None:
    assert OlderBundle(bundle(tmp_path), TARGET).records == records()


def test_a_bundle_without_records_is_refused(tmp_path: Path) -> None:
    path = bundle(tmp_path, records=False)
    with pytest.raises(FlytuneError) as caught:
        OlderBundle(path, TARGET)
    assert str(caught.value) == f"older bundle has no records: {path}"


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(FlytuneError):
            OlderBundle(path, TARGET)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("hardware.kind", "cpu"),
        ("hardware.arch", "sm_80"),
    ],
)
def test_other_hardware_is_refused_with_its_part(
    tmp_path: Path, part: str, value: str
) -> None:
    path = bundle(tmp_path)
    name = part.partition(".")[2]
    other = Target({**HARDWARE, name: value}, SOFTWARE)
    expected = (
        f"older bundle is for another target: {part}: built for `{HARDWARE[name]}`, "
        f"here `{value}`"
    )
    with pytest.raises(FlytuneError) as caught:
        OlderBundle(path, other)
    assert str(caught.value) == expected


def test_what_is_not_known_is_no_difference_until_it_is(tmp_path: Path) -> None:
    unknown = Target(HARDWARE, {**SOFTWARE, "torch_key": None, "driver": "580.95"})
    older = OlderBundle(bundle(tmp_path), unknown)
    assert not older.changed
    assert older.same == records()
    assert older.upgrade is None
    assert not older.check(TARGET)
    assert older.check(Target(HARDWARE, {**SOFTWARE, "torch_key": "cd"}))
    assert [part.part for part in older.changed.parts] == ["software.torch_key"]
    assert older.same == ()
    assert older.upgrade is not None


def test_kernels_of_another_software_are_left(tmp_path: Path) -> None:
    """Triton's hold its wheel, and FlyDSL's and C++'s do not."""
    built, path = built_in(tmp_path), bundle(tmp_path, more=OTHERS)
    upgraded = Target(HARDWARE, {**SOFTWARE, "triton": "3.9.0"})
    assert OlderBundle(path, upgraded).take_kernels(built) == 2
    kernels = BuiltKernels(built)
    assert kernels.find("a") is None
    assert kernels.find("fly") == OTHERS["fly"]
    assert kernels.find("cpp") == OTHERS["cpp"]


def test_what_survives_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundle(tmp_path)
    OlderBundle(path, TARGET).say(Progress())
    upgraded = Target(HARDWARE, {**SOFTWARE, "triton": "3.9.0"})
    OlderBundle(path, upgraded).say(Progress())
    told = [line[8:] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "from: cpp kernels           2 candidates kept",
        "from: software.triton: built for `3.8.0`, here `3.9.0`",
        "from: cpp kernels           2 candidates kept",
    ]


def test_a_damaged_bundle_gives_nothing(tmp_path: Path) -> None:
    path = bundle(tmp_path, "b")
    (damaged,) = path.rglob("a.cubin")
    damaged.write_bytes(b"z")
    older, built = OlderBundle(path, TARGET), built_in(tmp_path)
    with pytest.raises(FlytuneError, match=r"a\.cubin"):
        _ = older.records
    with pytest.raises(FlytuneError, match=r"a\.cubin"):
        older.take_kernels(built)
    assert list(built.parent.iterdir()) == []


def test_a_bundle_of_nobodys_is_not_taken(tmp_path: Path) -> None:
    path = bundle(tmp_path, "b")
    (path / "signature.json").unlink()
    with pytest.raises(UntrustedError):
        OlderBundle(path, TARGET)
    OlderBundle(path, TARGET, Trust(allow_unsigned=True))

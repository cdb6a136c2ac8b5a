"""Whether FlyDSL can be asked, told by real processes; and the words of real rules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flytune.caches.compat import release, torch_version
from flytune.caches.host import installed
from flytune.shapes.errors import FlytuneError
from flytune.tuner import eligibility
from flytune.tuner.eligibility import require_flydsl
from flytune.tuner.gates import Gate

newest = pytest.mark.skipif(
    release(torch_version()) < (2, 15), reason="this torch has no FlyDSL templates"
)

BROKEN = "raise ImportError('no such library: libsomething.so')\n"


def package(folder: Path, version: str, code: str = "", *, runtime: bool = True) -> str:
    """Write a package that is found before the real one; return its PYTHONPATH."""
    (folder / "flydsl").mkdir(parents=True)
    (folder / "flydsl" / "__init__.py").write_text(code)
    if runtime:
        (folder / "flydsl" / "_mlir").mkdir()
        (folder / "flydsl" / "_mlir" / "__init__.py").touch()
    info = folder / f"flydsl-{version}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: flydsl\nVersion: {version}\n"
    )
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


@newest
def test_the_installed_one_is_taken() -> None:
    assert require_flydsl("gfx950") == installed("flydsl")


@newest
def test_an_architecture_without_templates() -> None:
    with pytest.raises(FlytuneError) as caught:
        require_flydsl("gfx942")
    assert str(caught.value) == (
        "no FlyDSL for gfx942: use_flydsl_gemm_template: "
        '_get_flydsl_device_arch(device_index) != "gfx950" [device_index=0]'
    )


@newest
@pytest.mark.parametrize(
    ("version", "code", "runtime", "reason"),
    [
        ("0.5.0", "", True, "unsupported FlyDSL version `0.5.0` (expected `0.3.x`)"),
        (
            "0.3.4.1",
            "",
            False,
            "missing optional dependency `flydsl._mlir` (runtime is not built)",
        ),
        (
            "0.3.4.1",
            BROKEN,
            True,
            "flydsl cannot be imported: ImportError: no such library: libsomething.so",
        ),
    ],
)
def test_what_inductor_would_refuse_is_refused_in_its_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    code: str,
    runtime: bool,
    reason: str,
) -> None:
    path = package(tmp_path, version, code, runtime=runtime)
    monkeypatch.setenv("PYTHONPATH", path)
    with pytest.raises(FlytuneError) as caught:
        require_flydsl("gfx950")
    assert str(caught.value) == f"no FlyDSL for gfx950: {reason}"
    assert caught.value.hint == (
        "pip install 'flytune[amd]', or leave FLYDSL out of --backends"
    )


def test_a_torch_without_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eligibility, "torch_version", lambda: "2.14.1")
    with pytest.raises(FlytuneError, match="has no FlyDSL templates"):
        require_flydsl("gfx950")


def test_asking_imports_no_torch_here() -> None:
    code = "import sys, flytune.tuner.eligibility; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def _rule(k: int, sizes: list[int], guarded: object = None) -> bool | list[int]:
    """Decline in each of the ways that a rule may."""
    common = k > 0 and len(sizes) == 2
    if not common:
        return False
    if k % 32 != 0 or any(size % 2 for size in sizes):
        return []
    if guarded is not None and guarded.absent:  # type: ignore[attr-defined]
        return False
    if sizes[0] == 6:
        if k == 64:
            return False
        last = True
    elif sizes[0] == 2:
        last = True
    elif sizes[1] == 2:
        last = False
    else:
        return []
    return last and sizes[0] < sizes[1]


def words(*args: object) -> str:
    gate, said = Gate(_rule), []

    def enter(frame: object, event: str, _: object) -> object:
        if frame.f_code is not gate.code:  # type: ignore[attr-defined]
            return None

        def local(frame: object, event: str, _: object) -> object:
            if event == "return":
                said.append(gate.words(frame))  # type: ignore[arg-type]
            return local

        return local

    before = sys.gettrace()
    sys.settrace(enter)  # type: ignore[arg-type]
    try:
        _rule(*args)  # type: ignore[arg-type]
    finally:
        sys.settrace(before)
    (one,) = said
    return one


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((0, [2, 2]), "not k > 0 [k=0]"),
        ((32, [2]), "not len(sizes) == 2 [sizes=[2]]"),
        ((33, [2, 2]), "k % 32 != 0 [k=33]"),
        ((32, [3, 2]), "any(size % 2 for size in sizes) [sizes=[3, 2]]"),
        (
            (33, [3, 2]),
            "k % 32 != 0 [k=33], any(size % 2 for size in sizes) [sizes=[3, 2]]",
        ),
        ((32, [4, 4]), "not sizes[1] == 2 [sizes=[4, 4]]"),
        ((64, [6, 2]), "sizes[0] == 6 [sizes=[6, 2]], k == 64 [k=64]"),
        ((32, [2, 2]), "not sizes[0] < sizes[1] [sizes=[2, 2]]"),
    ],
)
def test_a_rule_is_told_in_its_own_words(
    args: tuple[object, ...], expected: str
) -> None:
    assert words(*args) == f"_rule: {expected}"

"""Bundles for another target, or for none that serves."""

import sys
from pathlib import Path

import pytest
from bundles import elsewhere, installable

from flytune.caches.prepare import InstallStatus, prepare
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))


def test_miss_when_strict(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match=r"another target: hardware\.isa"):
        prepare(installable(tmp_path, target=elsewhere()), strict=True)


def test_stand_in_software_is_refused(tmp_path: Path) -> None:
    installed = prepare(installable(tmp_path, software="stand-in"))
    assert installed.status is InstallStatus.MISS
    assert [part.part for part in installed.misses] == ["software"]


def test_another_torch_is_left_to_the_command(tmp_path: Path) -> None:
    target = Target.here(threads=1).to_json()
    target["software"]["torch"] = "2.11.0"
    bundle = installable(tmp_path, target=target)
    assert prepare(bundle).status is InstallStatus.MISS
    assert prepare(bundle, command=True).status is InstallStatus.HIT


@pytest.mark.parametrize("driver", [True, False])
def test_an_accelerator_is_unknown_where_there_may_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: bool
) -> None:
    # The package gives its function the module's name.
    module = sys.modules["flytune.caches.prepare"]
    monkeypatch.setattr(module, "may_have_accelerator", lambda: driver)
    target = Target.here(threads=1).to_json()
    target["hardware"] = {"kind": "cuda", "product": "NVIDIA H200"}
    missed = [
        part.part for part in prepare(installable(tmp_path, target=target)).misses
    ]
    assert missed == ([] if driver else ["hardware.kind"])


def test_kernels_alone_are_nothing_to_serve_from(tmp_path: Path) -> None:
    bake = {"passes": [], "settled": False, "remaining": {}}
    installed = prepare(installable(tmp_path, bake=bake))
    assert [part.part for part in installed.misses] == ["bundle"]

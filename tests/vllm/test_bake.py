"""A build that bakes a real engine, and what that serves on another host."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import SERVE, environment, python, session
from shared import shared

from flytune.caches.bundle import Bundle
from flytune.caches.directories import VLLM_DIR
from flytune.caches.expected import CACHES
from flytune.caches.vllm_factors import VllmFactors, baked_folders

pytestmark = pytest.mark.vllm

MAIN = "from flytune.tuner.cli import main; main()"


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="host-") as folder:
        yield Path(folder)


def flytune(home: Path, *words: object, **more: str) -> str:
    """Run a command of flytune's in vLLM's environment, which must succeed."""
    env = environment(home, "vllm", **more)
    return python("-c", MAIN, *map(str, words), env=env)


def build(folder: Path) -> Path:
    out = folder / "bundle"
    with tempfile.TemporaryDirectory(prefix="baker-") as home:
        flytune(
            Path(home),
            *("build", "--engine", "vllm", "--bake", "vllm", "--threads", 2),
            *("--work", folder / "work", "--out", out, "--", *SERVE),
            # What Ray sets in its workers would be in the key, and serving lacks it.
            RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES="1",
        )
    return out


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory, "vllm-build", build)


def test_a_build_bakes_what_the_engine_compiles(bundle: Path) -> None:
    manifest = Bundle.open(bundle).manifest
    assert manifest.program["kind"] == "vllm"
    assert tuple(manifest.program["arguments"]) == SERVE
    factors = VllmFactors.from_json(manifest.program["factors"])
    assert factors.exact
    assert baked_folders(bundle / CACHES / VLLM_DIR) == factors.folders
    assert manifest.bake["settled"]
    assert manifest.bake["passes"][0]["lowered"] == 9
    # Every list of every static size and range, though each has one candidate here.
    assert manifest.coverage["lists"] >= 4
    names = dict(factors.named())
    assert not [name for name in names if "NOSET" in name and names[name] == "1"]


def test_another_host_proves_it(bundle: Path, home: Path) -> None:
    said = flytune(home, "verify", bundle)
    assert "verify  hit: 0 lowered, 0 tuned, 0 compiled" in said
    said = flytune(home, "explain", bundle, "--engine", "vllm")
    assert said.startswith("hit ")


def test_a_plain_engine_hits(bundle: Path, home: Path, tmp_path: Path) -> None:
    named = {"FLYTUNE_BUNDLE": os.fspath(bundle), "FLYTUNE_STRICT": "1"}
    env = environment(home, "vllm", **named)
    report = session(*SERVE, env=env, report=tmp_path / "report.json")
    counts = {name: report[name] for name in ("aot_compiles", "inductor_compiles")}
    assert counts == {"aot_compiles": 0, "inductor_compiles": 0}, json.dumps(report)
    assert report["aot_loads"] == 1

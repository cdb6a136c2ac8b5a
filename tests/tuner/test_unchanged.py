"""When an older bundle is taken whole; that it hits then, real builds test."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flytune.caches.bundle import Bundle
from flytune.caches.keyring import own_key
from flytune.caches.manifest import Manifest
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, write_records
from flytune.caches.target import Target
from flytune.caches.verdict import Verdict, refused_bundle
from flytune.shapes.errors import FlytuneError
from flytune.shapes.registry import find_model
from flytune.tuner import unchanged
from flytune.tuner.build_identity import build_identity
from flytune.tuner.older import OlderBundle
from flytune.tuner.progress import Progress
from flytune.tuner.publish import Built, model_row
from flytune.tuner.quarantine import NAME
from flytune.tuner.runner import Device

POLICY = {"name": "unfrozen", "tokens": [1, 8, 4]}
HITS = replace(refused_bundle(()), work={})
TARGET = Target({"kind": "cpu", "isa": ("avx2",)}, {"torch": "2.15.0"})
OPTIONS: Any = SimpleNamespace(
    **{"by_hand": None, "tp": 1, "ep": 1, "engine": "transformers"},
    **{"runs_nothing": False, "exclude": frozenset(), "search": "default"},
    **{"command": ("flytune", "build"), "work": None, "ops": ("gemm",)},
    **{"compile_only": False, "recorded": None},
)
PLAN: Any = SimpleNamespace(
    model=find_model("Qwen3-4B"),
    program=SimpleNamespace(to_json=lambda: {"kind": "model", "decode": (8, 2, 4)}),
    policy=SimpleNamespace(to_json=lambda: POLICY, tokens=(1, 8, 4)),
    shapes=("one", "two"),
)


def manifest(**changes: Any) -> Manifest:
    whole = Manifest(
        created="2026-01-02T03:04:05Z",
        flytune=importlib.metadata.version("flytune"),
        model=model_row(PLAN, OPTIONS),
        program={"kind": "model", "decode": [8, 2, 4]},
        policy=POLICY,
        inductor_config={},
        target=TARGET.to_json(),
        software="serving",
        timed_on="a device",
        coverage={"search": "default", "planned": 2},
        winners=(),
        bake={"passes": [{}, {}], "settled": True},
        verify={"ok": True},
        provenance={"command": ["old"], "ceilings": {"copy_gb_s": 3.0}},
    )
    return replace(whole, **changes)


Publish = Callable[..., Built | None]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    def published(
        verdict: Verdict | None = None,
        target: Target = TARGET,
        options: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Built | None:
        staged = tmp_path / "staged"
        (staged / "inductor").mkdir(parents=True)
        (staged / "inductor" / "graph").write_bytes(b"graph")
        write_records((), staged / RECORDS_NAME)
        path = pack(staged, manifest(**changes), tmp_path / "old", keys=[own_key()])

        def verify_directory(
            placed: Path, brief: Manifest, _: object, *, once: bool
        ) -> Verdict:
            assert verdict is not None, "nothing is run"
            assert (brief.policy["tokens"], once) == ([1, 8], True)
            assert brief.program["decode"] == [2, 8]
            # What a run leaves there is not packed.
            (placed / "inductor" / "left").write_bytes(b"by the run")
            return verdict

        monkeypatch.setattr(unchanged, "verify_directory", verify_directory)
        monkeypatch.setattr(
            unchanged,
            "device_of",
            lambda _: Device("cpu", cache_bytes=1, rotation_bytes=1),
        )
        whole = {**vars(OPTIONS), **(options or {}), "work": tmp_path}
        plan: Any = SimpleNamespace(**vars(PLAN), work=tmp_path, out=tmp_path / "new")
        asked: Any = SimpleNamespace(**whole)
        older = OlderBundle(path, target)
        keys = (own_key(),)
        return unchanged.publish_unchanged(plan, asked, older, keys, Progress())

    return published


def test_what_hits_is_published_with_the_files_of_before(
    publish: Publish, tmp_path: Path
) -> None:
    built = publish(HITS)
    assert built is not None
    old, new = (Bundle.open(tmp_path / name).manifest for name in ("old", "new"))
    assert new.files == old.files
    assert new.verify is not None
    assert new.verify["ok"]
    assert new.verify["again"]["ok"]
    assert (new.policy, new.program) == (old.policy, old.program)
    assert new.created > old.created
    assert new.provenance["command"] == ["flytune", "build"]
    # What the device reaches was measured then.
    assert new.provenance["ceilings"] == {"copy_gb_s": 3.0}
    assert new.provenance["build"].startswith(f"{tmp_path.name}-")
    assert [path.name for path in tmp_path.glob(".flytune-pack-*")] == []


@pytest.mark.parametrize("same", [True, False])
def test_what_this_build_had_cut_short_gives_way(
    publish: Publish, tmp_path: Path, same: bool
) -> None:
    plan: Any = SimpleNamespace(**vars(PLAN), work=tmp_path)
    build = build_identity(plan, OPTIONS)
    short = manifest(
        coverage={"search": "default", "planned": 2, "over_budget": ["bmm"]},
        provenance={"build": build if same else "another"},
    )
    staged = tmp_path / "short"
    (staged / "inductor").mkdir(parents=True)
    write_records((), staged / RECORDS_NAME)
    pack(staged, short, tmp_path / "new", keys=[own_key()])
    if not same:
        with pytest.raises(FlytuneError, match="output exists"):
            publish(HITS)
        return
    assert publish(HITS) is not None
    whole = Bundle.open(tmp_path / "new")
    assert "over_budget" not in whole.manifest.coverage
    assert whole.manifest.files == Bundle.open(tmp_path / "old").manifest.files


def test_what_does_not_hit_any_more_goes_the_long_way(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(replace(HITS, failures=("graph missed: f00",))) is None
    assert not (tmp_path / "new").exists()
    said = "from: it does not hit any more: graph missed: f00"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"program": {"kind": "model", "decode": [1]}}, "`program` differs"),
        ({"policy": {"name": "frozen"}}, "`policy` differs"),
        ({"model": {"name": "another"}}, "`model` differs"),
        ({"coverage": {"search": "exhaustive", "planned": 2}}, "`search` differs"),
        ({"coverage": {"planned": 2}}, "`search` differs"),
        ({"coverage": {"search": "default"}}, "`planned GEMMs` differs"),
        ({"flytune": "0.0.1"}, "`flytune` differs"),
        ({"software": "stand-in"}, "`software` differs"),
        ({"verify": None}, "`verified` differs"),
        ({"verify": {"ok": False}}, "`verified` differs"),
        ({"bake": {"passes": [{}], "settled": False}}, "`settled` differs"),
        ({"bake": {"passes": [], "settled": True}}, "nothing is baked"),
        ({"options": {"runs_nothing": True}}, "nothing is baked"),
        ({"options": {"exclude": frozenset(["x"])}}, "candidates are kept out"),
    ],
)
def test_another_build_is_not_taken_whole(
    publish: Publish,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    said: str,
) -> None:
    assert publish(**changes) is None
    told = capsys.readouterr().err
    assert f"from: the older bundle is taken in parts: {said}\n" in told


def test_another_environment_is_not_asked(
    publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    """What differs there is said already."""
    assert publish(target=Target(TARGET.hardware, {"torch": "2.16.0"})) is None
    assert capsys.readouterr().err == ""


def test_what_cost_a_device_is_kept_out(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = '{"device": "cpu", "inputs_key": "k", "choice_hash": "h", "reason": "died"}'
    (tmp_path / NAME).write_text(f"{row}\n")
    assert publish() is None
    assert "candidates are kept out" in capsys.readouterr().err

"""Merging small bundles made by hand; real ones are merged in `tests/tuner`."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bundles import POLICY, elsewhere, installable, tree
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from flytune.caches.bundle import Bundle
from flytune.caches.columns import Status
from flytune.caches.inspect import describe
from flytune.caches.keyring import own_key
from flytune.caches.keys import GraphKey, read_keys, write_keys
from flytune.caches.merge import Merged, merge
from flytune.caches.records import TuningRecord, read_records, write_records
from flytune.caches.several import part_name, singles
from flytune.caches.target import Target
from flytune.caches.trust import HERE, Trust, UntrustedError, admit
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape

GRAPH, TIMINGS = "inductor/fxgraph/ab/fabc/01", "inductor/cache/5e1f"
BAKE = {"passes": [{"lowered": 1}, {}], "settled": True, "remaining": {}}
OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def served(tokens: list[int], **more: Any) -> dict[str, Any]:
    return {**POLICY, "tokens": tokens, **more}


def bundle(
    folder: Path, name: str, files: Mapping[str, bytes] | None = None, **changes: Any
) -> Path:
    """A bundle whose program is told apart by its tokens."""
    policy = changes.pop("policy", served([len(name)]))
    given_files = {GRAPH: b"graph"} if files is None else files
    whole = {"policy": policy, "files": given_files, "bake": BAKE, **changes}
    return installable(folder, name, **whole)


def content(path: Path) -> dict[str, bytes]:
    into = path.with_name(f"{path.name}-content")
    Bundle.open(path).place(into)
    return tree(into)


def merged(folder: Path, *paths: Path, out: str = "out") -> Merged:
    return merge(paths, folder / out)


def times(table: Mapping[str, float]) -> bytes:
    """A timings file of one list."""
    row = {"system": {"hash": "5e1f"}, "cache": {"mm": {"key": {"high": table}}}}
    return json.dumps(row).encode()


@pytest.mark.parametrize("names", [("a", "a"), ("a",), ("a.tar.zst", "a.tar.zst")])
@pytest.mark.parametrize("out", ["out", "out.tar.zst"])
def test_bundle_with_itself_is_itself(
    tmp_path: Path, names: tuple[str, ...], out: str
) -> None:
    made = bundle(tmp_path, names[0], verify={"ok": True})
    paths = [tmp_path / name for name in names]
    found = merge(paths, tmp_path / out)
    assert Bundle.open(tmp_path / out).digest == Bundle.open(made).digest
    assert content(tmp_path / out) == content(made)
    assert found.conflicts == ()


def test_every_file_of_both_is_there(tmp_path: Path) -> None:
    one = bundle(tmp_path, "a", {GRAPH: b"graph", "inductor/a": b"a"})
    two = bundle(tmp_path, "bb", {GRAPH: b"graph", "inductor/b": b"b"})
    found = merged(tmp_path, one, two)
    assert content(found.out) == {
        GRAPH: b"graph",
        "inductor/a": b"a",
        "inductor/b": b"b",
    }
    assert found.parts == ("tiny at 1 tokens", "tiny at 2 tokens")
    assert found.conflicts == ()
    manifest = found.manifest
    assert manifest.model["name"] == "tiny"
    assert manifest.policy["tokens"] == [1, 2]
    assert manifest.policy["dynamo"] == {"recompile_limit": 34}
    assert manifest.verify is None
    programs = [(one.program, one.policy["tokens"]) for one in singles(manifest)]
    assert programs == [({"kind": "model"}, [1]), ({"kind": "model"}, [2])]
    assert "tiny at 2 tokens" in describe(found.out)


FILES = st.dictionaries(
    st.sampled_from([f"inductor/{name}" for name in "abcdef"]),
    st.binary(max_size=2),
    max_size=4,
)
TARGET = Target.here(threads=1).to_json()
CREATED = st.sampled_from([OLD, NEW])


# Shrinking would take minutes: an example is small already.
@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.lists(st.tuples(FILES, CREATED, st.integers(1, 3)), min_size=2, max_size=3))
def test_order_does_not_matter_and_nothing_shrinks(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[tuple[dict[str, bytes], str, int]],
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    paths = [
        bundle(
            folder,
            f"b{n}",
            files | {"inductor/all": b""},
            created=created,
            policy=served([tokens]),
            target=TARGET,
        )
        for n, (files, created, tokens) in enumerate(made)
    ]
    found = {
        merge(order, folder / f"out{n}", keys=[own_key()]).out: None
        for n, order in enumerate((paths, paths[::-1], paths[1:] + paths[:1]))
    }
    assert len({Bundle.open(out).digest for out in found}) == 1
    out = content(next(iter(found)))
    assert out.pop("inductor/all") == b""
    assert out.keys() == {name for files, _, _ in made for name in files}
    for name, text in out.items():
        assert text in [files.get(name) for files, _, _ in made]
    # Of what is in already nothing is added, and nothing is lost.
    again = merge([next(iter(found)), paths[0]], folder / "again")
    assert content(again.out) == out | {"inductor/all": b""}
    assert again.manifest.program == Bundle.open(next(iter(found))).manifest.program
    assert again.manifest.policy == Bundle.open(next(iter(found))).manifest.policy


def test_newest_wins_a_file_and_it_is_said(tmp_path: Path) -> None:
    new = bundle(tmp_path, "new", {"inductor/x.best_config": b"new"}, created=NEW)
    old = bundle(tmp_path, "older", {"inductor/x.best_config": b"old"}, created=OLD)
    found = merged(tmp_path, new, old)
    assert content(found.out) == {"inductor/x.best_config": b"new"}
    digest = Bundle.open(new).digest[:12]
    line = f"inductor/x.best_config: kept that of new ({digest})"
    assert found.conflicts == (line,)
    assert found.manifest.coverage["conflicts"] == [line]
    assert found.manifest.created == NEW


def test_timings_are_joined_list_by_list(tmp_path: Path) -> None:
    mine = {"aten": 1.0, "cpp": 2.0, "rare": 0.5}
    theirs = {"aten": 3.0, "cpp": 2.0}
    old = {"mm": {"key": {"high": mine}}, "bmm": {"key": {"high": {"aten": 1.0}}}}
    new = {"mm": {"key": {"high": theirs}, "other": {"high": theirs}}}
    system = {"hash": "5e1f"}
    paths = [
        bundle(
            tmp_path,
            name,
            {TIMINGS: json.dumps({"system": system, "cache": cache}).encode()},
            created=created,
        )
        for name, cache, created in (("new", new, NEW), ("older", old, OLD))
    ]
    found = merged(tmp_path, *paths)
    row = json.loads(content(found.out)[TIMINGS])
    assert row == {
        "system": system,
        "cache": {
            "bmm": {"key": {"high": {"aten": 1.0}}},
            "mm": {
                # The newest times; a candidate without one must never be chosen.
                "key": {"high": {"rare": math.inf, **theirs}},
                "other": {"high": theirs},
            },
        },
    }
    digest = Bundle.open(paths[0]).digest[:12]
    assert found.conflicts == (
        f"times of mm key: kept those of new ({digest}), which choose cpp and not rare",
    )


def test_same_choice_by_other_times(tmp_path: Path) -> None:
    one = bundle(tmp_path, "one", {TIMINGS: times({"aten": 1.0, "cpp": 2.0})})
    other = bundle(tmp_path, "other", {TIMINGS: times({"aten": 1.5, "cpp": 2.0})})
    (line,) = merged(tmp_path, one, other).conflicts
    assert line.endswith("the same choice")


def test_records_and_keys_are_joined(tmp_path: Path) -> None:
    shape = GemmShape(op="mm", m=8, n=16, k=32, module="q_proj", count=1)
    common = record(shape, "aten")
    graphs = [GraphKey(f"k{n}", {"a": "1 x", "b": f"{n} y"}) for n in range(3)]
    paths = []
    for number, name in enumerate(("a", "bb")):
        folder = tmp_path / f"parts{number}"
        folder.mkdir()
        rows = [common, record(shape, f"cpp{number}")]
        write_records(rows, folder / "records.parquet")
        write_keys(graphs[number : number + 2], folder / "keys.json")
        paths.append(bundle(tmp_path, name, tree(folder)))
    out = merged(tmp_path, *paths).out
    backends = [row.backend for row in read_records(out / "records.parquet")]
    assert sorted(backends) == ["aten", "cpp0", "cpp1"]
    assert read_keys(out / "keys.json") == tuple(graphs)


def record(shape: GemmShape, backend: str) -> TuningRecord:
    return TuningRecord.of_shape(
        shape,
        backend=backend,
        template=None,
        config="{}",
        choice_hash=backend,
        status=Status.OK,
        median_us=1.0,
    )


def test_lists_of_triton_files_differ_by_their_place_alone(tmp_path: Path) -> None:
    name = "inductor/triton/0/KERNEL/__grp__k.json"

    def group(root: str, *names: str) -> bytes:
        children = {name: f"{root}/{name}" for name in names}
        return json.dumps({"child_paths": children}).encode()

    one = bundle(tmp_path, "a", {name: group("/x", "k.cubin")})
    two = bundle(tmp_path, "bb", {name: group("/y", "k.cubin")})
    assert merged(tmp_path, one, two).conflicts == ()
    other = bundle(tmp_path, "ccc", {name: group("/y", "k.cubin", "k.json")})
    assert len(merged(tmp_path, one, other, out="out2").conflicts) == 1


def test_dynamo_entries_of_one_function_are_refused(tmp_path: Path) -> None:
    one = bundle(tmp_path, "a", {"inductor/dynamo/f/entry": b"1"})
    two = bundle(tmp_path, "bb", {"inductor/dynamo/f/entry": b"2"})
    with pytest.raises(FlytuneError, match="Dynamo's entry of one function"):
        merged(tmp_path, one, two)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": elsewhere()}, "different targets: hardware.isa: "),
        ({"software": "stand-in"}, "software: `serving` in .* `stand-in` in "),
        (
            {"policy": served([2], inductor={"max_autotune": False})},
            "different policies: inductor.max_autotune: `True` in .* `False` in ",
        ),
        (
            {"policy": served([2], env={"OMP_NUM_THREADS": "2"})},
            "env.OMP_NUM_THREADS: `1` in .* `2` in",
        ),
        ({"policy": served([2], threads=2)}, "threads: `1` in .* `2` in"),
        (
            {"inductor_config": {"max_autotune": "True", "cpp.x": "1"}},
            "inductor_config.cpp.x: `absent` in .* `1` in",
        ),
        (
            {"bake": {"passes": [], "settled": False, "remaining": {}}},
            "`a baked program` in .* `kernels for a build` in ",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    one, two = bundle(tmp_path, "a"), bundle(tmp_path, "bb", **changes)
    with pytest.raises(FlytuneError, match=words) as caught:
        merged(tmp_path, one, two)
    assert caught.value.code == "FT812"
    assert not (tmp_path / "out").exists()


def test_what_one_target_does_not_know_the_other_tells(tmp_path: Path) -> None:
    targets = [Target.here(threads=1).to_json() for _ in range(2)]
    targets[0]["software"].update(torch_key="abc", driver="1")
    targets[1]["software"].update(torch_key=None, driver="2")
    paths = [
        bundle(tmp_path, name, target=target, created=created)
        for name, target, created in zip(("a", "bb"), targets, (OLD, NEW), strict=True)
    ]
    software = merged(tmp_path, *paths).manifest.target["software"]
    assert (software["torch_key"], software["driver"]) == ("abc", "2")


def test_models_and_ranks(tmp_path: Path) -> None:
    models = [{"name": "tiny", "tp": 1}, {"name": "tiny", "tp": 2}, {"name": "big"}]
    paths = [
        bundle(tmp_path, name, model=model)
        for name, model in zip(("a", "bb", "ccc"), models, strict=True)
    ]
    manifest = merged(tmp_path, *paths).manifest
    assert manifest.model["name"] == "big + tiny"
    assert sorted(map(str, manifest.model["models"])) == sorted(map(str, models))
    assert {one.model["name"] for one in singles(manifest)} == {"tiny", "big"}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    one = bundle(tmp_path, "a")
    with pytest.raises(FlytuneError, match="output exists"):
        merge([one], one)
    with pytest.raises(FlytuneError, match="nothing to merge"):
        merge([], tmp_path / "out")


def test_corrupt_bundle_is_refused(tmp_path: Path) -> None:
    one, two = bundle(tmp_path, "a"), bundle(tmp_path, "bb")
    (two / GRAPH).write_bytes(b"grapH")
    with pytest.raises(FlytuneError, match="another digest"):
        merged(tmp_path, one, two)


def test_what_nobody_vouches_for_is_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [bundle(tmp_path, name) for name in ("a.tar.zst", "bb.tar.zst")]
    found = merge(paths, tmp_path / "out", keys=[own_key()], provenance={"host": "h"})
    admit(Bundle.open(found.out), HERE)
    assert found.manifest.provenance == {"host": "h"}
    # What holds the others already is kept with its own signature.
    kept = merge([found.out, paths[0]], tmp_path / "kept")
    assert tree(kept.out) == tree(found.out)
    monkeypatch.setenv("FLYTUNE_KEYS", str(tmp_path / "nobody"))
    with pytest.raises(UntrustedError):
        merge(paths, tmp_path / "untrusted")
    merge(paths, tmp_path / "unsigned", trust=Trust(allow_unsigned=True))
    assert Bundle.open(tmp_path / "unsigned").envelope is None


def test_a_part_is_named_with_its_ranks() -> None:
    policy = {"tokens": [1, 8]}
    for ranks, words in (
        ({}, "tiny at 1,8 tokens"),
        ({"tp": 1, "ep": 1}, "tiny at 1,8 tokens"),
        ({"tp": 8, "ep": 4}, "tiny tp8 ep4 at 1,8 tokens"),
    ):
        model = {"name": "tiny", **ranks}
        assert part_name({"model": model, "policy": policy}) == words

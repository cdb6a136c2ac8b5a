"""Rows and files of one bundle that contradict each other."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuned_bundles import SOFTWARE, Tune, aten, bundle, shape, triton

from flytune.caches.inductor import decision_ms
from flytune.caches.records import TuningRecord
from flytune.caches.regression.finding import Kind, Standing
from flytune.caches.regression.sides import Side
from flytune.caches.regression.stale import stale

RECORDS = Tune(1).list_of(shape(0), [triton(10.0), aten(12.0), triton(14.0, 128)])


def timings(
    records: Sequence[TuningRecord] = RECORDS, triton_key: str = "cd", **changed: float
) -> dict[str, bytes]:
    """Inductor's timings file of a list, as a bake writes it."""
    medians = {r.choice_hash: r.median_us for r in records}
    winner = next(r.choice_hash for r in records if r.winner)
    first = records[0]
    row = {**decision_ms(winner, medians), **changed}
    cache = {first.inductor_op: {first.inputs_key: {first.precision: row}}}
    system = {"version": {"triton": triton_key, "cuda": SOFTWARE["cuda"]}, "hash": "x"}
    text = json.dumps({"system": system, "cache": cache})
    return {"inductor/cache/x": text.encode()}


def found(tmp_path: Path, *args: Any, **changes: Any) -> list[str]:
    side = Side.open(bundle(tmp_path, *args, **changes))
    return [f.line for f in stale(side) if f.standing is Standing.FAILS]


def test_a_bundle_as_it_is_baked_is_not_stale(tmp_path: Path) -> None:
    winners = [
        {
            "shape": "mm",
            "op": r.inductor_op,
            "inputs_key": r.inputs_key,
            "choice_hash": r.choice_hash,
        }
        for r in RECORDS
        if r.winner
    ]
    changes = {"files": timings(), "winners": tuple(winners)}
    assert found(tmp_path, RECORDS, **changes) == []


def test_timings_that_choose_another_kernel_are_stale(tmp_path: Path) -> None:
    other = RECORDS[1].choice_hash
    (line,) = found(tmp_path, RECORDS, files=timings(**{other: 0.001}))
    assert line == (
        "mm (16, 1024, 4096) at model.layers.*.linear_0: its winner is triton "
        'triton_mm {"BLOCK_M":64}, and the timings make Inductor take aten mm'
    )


def test_a_candidate_that_failed_is_never_taken(tmp_path: Path) -> None:
    other = RECORDS[1].choice_hash
    assert found(tmp_path, RECORDS, files=timings(**{other: math.inf})) == []


def test_a_candidate_without_a_time_makes_serving_tune(tmp_path: Path) -> None:
    (line,) = found(tmp_path, RECORDS, files=timings(RECORDS[:2]))
    assert line.endswith(
        'no time for triton triton_mm {"BLOCK_M":128}: serving would tune the list'
    )


def test_a_list_without_timings_makes_serving_tune(tmp_path: Path) -> None:
    other = [replace(r, inputs_key="another") for r in RECORDS]
    (line,) = found(tmp_path, other, files=timings())
    assert line.endswith("the timings hold nothing of it: serving would tune the list")


def test_timings_of_another_triton_are_stale(tmp_path: Path) -> None:
    (line,) = found(tmp_path, RECORDS, files=timings(triton_key="old"))
    assert line == (
        "its timings were made under another triton_key: `old`, the bundle is for `cd`"
    )


def test_a_winner_that_is_not_the_records_is_stale(tmp_path: Path) -> None:
    row = {"shape": "mm (1, 2, 3)", "op": "mm", "inputs_key": "k", "choice_hash": "h"}
    (line,) = found(tmp_path, RECORDS, winners=(row,))
    assert line == "mm (1, 2, 3): the manifest's winner is not the records': h"


def test_another_kernel_in_the_graphs_is_only_noted(tmp_path: Path) -> None:
    records = [replace(r, baked=r.backend == "aten") for r in RECORDS]
    (note,) = stale(Side.open(bundle(tmp_path, records)))
    # What fails elsewhere has another name.
    assert (note.kind, note.standing) == (Kind.FUSED, Standing.NOTED)
    assert note.text == ('the graphs hold aten mm, not triton triton_mm {"BLOCK_M":64}')


def test_bare_kernels_have_a_folder_each(tmp_path: Path) -> None:
    bake = {"passes": [], "settled": False, "remaining": {}}
    folders = {
        f"kernels/{hashlib.sha256(r.choice_hash.encode()).hexdigest()[:32]}/built.json"
        for r in RECORDS
        if r.backend == "triton"
    }
    whole = dict.fromkeys(folders, b"{}")
    assert found(tmp_path / "1", RECORDS, bake=bake, files=whole) == []
    whole.pop(min(folders))
    (line,) = found(tmp_path / "2", RECORDS, bake=bake, files=whole)
    assert line.endswith("is not in the bundle")


def test_a_kernel_is_known_by_its_bytes_too(tmp_path: Path) -> None:
    """FlyDSL's kernels serve any shape, and have one folder for all."""
    content = b"a kernel of FlyDSL's"
    digest = hashlib.sha256(content).hexdigest()
    records = [replace(RECORDS[0], backend="flydsl", kernel_digest=digest)]
    bake = {"passes": [], "settled": False, "remaining": {}}
    files = {"inductor/flydsl/a/k.pkl": content}
    assert found(tmp_path / "1", records, bake=bake, files=files) == []
    assert found(tmp_path / "2", records, bake=bake) != []

"""What is found without a device."""

import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuned_bundles import (
    HARDWARE,
    POLICY,
    SOFTWARE,
    Tune,
    aten,
    bundle,
    shape,
    three_lists,
    tuned,
    usual,
)

from flytune.caches.records import Status
from flytune.caches.regression.check import Check, Outcome, Settings, check
from flytune.caches.regression.finding import Kind, Standing
from flytune.caches.regression.limits import Limits, Waiver
from flytune.caches.regression.serving import Serving
from flytune.caches.regression.sides import Side
from flytune.caches.regression.table import verdict

TODAY = datetime.date(2026, 11, 30)


def compared(new: Path, old: Path, **settings: Any) -> Check:
    return check(Side.open(new), Side.open(old), Settings(**settings), TODAY)


def said(checked: Check, kind: Kind) -> list[str]:
    return [finding.line for finding in checked.findings if finding.kind is kind]


def pair(tmp_path: Path, **changes: Any) -> tuple[Path, Path]:
    """Two tunes of three lists; the new bundle has changes."""
    old = tuned(tmp_path / "old", Tune(1), three_lists())
    lists = changes.pop("lists", three_lists())
    return tuned(tmp_path / "new", Tune(2), lists, **changes), old


def test_two_tunes_of_one_thing_are_fine(tmp_path: Path) -> None:
    checked = compared(*pair(tmp_path))
    assert checked.outcome is Outcome.FINE
    assert [finding.line for finding in checked.findings] == []
    assert (len(checked.times.lists), len(checked.times.passes)) == (3, 3)


def test_a_lost_list_fails_and_a_new_one_is_noted(tmp_path: Path) -> None:
    lists = three_lists()
    lists.pop(shape(0, count=4))
    lists[shape(7, count=4)] = usual(9.0)
    checked = compared(*pair(tmp_path, lists=lists))
    assert checked.outcome is Outcome.REGRESSION
    (lost,) = said(checked, Kind.LOST)
    assert lost.startswith("mm (16, 1024, 4096) at model.layers.*.linear_0: ")
    assert len(said(checked, Kind.NEW)) == 1
    assert len(checked.times.lists) == 2


def test_lists_of_one_name_are_matched_by_their_candidates(tmp_path: Path) -> None:
    gemm = shape(0, count=4)
    first, second = (Tune(n).list_of(gemm, usual(20.0 * n)) for n in (1, 2))
    apart = [
        *(replace(r, at_s=1.0) for r in first),
        *(replace(r, at_s=2.0, choice_hash=f"other {r.choice_hash}") for r in second),
    ]
    again = [*apart[len(first) :], *apart[: len(first)]]
    old, new = bundle(tmp_path / "old", apart), bundle(tmp_path / "new", again)
    checked = compared(new, old)
    assert (len(checked.sides.pairs), checked.carried) == (2, 2)


def test_a_list_that_is_called_more_often_is_the_same_list(tmp_path: Path) -> None:
    lists = {replace(gemm, count=8): some for gemm, some in three_lists().items()}
    checked = compared(*pair(tmp_path, lists=lists))
    assert len(said(checked, Kind.COUNT)) == 3
    assert said(checked, Kind.COUNT)[0].endswith("were 4, are 8")
    assert checked.outcome is Outcome.FINE


def test_calls_are_those_of_all_modules_in_old_bundles_too(tmp_path: Path) -> None:
    gemm = shape(0, count=4)
    modules = [gemm.module, "model.layers.*.other"]
    row = {"op": "mm", "inputs_key": str(gemm), "shape": str(gemm), "modules": modules}
    lists = {gemm: usual(20.0)}
    old = tuned(tmp_path / "old", Tune(1), lists, winners=(row,))
    winners = ({**row, "counts": [4, 4]},)
    lists = {replace(gemm, count=8): usual(20.0)}
    new = tuned(tmp_path / "new", Tune(2), lists, winners=winners)
    checked = compared(new, old)
    assert said(checked, Kind.COUNT) == []
    assert [one.count for one in checked.times.lists] == [8]
    lone = tuned(tmp_path / "lone", Tune(2), {gemm: usual(20.0)})
    checked = compared(lone, old)
    assert said(checked, Kind.COUNT)[0].endswith("were 8, are 4")


def test_target_parts_are_named_with_both_values(tmp_path: Path) -> None:
    software = {**SOFTWARE, "torch": "2.16.0", "driver": "590.0"}
    target = {"hardware": HARDWARE, "software": software}
    checked = compared(*pair(tmp_path, target=target))
    assert said(checked, Kind.TARGET) == [
        "software.torch: was `2.15.0`, is `2.16.0`",
        "software.driver: was `580.1`, is `590.0`",
    ]
    assert {f.standing for f in checked.findings} == {Standing.NOTED}


def test_a_long_value_is_a_line_all_the_same(tmp_path: Path) -> None:
    """Triton's key; two of one release begin alike."""
    keys = ["3.9.0" + "a" * 2000, "3.9.0" + "a" * 1999 + "b"]
    new, old = (
        tuned(
            tmp_path / key[-1],
            Tune(n),
            three_lists(),
            target={"hardware": HARDWARE, "software": {**SOFTWARE, "triton_key": key}},
        )
        for n, key in enumerate(keys)
    )
    (line,) = said(compared(new, old), Kind.TARGET)
    was, _, now = line.partition(", is ")
    assert len(line) < 200
    assert was.rpartition("`3")[2] != now.rpartition("`3")[2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verify": None}, "nobody has verified it"),
        (
            {"verify": {"ok": False, "failures": ["graph missed: abc"]}},
            "its verification failed: graph missed: abc",
        ),
        (
            {"bake": {"passes": [{}], "settled": False, "remaining": {"lowered": 2}}},
            "not settled: its last pass still did 2 lowered",
        ),
        (
            {"bake": {"passes": [], "settled": False, "remaining": {}}},
            "holds kernels for another build, and nothing to serve from",
        ),
        (
            {"software": "stand-in"},
            "was built by stand-in software: install refuses it",
        ),
    ],
)
def test_what_is_not_proved_fails(
    tmp_path: Path, changes: Mapping[str, Any], words: str
) -> None:
    checked = compared(*pair(tmp_path, **changes))
    assert said(checked, Kind.UNVERIFIED) == [words]
    assert checked.outcome is Outcome.REGRESSION


def test_growth_is_by_bytes_and_by_files(tmp_path: Path) -> None:
    files = {f"inductor/triton/{n}/k": b"0" * 100_000 for n in range(9)}
    new, old = pair(tmp_path, files=files)
    checked = compared(new, old)
    sizes, numbers = said(checked, Kind.SIZE)
    assert sizes.startswith("bytes: were ")
    assert sizes.endswith("above 20%; of these triton +900,000")
    assert numbers == "files: were 2, are 11, +450%, above 20%; of these triton +9"
    assert said(compared(new, old, max_growth=1e9), Kind.SIZE) == []
    assert said(compared(old, new), Kind.SIZE) == []


def test_a_backend_without_a_candidate_that_works_fails(tmp_path: Path) -> None:
    lists = {
        gemm: (
            aten(25.0),
            *(replace(k, status=Status.COMPILE_ERROR) for k in some if k.digest),
        )
        for gemm, some in three_lists().items()
    }
    (line,) = said(compared(*pair(tmp_path, lists=lists)), Kind.BACKEND)
    assert line.startswith("triton: the baseline has 12 candidates that work, here is ")
    assert "the first of 12 failed: triton triton_mm" in line
    assert line.endswith("compile_error: no luck")


def test_a_backend_whose_kernels_are_gone_fails(tmp_path: Path) -> None:
    old = tuned(tmp_path / "old", Tune(1), three_lists())
    records = [r for one in Side.open(old).lists for r in one.records]
    new = bundle(tmp_path / "new", records, kernels=False)
    (line,) = said(compared(new, old), Kind.BACKEND)
    assert line == "triton: the baseline holds 1 file of its kernels, here is none"


def test_settings_that_differ_are_predicted_misses(tmp_path: Path) -> None:
    inductor = {**POLICY["inductor"], "max_autotune": False, "freezing": True}
    policy = {**POLICY, "inductor": inductor, "threads": 2, "name": "mine"}
    checked = compared(*pair(tmp_path, policy=policy))
    lines = said(checked, Kind.MISSES)
    assert [line.partition(":")[0] for line in lines] == [
        "threads",
        "inductor.freezing",
        "inductor.max_autotune",
    ]
    assert lines[2] == (
        "inductor.max_autotune: serving has `True`, the bundle was baked with `False`: "
        "every graph misses (the baseline's)"
    )
    assert said(checked, Kind.POLICY) == [
        "name: was `max-autotune-no-cudagraphs`, is `mine`"
    ]
    assert checked.outcome is Outcome.REGRESSION


def test_a_device_and_its_threads_are_one_miss_beside_the_other_device(
    tmp_path: Path,
) -> None:
    threads = {"threads": 8, "env": {"OMP_NUM_THREADS": "8"}}
    hardware = {**HARDWARE, "kind": "cpu", "product": "AMD EPYC"}
    new, old = pair(
        tmp_path,
        policy={**POLICY, "device": "cpu", **threads},
        target={"hardware": hardware, "software": SOFTWARE},
    )
    checked = compared(new, old)
    assert said(checked, Kind.MISSES) == [
        "device: serving has `cuda`, the bundle was baked with `cpu`: every graph "
        "misses (the baseline's); threads: `1` and `8`; env.OMP_NUM_THREADS: `1` and "
        "`8`"
    ]
    assert said(checked, Kind.OTHER_DEVICE) == [
        "hardware.product: was `NVIDIA H200`, is `AMD EPYC`"
    ]
    assert said(checked, Kind.POLICY) == []


def test_the_policy_of_serving_decides_what_is_missed(tmp_path: Path) -> None:
    policy = {**POLICY, "threads": 2}
    new, old = pair(tmp_path, policy=policy)
    checked = compared(new, old, serving=Serving.read(new))
    assert said(checked, Kind.MISSES) == []
    assert said(checked, Kind.POLICY) == ["threads: was `1`, is `2`"]
    assert checked.outcome is Outcome.FINE


def test_sizes_that_are_not_baked_are_predicted_misses(tmp_path: Path) -> None:
    new, old = pair(tmp_path, policy={**POLICY, "tokens": [1]})
    assert said(compared(new, old), Kind.MISSES) == [
        "size 16: serving has it, the bundle has no graph of it; the baseline has 2 "
        "lists of this size (the baseline's)"
    ]
    # One more size than before is no miss, and is not a setting that differs either.
    assert said(compared(old, new), Kind.MISSES) == []


def test_a_dynamic_bundle_has_all_sizes(tmp_path: Path) -> None:
    policy = {**POLICY, "dynamic": True}
    new, old = pair(tmp_path, policy={**policy, "tokens": [16]})
    serving = Serving({**policy, "tokens": [1, 16, 5]}, "a file")
    assert said(compared(new, old, serving=serving), Kind.MISSES) == []


def test_more_sizes_than_dynamo_has_room_for_fall_back(tmp_path: Path) -> None:
    tokens = list(range(1, 10))
    new, old = pair(tmp_path, policy={**POLICY, "tokens": tokens})
    serving = Serving({**POLICY, "tokens": tokens}, "a file")
    assert said(compared(new, old, serving=serving), Kind.MISSES) == [
        "dynamo.recompile_limit: 8 is below the 9 sizes of serving: the last fall back "
        "to eager"
    ]


def test_inductors_own_settings_are_named_under_one_torch_alone(tmp_path: Path) -> None:
    new, old = pair(tmp_path, inductor_config={"epilogue_fusion": "True"})
    assert said(compared(new, old), Kind.POLICY) == [
        "inductor_config.epilogue_fusion: was `absent`, is `True`"
    ]
    target = {"hardware": HARDWARE, "software": {**SOFTWARE, "torch": "2.16.0"}}
    config = {"epilogue_fusion": "True", "b": "1"}
    other, old = pair(tmp_path / "2", inductor_config=config, target=target)
    assert said(compared(other, old), Kind.POLICY) == [
        "Inductor's settings that differ by the release of torch: 2"
    ]


def test_another_name_of_one_model_is_a_note(tmp_path: Path) -> None:
    model = {"name": "other", "tp": 2, "engine": "transformers"}
    checked = compared(*pair(tmp_path, model=model))
    assert said(checked, Kind.MODEL) == [
        "name: was `tiny`, is `other`",
        "tp: was `1`, is `2`",
    ]
    assert checked.outcome is Outcome.FINE


def test_a_baseline_of_another_model_is_one_failure(tmp_path: Path) -> None:
    """All of its lists are lost; one is the same by chance."""
    lists = {shape(n): usual(9.0) for n in range(10, 14)}
    chance = shape(0, count=4)
    lists[chance] = three_lists()[chance]
    model = {"name": "other", "tp": 1, "engine": "transformers"}
    new, old = pair(tmp_path, lists=lists, model=model, verify=None)
    checked = compared(new, old)
    assert checked.outcome is Outcome.REGRESSION
    (finding,) = checked.findings
    assert (finding.kind, finding.standing) == (Kind.MODEL, Standing.FAILS)
    assert finding.text == (
        "the baseline is of something else: name: was `tiny`, is `other`; 1 of its 3 "
        "lists are here, and nothing else is compared"
    )
    assert verdict(checked) == "check     REGRESSION: 1 other model"
    # Whoever waives that wants the rest.
    waiver = Waiver("*", Kind.MODEL, "renamed", TODAY)
    waived = compared(new, old, limits=Limits(waivers=(waiver,)))
    assert len(said(waived, Kind.LOST)) == 2
    standings = {f.kind: f.standing for f in waived.findings}
    assert standings[Kind.MODEL] is Standing.WAIVED

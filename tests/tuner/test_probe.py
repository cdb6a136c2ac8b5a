"""The lists that the probe found, as real builds keep them."""

import json
import pickle
from pathlib import Path

import pytest
from accelerator import probed
from builds import SQUARE, Build, unpacked

from flytune.caches.device_profile import find_profile
from flytune.caches.policy import cpu_policy
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import ATEN, CPP, TRITON, CandidateList, Enumeration
from flytune.tuner.isolated import piece_name
from flytune.tuner.probe import Lowered, Probe, _lower, _unlisted, _until_lowered


def lists_of(build: Build) -> tuple[CandidateList, ...]:
    (path,) = build.work.glob("*/lists.pickle")
    found: Enumeration = pickle.loads(path.read_bytes())
    return found.lists


def test_every_size_and_piece_is_lowered(unfrozen_build: Build) -> None:
    lists = lists_of(unfrozen_build)
    assert {(one.piece, one.tokens) for one in lists} == {
        (piece, tokens) for piece in ("layer", "head") for tokens in (1, 8)
    }
    layer = [one for one in lists if one.piece == "layer" and one.tokens == 8]
    projections = {one.module for one in layer if one.op == "mm"}
    assert projections == {
        *(f"self_attn.{name}_proj" for name in "qkvo"),
        *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    }
    assert [len(one.candidates) for one in layer if one.op == "bmm"] == [2, 2]


def test_freezing_offers_a_library_call_and_a_template(frozen_build: Build) -> None:
    lists = lists_of(frozen_build)
    assert {one.op for one in lists} == {"linear_unary", "linear_binary", "bmm"}
    for one in lists:
        assert sorted(c.backend for c in one.candidates) == [ATEN, CPP]
        for candidate in one.candidates:
            assert (candidate.packing is not None) == (candidate.backend == CPP)
            assert pickle.loads(candidate.request) is not None
            assert isinstance(json.loads(candidate.config), dict)


def test_shapes_are_those_of_the_config(unfrozen_build: Build) -> None:
    (head,) = [
        one
        for one in lists_of(unfrozen_build)
        if (one.piece, one.tokens) == ("head", 8)
    ]
    assert [spec.sizes for spec in head.inputs] == [(8, 256), (256, 1000)]
    assert head.inputs[1].strides == (1, 256)
    assert head.output.sizes == (8, 1000)
    assert {spec.dtype for spec in (*head.inputs, head.output)} == {"bfloat16"}


def test_an_accelerators_linears_offer_the_library_and_templates(
    compiled_build: Build,
) -> None:
    lists = lists_of(compiled_build)
    modules = [one.module for one in lists if one.piece == "layer"]
    assert sorted(modules) == sorted(
        [f"self_attn.{name}_proj" for name in "qkvo"]
        + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    )
    assert [one.module for one in lists if one.piece == "head"] == ["1"]
    # One decision for all of them.
    assert len({one.key for one in lists}) == 1
    assert {one.op for one in lists} == {"mm"}
    for one in lists:
        assert [spec.sizes for spec in (*one.inputs, one.output)] == [
            *((64, 128), (128, 128), (64, 128)),
        ]
        backends = [c.backend for c in one.candidates]
        assert backends.count(ATEN) == 1
        assert backends.count(TRITON) == len(backends) - 1 >= 5


def test_a_template_of_an_accelerator_is_whole_in_itself(compiled_build: Build) -> None:
    candidates = [
        c for c in lists_of(compiled_build)[0].candidates if c.backend != ATEN
    ]
    for one in candidates:
        assert one.template == "triton_mm"
        assert "def triton_mm" in one.source
        assert pickle.loads(one.request).kernel_name == "triton_mm"
        assert {"BLOCK_M", "BLOCK_N", "num_stages", "num_warps"} <= set(
            json.loads(one.config)
        )
        assert one.packing is None
    assert len({c.choice_hash for c in candidates}) == len(candidates)
    assert len({c.config for c in candidates}) == len(candidates)


def test_an_absent_device_is_asked_the_same_in_every_process(
    compiled_build: Build, tmp_path: Path
) -> None:
    again = probed(tmp_path, find_profile("h200"), str(SQUARE))
    # One token is a product of vectors, which Inductor chooses no kernel for.
    assert {one.tokens for one in again} == {64}
    first = lists_of(compiled_build)
    assert [one.key for one in again] == [one.key for one in first]
    for mine, theirs in zip(again, first, strict=True):
        assert [c.choice_hash for c in mine.candidates] == [
            c.choice_hash for c in theirs.candidates
        ]
        assert [c.config for c in mine.candidates] == [
            c.config for c in theirs.candidates
        ]


@pytest.mark.slow
def test_a_wider_search_holds_all_that_serving_will_list(
    compiled_build: Build, tmp_path: Path
) -> None:
    # One that serving lists and nobody has timed would make it time them all.
    wide = probed(tmp_path, find_profile("h200"), str(SQUARE), "EXHAUSTIVE")
    first = lists_of(compiled_build)
    for narrow, one in zip(first, wide, strict=True):
        assert (one.op, one.inputs_key) == (narrow.op, narrow.inputs_key)
        hashes = {c.choice_hash for c in one.candidates}
        assert hashes > {c.choice_hash for c in narrow.candidates}


def test_the_timings_file_is_named_after_the_absent_device(
    compiled_build: Build,
) -> None:
    (path,) = compiled_build.work.glob("*/lists.pickle")
    found: Enumeration = pickle.loads(path.read_bytes())
    assert found.system["device"] == {"name": "NVIDIA H200"}
    assert found.system["version"]["triton"] == found.triton_key
    assert found.triton_key


@pytest.mark.parametrize("policy", ["unfrozen", "frozen"])
def test_keys_are_those_that_the_bake_asked_for(
    policy: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    build: Build = request.getfixturevalue(f"{policy}_build")
    folder = unpacked(build.bundle, tmp_path / "b")
    (path,) = (folder / "inductor" / "cache").iterdir()
    stored = {
        (op, key, precision): set(times)
        for op, keys in json.loads(path.read_text())["cache"].items()
        for key, precisions in keys.items()
        for precision, times in precisions.items()
    }
    offered: dict[tuple[str, str, str], set[str]] = {}
    for one in lists_of(build):
        if len(one.candidates) > 1:
            key = (one.op, one.inputs_key, one.precision)
            hashes = {c.choice_hash for c in one.candidates}
            offered[key] = offered.get(key, set()) | hashes
    assert stored == offered


def test_a_fault_of_the_program_is_no_end_of_lowering() -> None:
    def wrapped() -> None:
        try:
            raise Lowered
        except Lowered as error:
            raise RuntimeError from error

    def broken() -> None:
        raise FlytuneError("no memory")

    _until_lowered(wrapped)
    with pytest.raises(FlytuneError, match="no memory"):
        _until_lowered(broken)


def test_a_whole_model_is_listed_for_an_absent_device(tmp_path: Path) -> None:
    """Its mask is folded into constants, and attention takes it."""
    found = probed(tmp_path, find_profile("h200"), str(SQUARE), bake="model")
    assert {one.piece for one in found} == {"model"}
    assert all(len(one.candidates) > 1 for one in found)


def test_what_no_program_calls_is_not_lowered_and_says_why() -> None:
    shape = GemmShape("scaled_mm", 16, 96, 64, b_dtype="uint4", scaling="awq")
    policy = cpu_policy("unfrozen", tokens=(16,), threads=1, attention="eager")
    probe = Probe()
    _lower(probe, None, (shape,), policy)
    assert probe.lists == []
    assert _unlisted(probe, (shape,), policy) == {
        piece_name(shape): "no program here calls a scaled_mm in awq"
    }

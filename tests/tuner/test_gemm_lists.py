"""What an accelerator that is not here would be offered for each op, and compiles."""

import json
import multiprocessing
import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from accelerator import blind
from gemm_programs import GROUPS, K, N, probed_programs

from flytune.caches.device_profile import find_profile
from flytune.caches.records import Status
from flytune.tuner.builder import build
from flytune.tuner.candidate import ATEN, TRITON, Candidate, CandidateList
from flytune.tuner.operands import POSITIONS
from flytune.tuner.subgraph import DECOMPOSE_K
from flytune.tuner.tasks import join

TOKENS = 64
Lists = Mapping[str, CandidateList]


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Lists:
    names = ("scaled_mm rowwise", "scaled_mm tensorwise bias", "mm deep")
    names += ("grouped_mm 2d", "grouped_mm 3d", "mm of 2", "mm of 2047")
    folder = tmp_path_factory.mktemp("probe")
    return probed_programs(folder, find_profile("h200"), *names)


@pytest.fixture(scope="module")
def persistent(tmp_path_factory: pytest.TempPathFactory) -> Lists:
    """Lists with the templates that stay on the device and load by descriptors."""
    names = ("mm bfloat16", "scaled_mm rowwise")
    folder = tmp_path_factory.mktemp("persistent")
    profile = find_profile("h200")
    return probed_programs(folder, profile, *names, enable_persistent_tma_matmul=True)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    """A process that sees no device."""
    folder = tmp_path_factory.mktemp("builder")
    with ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=blind,
        initargs=(str(folder),),
    ) as pool:
        yield pool


def compiled(builder: ProcessPoolExecutor, candidate: Candidate) -> list[str]:
    """Return the kernels that a candidate is built into."""
    made = builder.submit(build, candidate, find_profile("h200")).result()
    assert (made.status, made.reason) == (Status.OK, "")
    return [name for name in made.files if name.endswith(".cubin")]


def templates(made: CandidateList) -> dict[str, Candidate]:
    """Return a candidate of each template."""
    return {c.template: c for c in made.candidates if c.backend == TRITON}


@pytest.mark.parametrize(
    ("name", "op", "rest", "number"),
    [
        ("scaled_mm rowwise", "scaled_mm", [(TOKENS, 1), (1, N)], 50),
        ("scaled_mm tensorwise bias", "scaled_mm", [(), (), (N,)], 50),
        ("grouped_mm 2d", "grouped_mm", [(GROUPS,)], 20),
        ("grouped_mm 3d", "grouped_mm", [], 20),
    ],
)
def test_a_list_holds_the_library_and_templates(
    lists: Lists, name: str, op: str, rest: list[tuple[int, ...]], number: int
) -> None:
    made = lists[name]
    places = POSITIONS[op]
    a, b = made.inputs[places.a], made.inputs[places.b]
    assert (made.op, a.sizes[-2:], b.sizes[-2:]) == (op, (TOKENS, K), (K, N))
    assert b.strides[-2:] == (1, K)
    assert [spec.sizes for spec in made.inputs[2:]] == rest
    backends = [c.backend for c in made.candidates]
    assert backends.count(ATEN) == 1
    assert backends.count(TRITON) == len(backends) - 1 >= number


@pytest.mark.parametrize("rows", [2, 2047])
def test_rows_that_fill_no_tile_are_listed_as_they_are(lists: Lists, rows: int) -> None:
    made = lists[f"mm of {rows}"]
    assert made.inputs[0].sizes == (rows, 4096)
    assert len(made.candidates) > 15


def test_scalars_are_in_the_librarys_request(lists: Lists) -> None:
    library = {
        name: pickle.loads(made.candidates[0].request) for name, made in lists.items()
    }
    fp8 = library["scaled_mm rowwise"]
    assert fp8.kernel_name == "_scaled_mm"
    assert str(fp8.kwargs["out_dtype"]) == "torch.bfloat16"
    assert fp8.kwargs["use_fast_accum"] is True
    assert library["grouped_mm 2d"].kernel_name == "_grouped_mm"
    # It returns an output of its own.
    assert [made.has_out_variant for made in library.values()] == [
        *(True, True, True, False, False, True, True),
    ]


def test_a_template_of_each_list_compiles(
    lists: Lists, builder: ProcessPoolExecutor
) -> None:
    for made in lists.values():
        for candidate in templates(made).values():
            assert len(compiled(builder, candidate)) == 1


@pytest.mark.slow
def test_persistent_templates_ask_for_a_workspace_and_compile(
    persistent: Lists, builder: ProcessPoolExecutor
) -> None:
    found = {
        "mm bfloat16": "triton_mm_persistent_tma",
        "scaled_mm rowwise": "triton_scaled_mm_device_tma_epilogue_scaling",
    }
    for name, template in found.items():
        candidate = templates(persistent[name])[template]
        request = pickle.loads(candidate.request)
        assert request.workspace_size > 0
        # The runner's own process puts a tensor there.
        assert "ws_placeholder" in request.extra_args
        assert len(compiled(builder, candidate)) == 1


def graphs(made: CandidateList) -> list[Candidate]:
    return [c for c in made.candidates if c.backend == DECOMPOSE_K]


def test_a_deep_product_is_offered_cut_into_slices_of_k(lists: Lists) -> None:
    found = graphs(lists["mm deep"])
    splits = [json.loads(one.config)["description"] for one in found]
    assert {"k_split=2", "k_split=32"} <= set(splits)
    assert len({one.choice_hash for one in found}) == len(found) == len(set(splits))
    for one in found:
        assert "def call(" in one.source
        assert "extern_kernels.bmm_dtype" in one.source
        # Of this process there is nothing in it, and lists are not mixed up by it.
        assert str(Path.home()) not in one.source
        assert "kernel path" not in one.source
    assert list(lists) == [
        *("scaled_mm rowwise", "scaled_mm tensorwise bias", "mm deep"),
        *("grouped_mm 2d", "grouped_mm 3d", "mm of 2", "mm of 2047"),
    ]


def test_kernels_that_sum_slices_of_k_compile(
    lists: Lists, builder: ProcessPoolExecutor
) -> None:
    for one in graphs(lists["mm deep"])[::3]:
        names = {Path(cubin).name for cubin in compiled(builder, one)}
        assert all("_fused_mm" in name for name in names), names
        assert names


def test_a_graph_that_was_not_lowered_is_unsupported(
    lists: Lists, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    one = replace(graphs(lists["mm deep"])[0], source="")
    made = build(one, find_profile("h200"))
    assert made.status is Status.UNSUPPORTED
    assert made.reason == f"Inductor has no kernel to build: {one.template}"
    assert made.files == {}


def test_a_graph_of_an_accelerator_is_not_built_for_a_cpu(
    lists: Lists, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    made = build(graphs(lists["mm deep"])[0])
    assert made.status is Status.UNSUPPORTED


def test_unplanned_lists_become_shapes_of_their_op(lists: Lists) -> None:
    shapes = {task.offered.piece: task.shape for task in join((), lists.values()).tasks}
    fp8 = shapes["scaled_mm rowwise"]
    assert (fp8.op, fp8.m, fp8.n, fp8.k) == ("scaled_mm", TOKENS, N, K)
    assert (fp8.a_dtype, fp8.out_dtype) == ("float8_e4m3fn", "bfloat16")
    assert (fp8.scaling, fp8.bias, fp8.layout) == ("rowwise", False, "TN")
    biased = shapes["scaled_mm tensorwise bias"]
    assert (biased.scaling, biased.bias) == ("tensorwise", True)
    ragged, even = shapes["grouped_mm 2d"], shapes["grouped_mm 3d"]
    assert (ragged.op, ragged.groups, ragged.m) == ("grouped_mm", GROUPS, TOKENS)
    assert (even.op, even.groups, even.m) == ("grouped_mm", GROUPS, GROUPS * TOKENS)
    assert {ragged.b_dtype, even.b_dtype} == {"bfloat16"}
    assert all(shape.rule == "not planned" for shape in shapes.values())

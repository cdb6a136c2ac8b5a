"""What AMD's gfx950, which is not here, would be offered for each op, and why not."""

import json
import pickle
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from accelerator import probed_program, probed_shapes
from builds import SQUARE
from gfx950 import MI355X, MM, POLICY, SHAPES

from flytune.caches.compat import release, torch_version
from flytune.shapes.gemm import GemmShape
from flytune.shapes.plan import plan_shapes
from flytune.shapes.registry import find_model
from flytune.tuner.candidate import (
    ATEN,
    FLYDSL,
    TRITON,
    Candidate,
    CandidateList,
    Enumeration,
)
from flytune.tuner.eligibility import NOT_ASKED
from flytune.tuner.isolated import piece_name
from flytune.tuner.tasks import join
from flytune.tuner.unlisted import LISTED_ALONE

pytestmark = pytest.mark.skipif(
    release(torch_version()) < (2, 15), reason="this torch has no FlyDSL templates"
)

Lists = Mapping[str, CandidateList]


def by_name(found: Enumeration, shapes: Mapping[str, GemmShape]) -> Lists:
    names = {piece_name(shape): name for name, shape in shapes.items()}
    return {names[one.piece]: one for one in found.lists}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Enumeration:
    folder = tmp_path_factory.mktemp("gfx950")
    # A problem that is asked for twice is listed once.
    return probed_shapes(folder, MI355X, (*SHAPES.values(), MM), POLICY)


@pytest.fixture(scope="module")
def lists(found: Enumeration) -> Lists:
    return by_name(found, SHAPES)


def flydsl(made: CandidateList) -> list[Candidate]:
    return [c for c in made.candidates if c.backend == FLYDSL]


@pytest.mark.parametrize(
    ("name", "library", "triton", "of_flydsl"),
    [
        ("mm", 1, 36, 34),
        ("mm NN", 1, 36, 34),
        # Of what is large in all three sizes Inductor tries two.
        ("mm large", 1, 36, 2),
        ("mm K=32", 1, 31, 28),
        ("mm K=8200", 1, 36, 0),
        ("mm N=8190", 1, 36, 0),
        ("addmm", 1, 36, 0),
        ("bmm", 1, 36, 0),
        ("grouped NN", 1, 30, 19),
        ("grouped TN", 1, 30, 0),
        ("mxfp8", 1, 0, 44),
        # The library takes multiples of 32 alone.
        ("mxfp8 m=1", 0, 0, 44),
        ("mxfp8 bias", 1, 0, 44),
        ("mxfp4", 1, 0, 43),
        ("rowwise", 1, 9, 0),
        ("tensorwise", 1, 9, 0),
    ],
)
def test_a_list_holds_so_many_of_each_backend(
    lists: Lists, name: str, library: int, triton: int, of_flydsl: int
) -> None:
    counts = Counter(c.backend for c in lists[name].candidates)
    assert counts == +Counter({ATEN: library, TRITON: triton, FLYDSL: of_flydsl})
    hashes = {c.choice_hash for c in lists[name].candidates}
    assert len(hashes) == len(lists[name].candidates)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "mm m=1",
            "mm: config.coordinate_descent_tuning, "
            'self.device.type not in ["cpu", "mps"], '
            "statically_known_true(self.shape[0] == 1)",
        ),
        (
            "mxfp8 K=8160",
            "get_flydsl_mxfp_template_kwargs: k % 128 != 0 [k=8160] and "
            "tuned_scaled_mm_v2: not check_supported_recipe(recipe_a) ",
        ),
    ],
)
def test_what_inductor_lowers_without_a_choice_says_why(
    found: Enumeration, lists: Lists, name: str, reason: str
) -> None:
    assert name not in lists
    assert found.unlisted[piece_name(SHAPES[name])].startswith(reason)


def test_what_has_a_list_says_nothing(found: Enumeration, lists: Lists) -> None:
    assert len(found.unlisted) + len(lists) == len(SHAPES)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mm K=8200", "get_flydsl_mm_template_kwargs: k_static % 32 != 0 "),
        (
            "mm N=8190",
            "no configuration fits: make_gemm_param_and_validate: "
            "n % output_vec_size != 0 [n=8190, output_vec_size=8]",
        ),
        (
            "mm float32",
            "use_flydsl_gemm_template: not _use_template_for_gpu(layout, "
            "[torch.float16, torch.bfloat16])",
        ),
        (
            "grouped TN",
            "use_flydsl_grouped_mm_template: "
            "not sizevars.statically_known_equals(mat2_stride[-1], 1) ",
        ),
        *((name, NOT_ASKED) for name in ("addmm", "bmm", "rowwise", "tensorwise")),
    ],
)
def test_a_list_without_flydsl_says_why_as_inductor_says_it(
    lists: Lists, name: str, reason: str
) -> None:
    assert lists[name].declined.startswith(reason)
    assert not flydsl(lists[name])


def test_a_list_with_flydsl_says_nothing(lists: Lists) -> None:
    assert all((one.declined == "") == bool(flydsl(one)) for one in lists.values())


@pytest.mark.parametrize("name", ["mm", "grouped NN", "mxfp4"])
def test_a_candidate_of_flydsl_is_whole_in_itself(lists: Lists, name: str) -> None:
    found = flydsl(lists[name])
    shape = SHAPES[name]
    for one in found:
        config = json.loads(one.config)
        sizes = [config[f"GEMM_{side}"] for side in "MNK"]
        assert sizes == [str(shape.m), str(shape.n), str(shape.k)]
        assert {"TILE_M", "TILE_N", "TILE_K", "STAGES"} <= set(config)
        request = pickle.loads(one.request)
        assert request.source_code == one.source
        assert f"def {request.kernel_name}_main(" in one.source
        assert one.choice_hash.startswith(f"{request.kernel_name}-")
        assert one.choice_hash.endswith(request.module_cache_key)
    assert len({one.config for one in found}) == len(found)
    assert all(one.build_key for one in found)
    assert {one.template for one in found} == {
        "grouped_gemm_flydsl" if name.startswith("grouped") else "mm_flydsl"
    }


def test_only_flydsls_candidates_are_builds_that_lists_share(lists: Lists) -> None:
    for one in lists.values():
        for candidate in one.candidates:
            assert bool(candidate.build_key) == (candidate.backend == FLYDSL)


def test_a_triton_template_is_for_the_absent_device(lists: Lists) -> None:
    sources = [c.source for c in lists["mm"].candidates if c.backend == TRITON]
    device = "DeviceProperties(type='hip', index=0, multi_processor_count=256, "
    device += "cc='gfx950', major=9, regs_per_multiprocessor=131072"
    assert all(device in source for source in sources)


def test_the_timings_file_is_named_after_the_absent_device(found: Enumeration) -> None:
    assert found.system["device"] == {"name": "gfx950:sramecc+:xnack-"}
    version = found.system["version"]
    assert version == {
        "hip": MI355X.captured_with["hip"],
        "triton": found.triton_key,
    }


def test_scaled_lists_are_joined_with_what_was_planned(found: Enumeration) -> None:
    coverage = join(SHAPES.values(), found.lists, found.unlisted)
    assert coverage.unplanned == ()
    assert coverage.missing == (SHAPES["mm m=1"], SHAPES["mxfp8 K=8160"])
    assert list(coverage.unlisted) == list(found.unlisted.values())
    for task in coverage.tasks:
        assert piece_name(task.shape) == task.offered.piece
    # As far as the tensors tell, the lists are of the same shapes without a plan.
    for task in join((), found.lists).tasks:
        assert piece_name(task.shape) == task.offered.piece


AGAIN = ("mm narrow", "grouped NN", "mxfp8", "addmm")


@pytest.fixture(scope="module")
def llama() -> tuple[GemmShape, ...]:
    model = find_model("Llama-3.3-70B")
    return plan_shapes(
        model, tp=8, engine="vllm", tokens=(8, 1), quant="mxfp4", trace=False
    )


@pytest.fixture(scope="module")
def second(
    llama: tuple[GemmShape, ...], tmp_path_factory: pytest.TempPathFactory
) -> Enumeration:
    """Lists of another process, in another order, and a model's."""
    folder = tmp_path_factory.mktemp("second")
    shapes = (*llama, *(SHAPES[name] for name in reversed(AGAIN)))
    return probed_shapes(folder, MI355X, shapes, POLICY)


def test_hashes_are_the_same_in_every_process(
    lists: Lists, second: Enumeration
) -> None:
    again = {one.piece: one for one in second.lists}
    for name in AGAIN:
        mine, theirs = lists[name], again[piece_name(SHAPES[name])]
        assert mine.key == theirs.key
        for one, other in zip(mine.candidates, theirs.candidates, strict=True):
            for field in ("choice_hash", "config", "template", "source", "build_key"):
                assert getattr(one, field) == getattr(other, field)
        assert mine.declined == theirs.declined


def test_a_graph_is_hashed_by_its_text(lists: Lists) -> None:
    (graph,) = (c for c in lists["mm narrow"].candidates if c.backend == "subgraph")
    assert graph.template == "contiguous_mm"
    assert json.loads(graph.config) == {"description": "contiguous mm"}
    assert graph.choice_hash.startswith("contiguous_mm-[16, 8192]-[8192, 128]-")
    assert "torch.ops.aten.mm" in graph.choice_hash
    assert "0x" not in graph.choice_hash


def test_a_quantised_model_is_listed_without_its_program(
    llama: tuple[GemmShape, ...], second: Enumeration
) -> None:
    own = [one for one in second.lists if one.piece in set(map(piece_name, llama))]
    coverage = join(llama, own)
    assert coverage.unplanned == ()
    # A head of one token is a product of vectors, which has no choice.
    assert [(s.m, s.module) for s in coverage.missing] == [(1, "lm_head")]
    assert [(t.shape.m, t.shape.n, t.shape.k, t.modules) for t in coverage.tasks] == [
        (shape.m, shape.n, shape.k, (shape.module,))
        for shape in llama
        if shape not in coverage.missing
    ]
    for task in coverage.tasks:
        assert bool(flydsl(task.offered)), task.shape


def test_a_program_is_listed_as_on_any_accelerator(tmp_path: Path) -> None:
    policy = replace(POLICY, tokens=(64,))
    planned = (MM, replace(MM, m=1))
    enumeration = probed_program(
        tmp_path, MI355X, str(SQUARE), policy=policy, planned=planned
    )
    found = enumeration.lists
    assert {one.module for one in found if one.piece == "layer"} == {
        *(f"self_attn.{name}_proj" for name in "qkvo"),
        *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    }
    # One decision for all of them.
    assert len({one.key for one in found}) == 1
    backends = {c.backend for c in found[0].candidates}
    assert backends == {ATEN, TRITON, FLYDSL}
    assert {one.declined for one in found} == {""}
    # What is planned and in no list of the program is lowered by itself.
    alone, decomposed = (enumeration.unlisted[piece_name(one)] for one in planned)
    assert alone == LISTED_ALONE
    assert decomposed.startswith("mm: config.coordinate_descent_tuning, ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "of_flydsl"), [("mm", 1998), ("grouped NN", 896 + 5), ("mxfp4", 2872 + 5)]
)
def test_an_exhaustive_list_holds_the_default_one(
    lists: Lists, tmp_path: Path, name: str, of_flydsl: int
) -> None:
    # Inductor's own exhaustive lists lack five of the default ones. Triton's are 5160
    # more, and are minutes to render.
    narrow = {**POLICY.inductor, "max_autotune_gemm_backends": "ATEN,FLYDSL"}
    policy = replace(POLICY, inductor=narrow)
    found = probed_shapes(tmp_path, MI355X, [SHAPES[name]], policy, "EXHAUSTIVE")
    (wide,) = found.lists
    assert len(flydsl(wide)) == of_flydsl
    hashes = {c.choice_hash for c in wide.candidates}
    assert hashes > {c.choice_hash for c in flydsl(lists[name])}

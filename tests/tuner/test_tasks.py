from dataclasses import replace

import pytest
from fakes import candidate, library, offered

from flytune.shapes.gemm import FP4, GemmShape
from flytune.tuner.candidate import CandidateList, TensorSpec
from flytune.tuner.isolated import piece_name
from flytune.tuner.tasks import join, planned_for

Q = GemmShape("mm", 16, 64, 128, module="model.layers.*.self_attn.q_proj")
K = replace(Q, module="model.layers.*.self_attn.k_proj")
GATE = GemmShape("mm", 16, 256, 64, module="model.layers.*.mlp.gate_proj")
UP = replace(GATE, module="model.layers.*.mlp.up_proj")
HEAD = GemmShape("mm", 16, 1000, 64, module="lm_head")


def listed(shape: GemmShape, *names: str, module: str, **changes: str) -> CandidateList:
    candidates = [library("aten"), *map(candidate, names)]
    made = offered(candidates, m=shape.m, n=shape.n, k=shape.k)
    return replace(made, module=module, **changes)


def bmm(module: str = "self_attn") -> CandidateList:
    made = offered([library("bmm")], m=16, n=32, k=8)
    a = TensorSpec((4, 16, 8), (128, 8, 1), "bfloat16")
    b = TensorSpec((4, 8, 32), (256, 32, 1), "bfloat16")
    out = TensorSpec((4, 16, 32), (512, 32, 1), "bfloat16")
    return replace(made, op="bmm", inputs=(a, b), output=out, module=module)


def test_each_list_gets_the_gemm_of_its_module() -> None:
    lists = [
        listed(K, "k", module="self_attn.k_proj"),
        listed(Q, "q", module="self_attn.q_proj"),
        listed(HEAD, "h", module="1", piece="head"),
    ]
    coverage = join([Q, K, HEAD], lists)
    assert [t.shape for t in coverage.tasks] == [K, Q, HEAD]
    assert [t.modules for t in coverage.tasks] == [
        (K.module,),
        (Q.module,),
        ("lm_head",),
    ]
    assert (coverage.missing, coverage.unplanned) == ((), ())


def test_a_planned_gemm_without_a_list_is_missing() -> None:
    coverage = join([Q, UP], [listed(Q, module="self_attn.q_proj")])
    assert coverage.missing == (UP,)


def test_a_list_without_a_planned_gemm_is_unplanned() -> None:
    strange = listed(replace(Q, n=99), module="self_attn.q_proj")
    coverage = join([Q], [strange])
    assert (coverage.missing, coverage.unplanned) == ((Q,), (strange,))
    # Decided all the same, or the bake would tune it.
    (task,) = coverage.tasks
    assert (task.shape.m, task.shape.n, task.shape.k) == (Q.m, 99, Q.k)
    assert task.shape.rule == "not planned"


def test_a_list_of_an_unknown_op_is_unplanned() -> None:
    strange = replace(listed(Q, module="self_attn.q_proj"), op="int_mm")
    coverage = join([Q], [strange])
    assert coverage.unplanned == (strange,)
    assert [task.offered for task in coverage.tasks] == [strange]


def test_a_fused_list_is_of_every_module_of_its_sizes() -> None:
    fused = listed(GATE, module="")
    coverage = join([Q, GATE, UP], [fused])
    assert coverage.tasks[0].modules == (GATE.module, UP.module)
    assert coverage.missing == (Q,)


def test_a_gemm_that_serving_reaches_stands_for_one_that_it_does_not() -> None:
    eager = replace(GATE, reach="eager")
    (task,) = join([eager, UP], [listed(GATE, module="")]).tasks
    assert replace(task.shape, count=UP.count) == UP
    assert task.modules == (UP.module, eager.module)


def test_a_list_of_an_unplanned_module_is_of_every_module_of_its_sizes() -> None:
    assert planned_for(listed(GATE, module="mlp.fused"), [GATE, UP]) == (GATE, UP)


def test_lists_that_are_one_decision_merge() -> None:
    lists = [
        listed(Q, "x", module="self_attn.q_proj"),
        listed(K, "x", module="self_attn.k_proj"),
        listed(Q, "x", module="self_attn.q_proj"),
    ]
    coverage = join([Q, K], lists)
    assert len(coverage.tasks) == 1
    assert coverage.tasks[0].modules == (Q.module, K.module)
    assert coverage.tasks[0].calls == 3
    assert coverage.missing == ()


def test_a_decision_counts_the_calls_of_all_its_modules() -> None:
    q, k = replace(Q, count=32), replace(K, count=4)
    lists = [
        listed(q, "x", module="self_attn.q_proj"),
        listed(k, "x", module="self_attn.k_proj"),
        listed(q, "x", module="self_attn.q_proj"),
    ]
    (task,) = join([q, k], lists).tasks
    assert (task.modules, task.counts) == ((q.module, k.module), (32, 4))
    assert task.shape == replace(q, count=36)
    # Two GEMMs of one module, such as attention's, that are one list.
    (task,) = join([q, replace(q, rule="another")], lists[:1]).tasks
    assert (task.modules, task.counts, task.shape.count) == ((q.module,), (64,), 64)


def test_candidates_in_another_order_are_the_same_decision() -> None:
    one = listed(Q, "x", "y", module="self_attn.q_proj")
    other = replace(one, candidates=one.candidates[::-1])
    assert len(join([Q], [one, other]).tasks) == 1


@pytest.mark.parametrize("change", [{"op": "linear_unary"}, {"precision": "high"}])
def test_lists_with_another_key_stay_apart(change: dict[str, str]) -> None:
    one = listed(Q, "x", module="self_attn.q_proj")
    assert len(join([Q], [one, replace(one, **change)]).tasks) == 2


def test_lists_with_other_candidates_stay_apart() -> None:
    lists = [
        listed(GATE, "silu", module="mlp.gate_proj"),
        listed(UP, "none", module="mlp.up_proj"),
    ]
    assert [t.shape for t in join([GATE, UP], lists).tasks] == [GATE, UP]


def test_bmm_is_of_bmm_alone() -> None:
    scores = GemmShape("bmm", 16, 32, 8, batch=4, module="model.layers.*.self_attn")
    same = replace(scores, op="mm")
    assert planned_for(bmm(), [same, scores]) == (scores,)
    assert planned_for(bmm(), [replace(scores, batch=5)]) == ()


def scaled(module: str = "mlp.gate_proj", *, bias: bool = False) -> CandidateList:
    a = TensorSpec((16, 64), (64, 1), "float8_e4m3fn")
    b = TensorSpec((64, 256), (1, 64), "float8_e4m3fn")
    scale = TensorSpec((), (), "float32")
    added = (TensorSpec((256,), (1,), "bfloat16"),) if bias else ()
    made = offered([library("_scaled_mm")], m=16, n=256, k=64)
    inputs = (a, b, scale, scale, *added)
    return replace(made, op="scaled_mm", inputs=inputs, module=module)


def grouped(groups: int = 8, module: str = "mlp.experts") -> CandidateList:
    a = TensorSpec((32, 64), (64, 1), "bfloat16")
    b = TensorSpec((groups, 64, 256), (64 * 256, 1, 64), "bfloat16")
    offsets = TensorSpec((groups,), (1,), "int32")
    made = offered([library("_grouped_mm")], m=32, n=256, k=64)
    return replace(made, op="grouped_mm", inputs=(a, b, offsets), module=module)


def test_scaled_mm_is_of_scaled_mm_alone() -> None:
    raw = "float8_e4m3fn"
    fp8 = replace(GATE, op="scaled_mm", a_dtype=raw, b_dtype=raw, scaling="tensorwise")
    assert planned_for(scaled(), [GATE, fp8]) == (fp8,)
    assert planned_for(listed(GATE, module="mlp.gate_proj"), [fp8]) == ()


MXFP8 = replace(
    GATE,
    op="scaled_mm",
    a_dtype="float8_e4m3fn",
    b_dtype="float8_e4m3fn",
    scaling="mxfp8",
)
MXFP4 = replace(MXFP8, a_dtype=FP4, b_dtype=FP4, scaling="mxfp4")


def blocks_scaled(shape: GemmShape) -> CandidateList:
    """Return a list of a microscaling format, laid out as torch has it."""
    stored = shape.k // 2 if shape.a_dtype == FP4 else shape.k
    a = TensorSpec((shape.m, stored), (stored, 1), shape.a_dtype)
    b = TensorSpec((stored, shape.n), (1, stored), shape.b_dtype)
    blocks = shape.k // 32
    scales = (
        TensorSpec((rows, blocks), (blocks, 1), "float8_e8m0fnu")
        for rows in (shape.m, shape.n)
    )
    made = offered([library("_scaled_mm_v2")], m=shape.m, n=shape.n, k=shape.k)
    inputs = (a, b, *scales)
    return replace(made, op="scaled_mm", inputs=inputs, module="mlp.gate_proj")


def test_a_scheme_is_joined_with_its_own_lists() -> None:
    rowwise = replace(MXFP8, scaling="rowwise")
    plan = (rowwise, MXFP8, MXFP4)
    assert planned_for(blocks_scaled(MXFP8), plan) == (MXFP8,)
    # Two values of K lie in one element.
    assert planned_for(blocks_scaled(MXFP4), plan) == (MXFP4,)
    assert planned_for(scaled(), plan) == ()


@pytest.mark.parametrize("shape", [MXFP8, MXFP4])
def test_an_unplanned_list_of_blocks_names_its_scheme(shape: GemmShape) -> None:
    (task,) = join([], [blocks_scaled(shape)]).tasks
    assert task.shape == replace(shape, rule="not planned")


def test_an_isolated_list_is_of_its_very_problem() -> None:
    biased = replace(GATE, op="addmm", bias=True)
    row_major = replace(GATE, layout="NN")
    plan = (GATE, UP, biased, row_major)
    made = replace(listed(GATE, module=""), piece=piece_name(GATE))
    assert planned_for(made, plan) == (GATE, UP)
    assert planned_for(replace(made, piece=piece_name(row_major)), plan) == (row_major,)
    row, weight = made.inputs
    bias = TensorSpec((16, 256), (0, 1), "bfloat16")
    added = replace(
        made, op="addmm", inputs=(bias, row, weight), piece=piece_name(biased)
    )
    assert planned_for(added, plan) == (biased,)
    # Were it of other sizes than its shape, it would be nobody's.
    assert planned_for(replace(made, piece=piece_name(Q)), (Q,)) == ()


def test_grouped_mm_is_of_as_many_groups() -> None:
    experts = GemmShape(
        "grouped_mm", 32, 256, 64, groups=8, module="model.layers.*.mlp.experts"
    )
    assert planned_for(grouped(), [replace(experts, groups=4), experts]) == (experts,)
    assert planned_for(grouped(), [replace(experts, op="mm", groups=0)]) == ()


def test_a_planned_addmm_may_be_a_fused_linear() -> None:
    biased = replace(GATE, op="addmm", bias=True)
    made = listed(GATE, module="mlp.gate_proj")
    row, weight = made.inputs
    bias = TensorSpec((16, 256), (0, 1), "bfloat16")
    added = replace(made, op="addmm", inputs=(bias, row, weight))
    assert planned_for(added, [biased]) == (biased,)
    linear = replace(made, op="linear_unary", inputs=(row, weight, bias))
    assert planned_for(linear, [biased]) == (biased,)


@pytest.mark.parametrize(
    ("made", "want"),
    [
        (scaled(), ("scaled_mm", 0, "float8_e4m3fn", "TN", "tensorwise", False)),
        (
            scaled(bias=True),
            ("scaled_mm", 0, "float8_e4m3fn", "TN", "tensorwise", True),
        ),
        (grouped(), ("grouped_mm", 8, "bfloat16", "TN", None, False)),
        (bmm(), ("bmm", 0, "bfloat16", "NN", None, False)),
    ],
)
def test_an_unplanned_list_is_of_its_own_op(
    made: CandidateList, want: tuple[object, ...]
) -> None:
    (task,) = join([], [made]).tasks
    one = task.shape
    found = (one.op, one.groups, one.b_dtype, one.layout, one.scaling, one.bias)
    assert found == want

from collections.abc import Callable
from dataclasses import replace

import pytest

from flytune.shapes.derive import derive_shapes
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import Engine, GemmShape
from flytune.shapes.model_config import ModelConfig
from flytune.shapes.splits import SplitError

Load = Callable[[str], ModelConfig]


def vllm(config: ModelConfig, tp: int) -> dict[str, GemmShape]:
    shapes = derive_shapes(config, tp=tp, engine="vllm", tokens=(8,))
    return {shape.module.rpartition(".")[2]: shape for shape in shapes}


def sizes(shapes: dict[str, GemmShape]) -> dict[str, tuple[int, int]]:
    return {layer: (shape.n, shape.k) for layer, shape in shapes.items()}


def test_llama_70b_on_eight_ranks_of_vllm(load: Load) -> None:
    shapes = vllm(load("Llama-3.3-70B-Instruct"), 8)
    assert sizes(shapes) == {
        "qkv_proj": (1280, 8192),
        "o_proj": (8192, 1024),
        "gate_up_proj": (7168, 8192),
        "down_proj": (8192, 3584),
        "lm_head": (16032, 8192),
    }
    assert [shape.count for shape in shapes.values()] == [80, 80, 80, 80, 1]
    assert shapes["qkv_proj"].module == "model.layers.*.self_attn.qkv_proj"


def test_head_dim_is_the_configs_own(load: Load) -> None:
    assert sizes(vllm(load("Qwen3-32B"), 1))["qkv_proj"] == (10240, 5120)
    assert sizes(vllm(load("Qwen3-4B"), 1))["qkv_proj"] == (6144, 2560)
    assert sizes(vllm(load("Qwen3-4B"), 8))["qkv_proj"] == (768, 2560)


@pytest.mark.parametrize(
    ("tp", "n", "words"),
    [
        (4, (16 + 2 + 2) * 128, "2 of 8 kv heads x 128"),
        (8, (8 + 1 + 1) * 128, "1 of 8 kv heads x 128"),
        (16, (4 + 1 + 1) * 128, "1 of 8 kv heads x 128, each on 2 ranks"),
        (64, (1 + 1 + 1) * 128, "1 of 8 kv heads x 128, each on 8 ranks"),
    ],
)
def test_kv_heads_are_replicated_past_their_number(
    load: Load, tp: int, n: int, words: str
) -> None:
    qkv = vllm(load("Llama-3.3-70B-Instruct"), tp)["qkv_proj"]
    assert qkv.n == n
    assert f"k_proj {words} +" in qkv.rule


def test_kv_heads_that_ranks_cannot_share_are_refused(load: Load) -> None:
    config = replace(load("Qwen3-32B"), num_attention_heads=60, num_key_value_heads=10)
    with pytest.raises(SplitError, match="no multiple of num_key_value_heads: `10`"):
        vllm(config, 12)


@pytest.mark.parametrize(
    ("engine", "tp", "message"),
    [
        ("vllm", 3, "3 ranks do not divide num_attention_heads: `64`"),
        ("transformers", 3, "3 ranks do not divide num_attention_heads: `64`"),
        ("transformers", 16, "16 ranks do not divide num_key_value_heads: `8`"),
        ("vllm", 128, "128 ranks do not divide num_attention_heads: `64`"),
    ],
)
def test_ranks_that_do_not_divide_name_the_field(
    load: Load, engine: Engine, tp: int, message: str
) -> None:
    with pytest.raises(SplitError) as caught:
        derive_shapes(load("Qwen3-32B"), tp=tp, engine=engine, tokens=(1,))
    assert str(caught.value) == message


def test_an_intermediate_size_or_vocabulary_can_be_at_fault(load: Load) -> None:
    config = load("Qwen3-32B")
    with pytest.raises(SplitError, match="intermediate_size: `25601`"):
        vllm(replace(config, intermediate_size=25601), 8)
    odd = replace(config, vocab_size=151937)
    with pytest.raises(SplitError, match="vocab_size: `151937`"):
        derive_shapes(odd, tp=8, engine="transformers", tokens=(1,))


@pytest.mark.parametrize(
    ("vocabulary", "tp", "n"),
    [(151936, 1, 151936), (32000, 1, 32000), (32001, 1, 32064), (49159, 8, 6152)],
)
def test_vllm_pads_the_vocabulary(load: Load, vocabulary: int, tp: int, n: int) -> None:
    head = vllm(replace(load("Qwen3-32B"), vocab_size=vocabulary), tp)["lm_head"]
    assert head.n == n
    assert (f"padded from {vocabulary}" in head.rule) == (n * tp != vocabulary)


def test_transformers_runs_its_linears_apart_and_splits_them(load: Load) -> None:
    shapes = derive_shapes(
        load("Llama-3.3-70B-Instruct"), tp=8, engine="transformers", tokens=(64,)
    )
    assert [(s.module.rpartition(".")[2], s.n, s.k) for s in shapes] == [
        ("q_proj", 1024, 8192),
        ("k_proj", 128, 8192),
        ("v_proj", 128, 8192),
        ("o_proj", 8192, 1024),
        ("gate_proj", 3584, 8192),
        ("up_proj", 3584, 8192),
        ("down_proj", 8192, 3584),
        ("lm_head", 16032, 8192),
    ]
    assert {(s.tp, s.engine, s.m, s.op, s.layout) for s in shapes} == {
        (8, "transformers", 64, "mm", "TN")
    }
    assert all(s.rule for s in shapes)


def test_a_bias_makes_an_addmm_where_it_is_in_the_gemm(load: Load) -> None:
    config = replace(load("Llama-3.1-8B-Instruct"), attention_bias=True, mlp_bias=True)
    one = derive_shapes(config, tp=1, engine="transformers", tokens=(1,))
    assert [shape.op for shape in one] == ["addmm"] * 7 + ["mm"]
    two = derive_shapes(config, tp=2, engine="transformers", tokens=(1,))
    without = [shape.module.rpartition(".")[2] for shape in two if not shape.bias]
    assert without == ["o_proj", "down_proj", "lm_head"]
    ranks = derive_shapes(config, tp=2, engine="vllm", tokens=(1,))
    rows = [shape for shape in ranks if shape.module.endswith("o_proj")]
    assert [(row.op, row.bias) for row in rows] == [("addmm", True), ("mm", False)]
    assert "bias on rank 0" in rows[0].rule


def test_vllm_gives_qwen3_no_output_bias(load: Load) -> None:
    shapes = vllm(replace(load("Qwen3-32B"), attention_bias=True), 1)
    assert shapes["qkv_proj"].bias
    assert not shapes["o_proj"].bias


def test_eager_attention_adds_two_bmms_a_layer(load: Load) -> None:
    shapes = derive_shapes(
        load("Qwen3-4B"),
        tp=2,
        engine="transformers",
        tokens=(7,),
        attention="eager",
    )
    bmms = [shape for shape in shapes if shape.op == "bmm"]
    assert [shape.problem for shape in bmms] == [
        ("bmm", 7, 7, 128, 16, 0),
        ("bmm", 7, 128, 7, 16, 0),
    ]
    assert [(shape.layout, shape.count) for shape in bmms] == [("TN", 36), ("NN", 36)]


def test_vllm_has_no_eager_attention(load: Load) -> None:
    with pytest.raises(FlytuneError, match="vllm has no eager attention"):
        derive_shapes(
            load("Qwen3-4B"), tp=1, engine="vllm", tokens=(1,), attention="eager"
        )


def test_dtypes_follow_the_config_and_the_engine(load: Load) -> None:
    config = replace(load("Qwen3-4B"), dtype="float32")
    ours = derive_shapes(config, tp=1, engine="transformers", tokens=(1,))
    assert {shape.a_dtype for shape in ours} == {"float32"}
    head = vllm(config, 1)["lm_head"]
    assert (head.a_dtype, head.out_dtype) == ("bfloat16", "bfloat16")
    assert head.rule.endswith("float32 runs as bfloat16")


def test_each_token_count_has_the_rows_of_one_pass(load: Load) -> None:
    shapes = derive_shapes(load("Qwen3-4B"), tp=1, engine="vllm", tokens=(64, 1))
    assert [shape.m for shape in shapes] == [64] * 5 + [1] * 5

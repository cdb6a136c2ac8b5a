"""Readers of quantised configs: each other format, and what none of them knows."""

from typing import Any

import pytest
from family_variants import named
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantised_configs import (
    BF16,
    INT8,
    LLAMA,
    W8A8,
    compressed,
    family,
    floats,
    group,
    quantised,
    rows,
)

from flytune.shapes.derive import derive_shapes
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import Engine


@pytest.mark.parametrize("lm_head", [False, True])
@pytest.mark.parametrize(
    ("said", "scaling", "dtype"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", "uint4"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "awq", "uint4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq", "int8"),
    ],
)
def test_integers_of_the_weights_alone(
    said: dict[str, Any], scaling: str, dtype: str, lm_head: bool
) -> None:
    *layers, head = rows(quantised(said | {"lm_head": lm_head}))
    assert {(r.scaling, r.a_dtype, r.b_dtype) for r in layers} == {
        (scaling, BF16, dtype)
    }
    assert (head.scaling == scaling) == lm_head


def test_transformers_runs_integers_with_zero_points_of_gptq() -> None:
    said = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}
    made = rows(quantised(said | {"desc_act": True}), "transformers")[0]
    assert (made.scaling, made.b_dtype) == ("gptq", "uint4")
    assert made.rule.endswith(
        "a scale and a zero point for each 32 inputs in order of activations"
    )


def test_awq_ignores_by_a_part_of_the_path() -> None:
    said = {"quant_method": "awq", "bits": 4, "group_size": 128}
    made = rows(quantised(said | {"modules_to_not_convert": ["self_attn"]}))
    assert [r.scaling for r in made] == [None, None, "awq", "awq", None]
    assert made[0].rule.endswith("; in high precision, `self_attn` is ignored")


def test_dynamic_rules_of_gptq_change_modules_or_leave_them_alone() -> None:
    said = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "dynamic": {
            r"-:.*self_attn\.o_proj": {},
            r"+:.*down_proj": {"bits": 8, "group_size": 64},
        },
    }
    made = rows(quantised(said))
    assert [(r.scaling, r.b_dtype) for r in made] == [
        ("gptq", "int4"),
        (None, BF16),
        ("gptq", "int4"),
        ("gptq", "int8"),
        (None, BF16),
    ]
    assert "a scale for each 64 inputs" in made[3].rule


@pytest.mark.parametrize(
    "only",
    [
        ["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"],
        [["self_attn.k_proj", "self_attn.v_proj"], ["self_attn.q_proj"]],
    ],
)
def test_gptq_may_say_what_alone_is_quantised(only: object) -> None:
    said = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    made = rows(quantised(said | {"modules_in_block_to_quantize": only}))
    assert [r.scaling for r in made] == ["gptq", None, None, None, None]


@pytest.mark.parametrize(
    ("algo", "scaling"),
    [
        ("FP8", "tensorwise"),
        ("fp8_pb_wo", "block128"),
        ("FP8_BLOCK_SCALES", "block128"),
        ("FP8_PER_CHANNEL_PER_TOKEN", "rowwise"),
        ("NVFP4", "nvfp4"),
        ("MXFP8", "mxfp8"),
    ],
)
def test_algorithms_of_modelopt(algo: str, scaling: str) -> None:
    said = {"quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head"]}
    *layers, head = rows(quantised(said))
    assert {r.scaling for r in layers} == {scaling}
    assert head.scaling is None
    # A head that is not excluded is one of the modules.
    assert rows(quantised(said | {"ignore": []}))[-1].scaling == scaling


def test_modelopt_pads_outputs_to_whole_blocks() -> None:
    said = {
        "quant_method": "modelopt",
        "quant_algo": "FP8_PB_WO",
        "ignore": ["lm_head"],
    }
    made = rows(quantised(said, LLAMA | {"num_key_value_heads": 1}))
    (qkv,) = named(made, "qkv_proj")
    assert (qkv.n, qkv.k) == (384, 256)
    assert qkv.rule.endswith(", padded from (320, 256) to whole blocks")
    odd = quantised(said, LLAMA | {"intermediate_size": 600})
    with pytest.raises(FlytuneError, match="128 inputs, which do not divide 600 of"):
        rows(odd)


def test_mixed_precision_of_modelopt_names_each_module() -> None:
    layers = {
        f"model.layers.{i}.block_sparse_moe.experts.0.w1": "NVFP4" for i in range(5)
    }
    layers |= {f"model.layers.{i}.self_attn.o_proj": "FP8" for i in (0, 1)}
    said = {
        "quant_method": "modelopt_mixed",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {n: {"quant_algo": a} for n, a in layers.items()},
    }
    made = rows(family("MiniMax M2", said, intermediate_size=640))
    assert [(r.scaling, r.count) for r in named(made, "o_proj")] == [
        ("tensorwise", 2),
        (None, 3),
    ]
    assert [r.scaling for r in named(made, r"experts\.w\d+")] == ["nvfp4", "nvfp4"]
    assert "layers 2-4" in named(made, "o_proj")[1].rule


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_mixtures_experts_are_ignored_by_the_checkpoints_names(
    engine: Engine,
) -> None:
    ignored = [f"model.layers.3.block_sparse_moe.experts.{i}.w1" for i in range(16)]
    said = {"quant_method": "fp8", "weight_block_size": None, "ignored_layers": ignored}
    if engine == "transformers":
        said["ignored_layers"] = ["model.layers.3.mlp.experts"]
    made = [r for r in rows(family("MiniMax M2", said), engine) if r.groups]
    assert [(r.scaling, r.count) for r in made] == [
        *(("tensorwise", 4), (None, 1)),
        *(("tensorwise", 4), (None, 1)),
    ]


@pytest.mark.parametrize(
    "name", ["model.language_model.layers.2.mlp", "language_model.model.layers.2.mlp"]
)
def test_a_text_models_modules_are_known_by_the_whole_models_names(name: str) -> None:
    said = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "ignore": ["lm_head", f"{name}.*"],
    }
    made = rows(family("Gemma 3", said))
    down = named(made, "down_proj")
    assert [(r.scaling, r.count) for r in down] == [("tensorwise", 33), (None, 1)]
    assert "layers 0-1, 3-33" in down[0].rule


def test_a_fused_linear_is_ignored_as_the_checkpoint_calls_it() -> None:
    said = {"quant_method": "fp8", "ignored_layers": ["model.layers.0.mlp.gate_proj"]}
    with pytest.raises(FlytuneError) as caught:
        rows(quantised(said))
    assert str(caught.value) == (
        "vllm runs as one GEMM what has several schemes, gate_proj in high precision, "
        "up_proj in tensorwise: `model.layers.0.mlp.gate_up_proj`"
    )
    assert caught.value.hint == "--quant bf16 lists it dequantised"
    both = [f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up")]
    made = rows(quantised(said | {"ignored_layers": both}))
    assert [(r.scaling, r.count) for r in named(made, "gate_up_proj")] == [
        (None, 1),
        ("tensorwise", 4),
    ]
    plain, scaled = named(made, "gate_up_proj")
    assert plain.rule.endswith("`model.layers.*.mlp.gate_proj` is ignored, layer 0")
    assert scaled.rule.endswith(", layers 1-4")
    apart = rows(quantised(said | {"weight_block_size": None}), "transformers")
    assert [(r.scaling, r.count) for r in named(apart, "gate_proj")] == [
        (None, 1),
        ("tensorwise", 4),
    ]


def test_transformers_scales_by_blocks_where_the_config_does_not_say() -> None:
    said = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    assert rows(quantised(said))[0].scaling == "tensorwise"
    assert rows(quantised(said), "transformers")[0].scaling == "block128"


def test_fbgemm_scales_rows_of_linears_alone() -> None:
    ignored = [f"model.layers.{i}.self_attn.o_proj" for i in (0, 4)]
    said = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ignored}
    made = rows(family("DeepSeek V2", said))
    assert [(r.scaling, r.count) for r in named(made, "o_proj")] == [
        (None, 2),
        ("rowwise", 3),
    ]
    assert named(made, "o_proj")[0].rule.endswith("is ignored, layers 0, 4")
    assert {r.scaling for r in made if r.groups} == {None}


def test_transformers_has_no_experts_in_integers() -> None:
    said = {"quant_method": "awq", "bits": 4, "group_size": 16}
    with pytest.raises(FlytuneError, match="transformers has no experts in awq: `"):
        rows(family("MiniMax M2", said), "transformers")


FP4 = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
OPT = {"quant_method": "modelopt"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "unknown quant_method in `q.json`: `bitsa"),
        ({"quant_method": "quark"}, "unknown quant_method in `q.json`: `quark`"),
        ({"quant_method": 7}, "unknown quant_method in `q.json`: `7`"),
        ({}, "unknown quant_method in `q.json`: `none`"),
        ("fp8", "not a JSON object: `q.json`"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is not e4m3 or float8_e4m3fn in"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "expert_dtype is not fp8"),
        ({"quant_method": "fp8", "activation_scheme": 1}, "activation_scheme is not"),
        (
            {"quant_method": "fp8", "weight_block_size": [64, 128]},
            r"weight_block_size is not \[128, 128\] or \[1, 32\] or null in `q.json`",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": None, "ignored_layers": "x"},
            "ignored_layers is not a list of names",
        ),
        (compressed(), "config_groups is not an object of groups"),
        (
            compressed(group(INT8, INT8 | {"strategy": "token"})),
            r"config_groups has a group that is not known \(group_0: weights int 8 "
            r"channel, activations int 8 token\)",
        ),
        (compressed(group(floats(8, "channel"), None)), "activations none"),
        (compressed(group(FP4, None)), "weights float 4 tensor_group 16, activations"),
        (
            compressed(group(*W8A8), ignore=("re:*",)),
            "ignore has an entry that is no regular expression",
        ),
        (
            compressed(group(*W8A8)) | {"sparsity_config": {"format": "sparse-24"}},
            "sparsity_config is not dense",
        ),
        (AWQ | {"bits": 8}, "bits is not 4 in"),
        (GPTQ | {"sym": False}, "sym is not true, which vllm alone runs"),
        (AWQ | {"zero_point": False}, "zero_point is not true"),
        (AWQ | {"group_size": None}, "config lacks group_size"),
        (GPTQ | {"dynamic": []}, None),
        (GPTQ | {"dynamic": [1]}, "dynamic is not an object"),
        (GPTQ | {"dynamic": {"+:(": {}}}, "dynamic has a rule that is no regular"),
        (GPTQ | {"bits": 2}, "bits is not 4 or 8"),
        (OPT | {"quant_algo": "W4A8_AWQ"}, "quant_algo is not FP8 or FP8_PER_CHANNEL"),
        (OPT | {"quant_algo": "NVFP4", "group_size": 32}, "group_size is not 16"),
        (OPT | {"quant_algo": "MIXED_PRECISION"}, "quantized_layers is not an object"),
        (
            OPT
            | {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"a.b": {"quant_algo": "INT4_AWQ"}},
            },
            "quantized_layers has an algorithm that is not known, INT4_AWQ of a.b",
        ),
    ],
)
def test_what_no_reader_knows_is_one_line(said: object, message: str | None) -> None:
    config = quantised(said)
    if message is None:
        assert rows(config)
        return
    with pytest.raises(FlytuneError, match=message) as caught:
        rows(config)
    assert "\n" not in str(caught.value)
    assert "`q.json`" in str(caught.value)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(
        "--quant bf16 lists it dequantised, or give its GEMMs by hand with --shapes"
    )
    assert derive_shapes(config, tp=1, engine="vllm", tokens=(8,), quant="bf16")


WORDS = st.text("re:.*([-\n\\ab", max_size=6)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = (
    *("weight_block_size", "ignored_layers", "modules_to_not_convert", "config_groups"),
    *("ignore", "bits", "group_size", "dynamic", "quant_algo", "quantization"),
    *("quantized_layers", "exclude_modules", "zero_point"),
    "modules_in_block_to_quantize",
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    method=st.sampled_from(
        ("fp8", "compressed-tensors", "modelopt", "mxfp4", "awq", "gptq")
    ),
    more=st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=5),
)
def test_any_config_is_rows_or_one_error(method: str, more: dict[str, Any]) -> None:
    config = quantised({"quant_method": method, **more})
    for engine in ("vllm", "transformers"):
        fault = ""
        try:
            assert rows(config, engine)
        except FlytuneError as error:
            fault = str(error)
        assert "\n" not in fault


def test_experts_are_one_module_but_to_compressed_tensors() -> None:
    # "gate" is a part of an expert's gate_proj, which no engine asks for.
    gates = AWQ | {"group_size": 16, "modules_to_not_convert": ["gate"]}
    made = rows(family("DeepSeek V2", gates, intermediate_size=512))
    assert {r.scaling for r in made if r.groups} == {"awq"}
    said = compressed(group(*W8A8), ignore=("re:.*experts.*gate_proj",))
    with pytest.raises(FlytuneError, match="gate_proj in high precision, up_proj in"):
        rows(family("Qwen3 MoE, dense layers", said))

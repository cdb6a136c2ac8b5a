"""Public quantised checkpoints: the GEMMs that each runs, worked out by hand."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from family_variants import named

from flytune.shapes.derive import derive_shapes
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import FP4, FP8, Engine, GemmShape, Platform
from flytune.shapes.model_config import ModelConfig
from flytune.shapes.quant_schemes import Quant
from flytune.shapes.registry import find_model

Load = Callable[[str], ModelConfig]

BF16 = "bfloat16"


def run(
    config: ModelConfig,
    tp: int = 1,
    engine: Engine = "vllm",
    platform: Platform = "rocm",
    quant: Quant | None = None,
    ep: int = 1,
) -> tuple[GemmShape, ...]:
    return derive_shapes(
        config,
        tp=tp,
        ep=ep,
        engine=engine,
        tokens=(8,),
        platform=platform,
        quant=quant,
    )


def told(rows: tuple[GemmShape, ...]) -> list[tuple[object, ...]]:
    """Return layer, op, sizes, scheme and types of each row."""
    return [
        (
            row.module.rpartition("*.")[2],
            row.op,
            row.n,
            row.k,
            row.scaling,
            row.a_dtype,
            row.b_dtype,
        )
        for row in rows
    ]


def test_fp8_of_llama_has_a_scale_for_each_row(load: Load) -> None:
    rows = run(load("quantised/Llama-3.1-70B-Instruct-FP8-dynamic"), 8)
    rowwise = ("rowwise", FP8, FP8)
    assert told(rows) == [
        ("self_attn.qkv_proj", "scaled_mm", 1280, 8192, *rowwise),
        ("self_attn.o_proj", "scaled_mm", 8192, 1024, *rowwise),
        ("mlp.gate_up_proj", "scaled_mm", 7168, 8192, *rowwise),
        ("mlp.down_proj", "scaled_mm", 8192, 3584, *rowwise),
        ("lm_head", "mm", 16032, 8192, None, BF16, BF16),
    ]
    assert [row.count for row in rows] == [80, 80, 80, 80, 1]
    assert {row.out_dtype for row in rows} == {BF16}
    assert rows[0].rule.endswith("; fp8, a scale for each token and each output")
    assert rows[4].rule.endswith("; in high precision, `lm_head` is ignored")


def test_transformers_decompresses_compressed_tensors(load: Load) -> None:
    config = load("quantised/Llama-3.1-70B-Instruct-FP8-dynamic")
    rows = run(config, engine="transformers")
    assert {(row.op, row.scaling, row.b_dtype) for row in rows} == {("mm", None, BF16)}
    assert all("transformers decompresses the weights" in row.rule for row in rows)
    with pytest.raises(FlytuneError, match="in fp8_rowwise, but in its own type"):
        run(config, engine="transformers", quant="fp8_rowwise")


@pytest.mark.parametrize(
    "name", ["Llama-3.1-70B-Instruct-FP8-modelopt", "Qwen3-32B-FP8-Static-PerTensor"]
)
def test_modelopt_has_one_scale_for_each_operand(load: Load, name: str) -> None:
    *layers, head = run(load(f"quantised/{name}"), 4)
    assert {(r.op, r.scaling, r.a_dtype, r.b_dtype) for r in layers} == {
        ("scaled_mm", "tensorwise", FP8, FP8)
    }
    assert "one scale for each operand, static activations" in layers[0].rule
    assert (head.op, head.scaling, head.b_dtype) == ("mm", None, BF16)
    assert "`lm_head` is ignored" in head.rule


def test_transformers_has_no_modelopt(load: Load) -> None:
    config = load("quantised/Qwen3-32B-FP8-Static-PerTensor")
    with pytest.raises(FlytuneError, match="not run checkpoints of modelopt") as caught:
        run(config, engine="transformers")
    assert caught.value.hint == (
        "--engine vllm does; --quant bf16 lists it dequantised"
    )


def test_what_a_sidecar_says_is_the_models_own(load: Load, data: Path) -> None:
    name = "Llama-3.1-70B-Instruct-FP8-modelopt"
    config = load(f"quantised/{name}")
    assert config.quantised == "hf_quant_config.json"
    assert config.quantization_source.endswith(f"{name}.hf_quant_config.json")


def test_a_config_has_the_last_word_over_a_sidecar(load: Load) -> None:
    config = load("quantised/Qwen3-32B-FP8-Static-PerTensor")
    assert (config.quantised, config.quantization_source) == ("FP8", "")


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_fp8_of_qwen_is_scaled_by_blocks(load: Load, engine: Engine) -> None:
    *layers, head = run(load("Qwen3-32B-FP8"), 8, engine)
    assert {(r.op, r.scaling, r.a_dtype, r.b_dtype) for r in layers} == {
        ("scaled_mm", "block128", FP8, FP8)
    }
    assert layers[0].rule.endswith("; fp8, a scale for each 128x128 of the weight")
    assert (head.op, head.b_dtype) == ("mm", BF16)
    assert head.rule.endswith("; in high precision")
    if engine == "vllm":
        assert [(r.n, r.k) for r in layers] == [
            (1280, 5120),
            (5120, 1024),
            (6400, 5120),
            (5120, 3200),
        ]


@pytest.mark.parametrize("name", ["DeepSeek-V3", "quantised/DeepSeek-R1"])
def test_fp8_of_deepseek_is_of_all_but_router_absorbed_bmm_and_head(
    load: Load, name: str
) -> None:
    rows = run(load(name), 8)
    block = ("block128", FP8, FP8)
    plain = (None, BF16, BF16)
    assert told(rows) == [
        ("self_attn.fused_qkv_a_proj", "scaled_mm", 2112, 7168, *block),
        ("self_attn.q_b_proj", "scaled_mm", 3072, 1536, *block),
        ("self_attn.kv_b_proj", "scaled_mm", 4096, 512, *block),
        ("self_attn.W_UK_T", "bmm", 512, 128, *plain),
        ("self_attn.W_UV", "bmm", 128, 512, *plain),
        ("self_attn.o_proj", "scaled_mm", 7168, 2048, *block),
        ("mlp.gate_up_proj", "scaled_mm", 4608, 7168, *block),
        ("mlp.down_proj", "scaled_mm", 7168, 2304, *block),
        ("mlp.gate", "mm", 256, 7168, *plain),
        ("mlp.experts.w13", "grouped_mm", 512, 7168, *block),
        ("mlp.experts.w2", "grouped_mm", 7168, 256, *block),
        ("mlp.shared_experts.gate_up_proj", "scaled_mm", 512, 7168, *block),
        ("mlp.shared_experts.down_proj", "scaled_mm", 7168, 256, *block),
        ("lm_head", "mm", 16160, 7168, *plain),
    ]
    (router,) = named(rows, r"\.gate")
    assert router.rule.endswith("; in high precision, a router")
    assert [r.count for r in named(rows, "down_proj")] == [3, 58]


def test_the_indexer_of_sparse_attention_is_upcast_where_it_is_merged(
    load: Load,
) -> None:
    rows = run(load("DeepSeek-V3.2"))
    (queries,) = named(rows, "wq_b")
    (keys,) = named(rows, "wk_weights_proj")
    assert (queries.scaling, keys.scaling) == ("block128", None)
    apart = run(load("DeepSeek-V3.2"), engine="transformers")
    assert [named(apart, n)[0].scaling for n in (r"\.wk", "weights_proj")] == [
        "block128",
        None,
    ]


def test_the_routers_that_a_list_ignores_stay(load: Load) -> None:
    config = load("quantised/Qwen3-235B-A22B-FP8")
    for engine in ("vllm", "transformers"):
        rows = run(config, 4 if engine == "vllm" else 1, engine)
        assert {r.scaling for r in rows if "*" in r.module} == {"block128", None}
        plain = [r.module.rpartition("*.")[2] for r in rows if r.scaling is None]
        assert plain == ["mlp.gate", "lm_head"]
    (w13,) = named(run(config, 4), r"experts\.w13")
    assert (w13.op, w13.n, w13.k, w13.groups) == ("grouped_mm", 768, 4096, 128)


def test_experts_cut_within_a_block_have_smaller_ones(load: Load) -> None:
    rows = run(load("quantised/Qwen3-235B-A22B-FP8"), 8)
    experts = named(rows, r"experts\.w\d+")
    assert [(r.op, r.n, r.k, r.scaling) for r in experts] == [
        ("grouped_mm", 384, 4096, "block64"),
        ("grouped_mm", 4096, 192, "block64"),
    ]
    assert experts[0].rule.endswith(
        "; fp8, a scale for each 64x64 of the weight, which is 128x128 in the "
        "checkpoint"
    )
    assert {r.scaling for r in rows if not r.groups} == {"block128", None}


def test_ranks_that_cut_a_block_are_refused_with_those_that_do_not(load: Load) -> None:
    config = load("quantised/Qwen3-235B-A22B-FP8")
    weights = {"type": "float", "num_bits": 8, "strategy": "block"}
    group = {
        "targets": ["Linear"],
        "weights": {**weights, "block_structure": [128, 128]},
        "input_activations": {**weights, "strategy": "group", "group_size": 128},
    }
    said = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }
    config = replace(config, quantization=json.dumps(said))
    with pytest.raises(FlytuneError) as caught:
        run(config, 8)
    assert str(caught.value) == (
        "block128 has a scale for each 128 features, which do not divide 192 of "
        "(384, 4096): `model.layers.*.mlp.experts.w13`"
    )
    assert caught.value.hint == (
        "--tp 1 or 2 or 4 divides it; so does --tp 8 with --ep 8; "
        "--quant bf16 lists it dequantised"
    )
    (whole,) = named(run(config, 8, ep=8), r"experts\.w13")
    assert (whole.n, whole.k, whole.groups) == (3072, 4096, 16)


def test_gptq_is_of_weights_alone(load: Load) -> None:
    *layers, head = run(load("quantised/Llama-3.1-8B-Instruct-GPTQ"), 2)
    assert {(r.op, r.scaling, r.a_dtype, r.b_dtype, r.out_dtype) for r in layers} == {
        ("scaled_mm", "gptq", "float16", "int4", "float16")
    }
    assert layers[0].rule.endswith(
        "; weights in 4 bits (gptq), a scale for each 128 inputs in order of "
        "activations, which vLLM 0.33 refuses"
    )
    assert (head.op, head.b_dtype) == ("mm", "float16")


@pytest.mark.parametrize(
    ("platform", "tp", "w13", "w2"),
    [
        ("rocm", 1, (6144, 3072), (3072, 3072)),
        ("rocm", 8, (1024, 3072), (3072, 512)),
        ("cuda", 1, (5760, 2880), (2880, 2880)),
        ("cuda", 4, (1536, 2880), (2880, 768)),
        ("cuda", 8, (768, 2880), (2880, 384)),
        ("cpu", 8, (768, 2880), (2880, 384)),
    ],
)
def test_experts_of_gpt_oss_are_padded_as_its_kernels_ask(
    load: Load,
    platform: Platform,
    tp: int,
    w13: tuple[int, int],
    w2: tuple[int, int],
) -> None:
    rows = run(load("gpt-oss-120b"), tp, platform=platform)
    experts = [r for r in rows if r.scaling]
    assert [(r.n, r.k) for r in experts] == [w13, w2]
    assert {(r.op, r.scaling, r.a_dtype, r.b_dtype) for r in experts} == {
        ("grouped_mm", "mxfp4_weight", BF16, FP4)
    }
    # Past one rank the output projection has two rows, one with a bias.
    others = dict.fromkeys(r.module for r in rows if not r.scaling)
    assert [module.rpartition("*.")[2] for module in others] == [
        *("attn.qkv_proj", "attn.o_proj"),
        *("mlp.router", "lm_head"),
    ]
    if platform == "rocm" and tp == 8:
        assert "padded from (720, 2880) for AITER on rocm" in experts[0].rule


def test_transformers_pads_no_experts_of_gpt_oss(load: Load) -> None:
    rows = run(load("gpt-oss-120b"), engine="transformers")
    experts = [r for r in rows if r.scaling == "mxfp4_weight"]
    assert [(r.n, r.k, r.b_dtype) for r in experts] == [
        (5760, 2880, FP4),
        (2880, 2880, FP4),
    ]


def test_nvfp4_of_deepseek_is_said_by_a_sidecar_alone(
    load: Load, data: Path, tmp_path: Path
) -> None:
    file = data / "configs" / "quantised" / "DeepSeek-V3.1-NVFP4.json"
    assert load("quantised/DeepSeek-V3.1-NVFP4").quantised == ""
    shutil.copy(file, tmp_path / "config.json")
    said = {
        "quant_algo": "NVFP4",
        "group_size": 16,
        "exclude_modules": ["lm_head", "*.mlp.gate", "model.layers.*.self_attn*"],
    }
    sidecar = {"producer": {"name": "modelopt"}, "quantization": said}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(sidecar))
    rows = run(find_model(str(tmp_path)), 8)
    quantised = {r.module.rpartition("*.")[2]: r for r in rows if r.scaling}
    assert list(quantised) == [
        *("mlp.gate_up_proj", "mlp.down_proj"),
        *("mlp.experts.w13", "mlp.experts.w2"),
        *("mlp.shared_experts.gate_up_proj", "mlp.shared_experts.down_proj"),
    ]
    w2 = quantised["mlp.experts.w2"]
    assert (w2.op, w2.scaling, w2.a_dtype, w2.b_dtype) == (
        *("grouped_mm", "nvfp4"),
        *(FP4, FP4),
    )
    assert (w2.n, w2.k) == (7168, 256)


@pytest.mark.parametrize("name", ["Qwen3-32B-FP8", "quantised/Qwen3-235B-A22B-FP8"])
def test_dequantised_a_checkpoint_is_the_model_that_it_was(
    load: Load, name: str
) -> None:
    base = load(name.removeprefix("quantised/").removesuffix("-FP8"))
    assert run(load(name), 4, quant="bf16") == run(base, 4)


@pytest.mark.parametrize(
    ("quant", "works"), [("fp8_block", True), ("fp8", False), ("mxfp4", False)]
)
def test_a_checkpoint_has_no_other_scheme_than_its_own(
    load: Load, quant: Quant, works: bool
) -> None:
    config = load("Qwen3-32B-FP8")
    if works:
        assert run(config, quant=quant) == run(config)
        return
    message = f"vllm does not run the checkpoint in {quant}, but in block128"
    with pytest.raises(FlytuneError, match=message) as caught:
        run(config, quant=quant)
    assert caught.value.hint == ("leave --quant out; --quant bf16 lists it dequantised")

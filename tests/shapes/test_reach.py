import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import Engine, GemmShape, Platform
from flytune.shapes.model_config import ModelConfig
from flytune.shapes.plan import plan_shapes
from flytune.shapes.reach import (
    is_reached,
    reach_of,
    reach_words,
    unreached,
    with_reach,
)
from flytune.shapes.reach_ways import EAGER, INDUCTOR, WAYS

Load = Callable[[str], ModelConfig]
LINEAR = GemmShape("mm", 8, 4096, 4096, module="model.layers.*.self_attn.o_proj")
SCHEMES = (
    *(None, "tensorwise", "rowwise", "block128", "mxfp8", "mxfp4", "nvfp4"),
    *("awq", "gptq", "mxfp4_weight"),
)
# What vLLM 0.33.0 has no kernel of: it refuses the model, or runs it in bfloat16.
NOT_RUN = {
    *(("rocm", scheme) for scheme in ("nvfp4", "mxfp4_weight")),
    *(("cpu", scheme) for scheme in ("mxfp8", "mxfp4", "nvfp4", "mxfp4_weight")),
    ("cuda", "mxfp4_weight"),
}


def ways(
    load: Load, name: str, platform: Platform, engine: Engine = "vllm", **more: Any
) -> dict[str, str]:
    """How each module of a model is reached, by its name without the layer's."""
    shapes = plan_shapes(
        load(name),
        **{"tp": 1, "tokens": (8,), "quant": "bf16", "trace": False, **more},
        engine=engine,
        platform=platform,
    )
    return {s.module.removeprefix("model.layers.*."): s.reach for s in shapes}


def test_a_dense_model_of_vllm_by_platform(load: Load) -> None:
    names = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head")
    for platform, linear in (
        ("cuda", INDUCTOR),
        ("rocm", "custom_op:vllm::rocm_unquantized_gemm"),
        ("cpu", "custom_op:_C::onednn_mm"),
    ):
        found = ways(load, "Llama-3.1-8B-Instruct", platform)
        assert [name.rpartition(".")[2] for name in found] == list(names)
        assert list(found.values()) == [linear] * 4 + [EAGER]


@pytest.mark.parametrize("platform", get_args(Platform))
def test_torch_compile_reaches_all_of_a_model_of_transformers(
    load: Load, platform: Platform
) -> None:
    for name, attention in (("Qwen3-4B", "eager"), ("Mixtral-8x7B", "sdpa")):
        found = ways(load, name, platform, "transformers", attention=attention)
        assert set(found.values()) == {INDUCTOR}


def test_what_vllm_s_fused_moe_takes_in(load: Load) -> None:
    found = ways(load, "Qwen3-30B-A3B", "cuda")
    assert found["mlp.gate"] == "custom_op:vllm::moe_forward"
    assert found["mlp.experts.w13"] == "custom_op:vllm::moe_forward"
    # Mixtral's model computes the router's logits itself.
    found = ways(load, "Mixtral-8x7B", "cuda")
    assert found["block_sparse_moe.gate"] == INDUCTOR
    assert found["block_sparse_moe.experts.w2"] == "custom_op:vllm::moe_forward"
    found = ways(load, "GLM-4.5-Air", "cuda")
    shared = "custom_op:vllm::moe_forward_shared"
    assert found["mlp.shared_experts.gate_up_proj"] == shared
    assert found["mlp.gate_up_proj"] == found["mlp.gate"] == INDUCTOR


@pytest.mark.parametrize("name", ["DeepSeek-V3", "Kimi-K2-Instruct", "Kimi-K2.5"])
def test_latent_attention_of_vllm_is_one_operator(load: Load, name: str) -> None:
    found = ways(load, name, "cuda")
    inside = "custom_op:vllm::unified_mla_attention_with_output"
    for part in ("kv_b_proj", "W_UK_T", "W_UV"):
        assert found[f"self_attn.{part}"] == inside
    for part in ("fused_qkv_a_proj", "q_b_proj", "o_proj"):
        assert found[f"self_attn.{part}"] == INDUCTOR
    assert found["mlp.gate"] == "custom_op:vllm::moe_forward"


@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "GLM-5"])
def test_a_model_that_vllm_does_not_compile_is_eager(load: Load, name: str) -> None:
    assert set(ways(load, name, "cuda").values()) == {EAGER}
    assert INDUCTOR in ways(load, name, "cuda", "transformers").values()


def test_lightning_attention_of_vllm_is_one_operator() -> None:
    own = replace(LINEAR, engine="vllm", rule="64 linear heads x 384 (Column...)")
    assert reach_of(own, "cuda") == "custom_op:vllm::linear_attention"
    assert reach_of(replace(own, rule="64 heads x 128"), "cuda") == INDUCTOR


@pytest.mark.parametrize(
    ("scheme", "method", "reach"),
    [
        ("rowwise", "", INDUCTOR),
        ("rowwise", "compressed-tensors", INDUCTOR),
        ("rowwise", "fbgemm_fp8", "custom_op:fbgemm::f8f8bf16_rowwise"),
        ("tensorwise", "", INDUCTOR),
        ("tensorwise", "fp8", "custom_op:finegrained_fp8"),
        ("block128", "", "custom_op:finegrained_fp8"),
        ("mxfp8", "", INDUCTOR),
        ("mxfp8", "mxfp8", "custom_op:finegrained_fp8"),
        ("mxfp4", "", INDUCTOR),
        ("nvfp4", "", "custom_op:nvfp4"),
        ("awq", "awq", "custom_op:gptqmodel"),
        ("mxfp4_weight", "mxfp4", "custom_op:matmul_ogs"),
    ],
)
def test_quantised_linears_of_transformers(
    scheme: str, method: str, reach: str
) -> None:
    shape = replace(LINEAR, op="scaled_mm", scaling=scheme)
    assert reach_of(shape, "cuda", "LlamaForCausalLM", method) == reach


def combinations() -> Iterator[tuple[Engine, Platform, str | None]]:
    yield from itertools.product(get_args(Engine), get_args(Platform), SCHEMES)


def test_every_scheme_has_a_way_or_is_refused() -> None:
    for engine, platform, scheme in combinations():
        op: Any = "mm" if scheme is None else "scaled_mm"
        shape = replace(LINEAR, engine=engine, scaling=scheme, op=op)
        if engine == "vllm" and (platform, scheme) in NOT_RUN:
            words = f"vllm runs no GEMM of {scheme} on {platform}: `{LINEAR.module}`"
            with pytest.raises(FlytuneError) as caught:
                reach_of(shape, platform)
            assert str(caught.value) == words
        else:
            assert reach_of(shape, platform)


def test_of_vllm_only_hip_s_rowwise_reaches_inductor_quantised() -> None:
    reached = {
        (platform, scheme)
        for engine, platform, scheme in combinations()
        if engine == "vllm" and scheme and (platform, scheme) not in NOT_RUN
        if reach_of(replace(LINEAR, engine=engine, scaling=scheme), platform)
        == INDUCTOR
    }
    assert reached == {("rocm", "rowwise")}


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(FlytuneError, match="transformers runs no GEMM of int4 on cpu"):
        reach_of(replace(LINEAR, scaling="int4"), "cpu")


def test_every_row_has_a_source_and_decides_something() -> None:
    assert all(
        way.source.endswith((".py", "tensors")) or "," in way.source for way in WAYS
    )
    assert len({replace(way, source="") for way in WAYS}) == len(WAYS)


def test_what_is_not_reached_is_counted() -> None:
    shapes = with_reach(
        [
            replace(LINEAR, engine="vllm"),
            replace(LINEAR, engine="vllm", module="lm_head"),
            replace(LINEAR, engine="vllm", module="lm_head", m=1),
        ],
        "rocm",
    )
    others = unreached(shapes)
    assert others == {"custom_op:vllm::rocm_unquantized_gemm": 1, "eager": 2}
    assert not any(map(is_reached, shapes))
    assert reach_words(4, others) == (
        "4 of 7 GEMMs are reached by Inductor; the others are "
        "custom_op:vllm::rocm_unquantized_gemm, eager"
    )


MIXTRAL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "num_local_experts": 4,
}


@pytest.mark.parametrize(
    ("experts", "dtype", "op", "experts_in_graph"),
    [
        ("grouped_mm", "bfloat16", "aten._grouped_mm.default", INDUCTOR),
        (
            "grouped_mm",
            "float32",
            "transformers.grouped_mm_fallback.default",
            "custom_op:transformers::grouped_mm_fallback",
        ),
        pytest.param(
            *("eager", "bfloat16", "aten.mm.default", EAGER), marks=pytest.mark.slow
        ),
    ],
)
def test_the_graphs_of_a_mixture_hold_what_the_table_says(
    experts: str, dtype: str, op: str, experts_in_graph: str
) -> None:
    import torch
    import transformers
    from torch._dynamo.backends.common import aot_autograd

    ops: list[str] = []

    def compiled(graph: Any, _: Any) -> Any:
        ops.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.MixtralConfig(**MIXTRAL),
        dtype=getattr(torch, dtype),
        experts_implementation=experts,
    ).eval()
    run = torch.compile(model, backend=aot_autograd(fw_compiler=compiled))
    with torch.no_grad():
        run(input_ids=torch.arange(8)[None], use_cache=False)
    torch._dynamo.reset()
    found = [name for name in ops if "mm" in name.partition(".")[2]]
    # q, k, v, o, the router and the head, and the experts' two where they are there.
    shape = GemmShape(
        "mm" if experts == "eager" else "grouped_mm",
        *(16, 192, 64),
        groups=0 if experts == "eager" else 4,
        a_dtype=dtype,
        module="model.layers.*.mlp.experts",
    )
    assert reach_of(shape, "cpu") == experts_in_graph
    expected = {"aten.mm.default": 6, op: 2}
    if experts_in_graph == EAGER:
        expected = {op: 6}
    assert {name: found.count(name) for name in found} == expected

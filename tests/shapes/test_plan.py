import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from flytune.shapes.derive import Attention, derive_shapes
from flytune.shapes.model_config import ConfigError, ModelConfig, parse_config
from flytune.shapes.plan import ShapeMismatchError, check_against_trace, plan_shapes
from flytune.shapes.trace import TracedGemm, trace_gemms

Load = Callable[[str], ModelConfig]

MODELS = (
    "Llama-3.1-8B-Instruct",
    "Llama-3.3-70B-Instruct",
    "Qwen3-32B",
    "Qwen3-4B",
)
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 600,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1003,
}


def small(**changes: object) -> ModelConfig:
    return parse_config(json.dumps(SMALL | changes), name="small", source="small.json")


@pytest.fixture(scope="module")
def small_trace() -> tuple[TracedGemm, ...]:
    return trace_gemms(small(), 8)


@pytest.mark.parametrize("name", MODELS)
def test_the_trace_agrees_with_the_arithmetic(load: Load, name: str) -> None:
    config = load(name)
    shapes = plan_shapes(config, tp=1, engine="transformers", tokens=(8,))
    traced = sum(gemm.count for gemm in trace_gemms(config, 8))
    assert sum(shape.count for shape in shapes) == traced


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_key_value_heads": 8},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 48, "dtype": "float16"},
        {"tie_word_embeddings": True, "torch_dtype": "float32"},
        {"num_hidden_layers": 1},
        {"attn_implementation": "kernels-community/flash-attn"},
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
        },
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": True,
        },
    ],
)
def test_the_trace_agrees_for_every_family_and_bias(
    change: dict[str, object], attention: Attention
) -> None:
    plan_shapes(
        small(**change),
        tp=1,
        engine="transformers",
        tokens=(1, 7, 64),
        attention=attention,
    )


@pytest.mark.parametrize(
    ("change", "module", "values"),
    [
        (
            {"intermediate_size": 640},
            "model.layers.0.mlp.gate_proj",
            ("mm (8, 640, 256)", "mm (8, 600, 256)"),
        ),
        (
            {"head_dim": 64},
            "model.layers.0.self_attn.q_proj",
            ("mm (8, 512, 256)", "mm (8, 256, 256)"),
        ),
        ({"num_key_value_heads": 4}, "model.layers.0.self_attn.k_proj", ("128", "64")),
        ({"vocab_size": 1004}, "lm_head", ("1004", "1003")),
        ({"attention_bias": True}, "model.layers.0.self_attn.q_proj", ("addmm", "mm")),
        ({"dtype": "float16"}, "model.layers.0.self_attn.q_proj", ("float16",)),
        (
            {"num_hidden_layers": 4},
            "model.layers.*.self_attn.q_proj",
            ("4 calls", "3 calls"),
        ),
    ],
)
def test_a_disagreement_names_the_layer(
    small_trace: tuple[TracedGemm, ...],
    change: dict[str, object],
    module: str,
    values: tuple[str, ...],
) -> None:
    told = replace(small(), **change)  # type: ignore[arg-type]
    derived = derive_shapes(told, tp=1, engine="transformers", tokens=(8,))
    with pytest.raises(ShapeMismatchError) as caught:
        check_against_trace(derived, small_trace)
    assert f"`{module}`" in str(caught.value)
    for value in values:
        assert value in str(caught.value)


def test_the_plan_of_another_engine_is_checked_too(load: Load) -> None:
    lying = replace(load("Qwen3-4B"), intermediate_size=9856)
    with pytest.raises(ShapeMismatchError, match=r"layers\.0\.mlp\.gate_proj"):
        plan_shapes(lying, tp=8, engine="vllm", tokens=(1,))


def test_a_quantised_plan_is_checked_as_the_model_is(load: Load) -> None:
    made = plan_shapes(
        load("Qwen3-4B"), tp=1, engine="vllm", tokens=(8,), quant="mxfp8"
    )
    assert [shape.scaling for shape in made] == ["mxfp8"] * 4 + [None]
    lying = replace(load("Qwen3-4B"), intermediate_size=9856)
    with pytest.raises(ShapeMismatchError, match=r"layers\.0\.mlp\.gate_proj"):
        plan_shapes(lying, tp=1, engine="vllm", tokens=(1,), quant="mxfp8")


def test_a_quantised_checkpoint_is_traced_as_what_it_was_made_of() -> None:
    said = {"quant_method": "fp8", "weight_block_size": None}
    config = small(quantization_config=said)
    made = plan_shapes(config, tp=1, engine="transformers", tokens=(8,))
    assert {(row.traced, row.scaling) for row in made} == {
        (True, "tensorwise"),
        (True, None),
    }


def test_a_gemm_on_one_side_alone_is_named(
    small_trace: tuple[TracedGemm, ...],
) -> None:
    derived = derive_shapes(small(), tp=1, engine="transformers", tokens=(8,))
    with pytest.raises(ShapeMismatchError, match=r"nothing by arithmetic.*`lm_head`"):
        check_against_trace(derived[:-1], small_trace)
    with pytest.raises(ShapeMismatchError, match=r"0 calls in .*: `lm_head`"):
        check_against_trace(derived, small_trace[:-1])
    with pytest.raises(ShapeMismatchError, match="1 calls by arithmetic and 2 calls"):
        check_against_trace(derived, (*small_trace, small_trace[-1]))


@pytest.mark.parametrize(
    "change",
    [
        {"rope_scaling": 7},
        {"rope_scaling": {"rope_type": "no-such"}},
        {"hidden_act": "no-such"},
        {"pad_token_id": 99999},
    ],
)
def test_what_transformers_refuses_is_one_line(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="transformers cannot run") as caught:
        trace_gemms(small(**change), 1)
    assert str(caught.value).endswith("`small.json`")
    assert "\n" not in str(caught.value)


def test_planning_by_arithmetic_imports_no_torch() -> None:
    code = """
import sys
import flytune.tuner.shapes_command
from flytune.shapes.plan import plan_shapes
from flytune.shapes.registry import find_model
plan_shapes(find_model("Qwen3-4B"), tp=8, engine="vllm", tokens=(1,), trace=False)
print(sorted({"torch", "transformers", "huggingface_hub", "ray"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_tracing_touches_no_network(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("network touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    gemms = trace_gemms(load("Qwen3-4B"), 1)
    assert [gemm.count for gemm in gemms] == [36] * 7 + [1]


def test_without_transformers_the_extra_is_named() -> None:
    """A finder that hides one package leaves the install as the base has it."""
    code = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "transformers":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
from flytune.shapes.errors import FlytuneError
from flytune.shapes.plan import plan_shapes
from flytune.shapes.registry import find_model
try:
    plan_shapes(find_model("Qwen3-4B"), tp=1, engine="transformers", tokens=(1,))
except FlytuneError as error:
    print(error, error.hint, sep="|")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    expected = "tracing a model needs the build extra: `transformers`"
    assert done.stdout == f"{expected}|pip install 'flytune[build]'\n"

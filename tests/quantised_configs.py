"""Configs of small models that say how they are quantised, and their rows."""

import json
from typing import Any

from family_variants import SMALL, VARIANTS

from flytune.shapes.derive import derive_shapes
from flytune.shapes.gemm import Engine, GemmShape
from flytune.shapes.model_config import ModelConfig, parse_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **SMALL,
    "intermediate_size": 512,
    "vocab_size": 1024,
}
BF16 = "bfloat16"


def quantised(said: object, base: dict[str, Any] = LLAMA) -> ModelConfig:
    raw = json.dumps(base | {"quantization_config": said})
    return parse_config(raw, name="q", source="q.json")


def family(name: str, said: object, **changes: object) -> ModelConfig:
    architecture, model_type, fields = VARIANTS[name]
    base = {"architectures": [architecture], "model_type": model_type, **fields}
    return quantised(said, base | changes)


def rows(config: ModelConfig, engine: Engine = "vllm") -> tuple[GemmShape, ...]:
    return derive_shapes(config, tp=1, engine=engine, tokens=(8,), platform="rocm")


def floats(bits: int, strategy: str | None, **more: object) -> dict[str, object]:
    return {"type": "float", "num_bits": bits, "strategy": strategy, **more}


def group(
    weights: dict[str, Any], inputs: dict[str, Any] | None, *targets: str
) -> dict[str, Any]:
    return {
        "targets": list(targets or ("Linear",)),
        "weights": weights,
        "input_activations": inputs,
    }


def compressed(*groups: dict[str, Any], ignore: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {f"group_{i}": each for i, each in enumerate(groups)},
        "ignore": list(ignore),
    }


W8A8 = (floats(8, "channel"), floats(8, "token"))
INT8 = {"type": "int", "num_bits": 8, "strategy": "channel"}

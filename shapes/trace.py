"""The truth about a model's GEMMs: transformers' own model, built without memory on
the meta device, and what one forward pass of it calls.

torch and transformers are imported on use: planning by arithmetic needs neither.
"""

import json
from dataclasses import dataclass

from flytune.shapes.derive import Attention
from flytune.shapes.errors import FlytuneError
from flytune.shapes.fields import ConfigError
from flytune.shapes.gemm import Op
from flytune.shapes.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class TracedGemm:
    """A call of aten's mm, addmm, bmm or grouped_mm."""

    module: str
    """The innermost module that ran it, such as "model.layers.3.mlp.up_proj"."""
    op: Op
    m: int
    n: int
    k: int
    batch: int
    groups: int
    a_dtype: str
    b_dtype: str
    out_dtype: str
    layouts: tuple[str, ...]
    """The layouts that the strides allow: several where a size is 1."""
    bias: bool
    count: int = 1
    """The layers that are built as this one's is; it alone was run."""


def trace_gemms(
    config: ModelConfig, tokens: int, attention: Attention = "sdpa"
) -> tuple[TracedGemm, ...]:
    """Run one sequence of `tokens` tokens through one layer of each kind, and the head.

    Layers are of one kind when their modules and parameters are; the others of a kind
    are counted. No weight is allocated and nothing is fetched: the model is made from
    `config.raw` alone, and never from code that comes with it.

    Raises:
        FlytuneError: torch or transformers is not installed.
        ConfigError: transformers cannot build or run the config's model.
    """
    try:
        import torch
        import transformers

        from flytune.shapes.recorder import implementation, record_gemms
    except ImportError as error:
        raise FlytuneError(
            f"tracing a model needs the build extra: `{error.name}`",
            hint="pip install 'flytune[build]'",
        ) from error
    raw = json.loads(config.raw)
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(**raw),
                attn_implementation=implementation(raw["model_type"], attention),
                dtype=getattr(torch, config.dtype),
            )
        return record_gemms(
            model.eval(), tokens, config.num_hidden_layers, plain=attention == "eager"
        )
    except Exception as error:
        # Any type: transformers validates with errors of its own, torch's and Python's.
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(
            f"transformers cannot run this config, {reason}: `{config.source}`"
        ) from error

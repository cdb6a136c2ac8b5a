"""Each engine's rules of how tensor-parallel ranks divide a linear: one table an
engine, a row a style, with where the rule is read.

Read from transformers 5.24 and vLLM 0.32.
"""

from dataclasses import dataclass
from typing import Literal

from flytune.shapes.gemm import Engine

Side = Literal["columns", "rows", "whole"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What the ranks divide of a linear of one style, and where its bias is."""

    divides: Side
    source: str
    """File of the engine that holds the class or style."""
    replicates: bool = False
    """True where fewer kv heads than ranks are held by several ranks each."""
    multiple: int = 1
    """What the output features are padded to a multiple of before they are divided."""
    bias: Literal["every rank", "rank 0", "outside"] = "every rank"
    """Who adds the bias in the GEMM, past one rank: "outside" is after the sum."""


_TP = "distributed/tensor_parallel.py"
_LINEAR = "layers/linear.py"
_MOE = "layers/fused_moe/layer.py"

# By the names of a config's `base_model_tp_plan` and a model's `_tp_plan`; what a plan
# does not name is "replicated".
_TRANSFORMERS = {
    "colwise": Rule("columns", _TP),
    "colwise_gather_output": Rule("columns", _TP),
    "rowwise": Rule("rows", _TP, bias="outside"),
    "rowwise_split_input": Rule("rows", _TP, bias="outside"),
    "packed_colwise": Rule("columns", _TP),
    "packed_rowwise": Rule("columns", _TP),
    "mla_kv_a_proj": Rule("whole", _TP),
    "replicated": Rule("whole", "not in the plan"),
}

# By vLLM's class of the layer.
_VLLM = {
    "QKVParallelLinear": Rule("columns", _LINEAR, replicates=True),
    "MergedColumnParallelLinear": Rule("columns", _LINEAR),
    "ColumnParallelLinear": Rule("columns", _LINEAR),
    "RowParallelLinear": Rule("rows", _LINEAR, bias="rank 0"),
    "ReplicatedLinear": Rule("whole", _LINEAR),
    "DeepSeekV2FusedQkvAProjLinear": Rule("whole", "models/deepseek_v2.py"),
    "MergedColumnParallelLinear, disable_tp": Rule("whole", _LINEAR),
    "FusedMoE w13": Rule("columns", _MOE),
    "FusedMoE w2": Rule("rows", _MOE),
    "MLACommonImpl": Rule("whole", "layers/attention/mla_attention.py"),
    "ParallelLMHead": Rule(
        "columns", "layers/vocab_parallel_embedding.py", multiple=64
    ),
}

RULES: dict[Engine, dict[str, Rule]] = {"transformers": _TRANSFORMERS, "vllm": _VLLM}

"""Nemotron found by architecture search: each block has sizes of its own, or no part.

Source: vLLM's `model_executor/models/nemotron_nas.py`; transformers runs it by the
repository's own code alone, which is never run here.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flytune.shapes import attention, mlp
from flytune.shapes.family import Family, Value
from flytune.shapes.fields import ConfigError, Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear, in_layers

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig

LAYERS = "model.layers.*"


def _blocks(fields: Fields) -> Mapping[str, Value]:
    """Return (kv heads, intermediate size) of each block, 0 for a part it has not.

    Source: vLLM's nemotron_nas.py; the repository's own modeling code agrees.
    """
    blocks = fields.raw.get("block_configs")
    count, heads = fields.size("num_hidden_layers"), fields.size("num_attention_heads")
    if not isinstance(blocks, list) or len(blocks) != count:
        raise fields.error("block_configs", f"is not a list of {count} blocks")
    return {"blocks": tuple(_block(fields, each, heads) for each in blocks)}


def _block(fields: Fields, block: object, heads: int) -> tuple[int, int]:
    try:
        attn, ffn = block["attention"], block["ffn"]  # type: ignore[index]
        kv = inner = 0
        # A linear in attention's place would be another GEMM, which is not known.
        if attn.get("replace_with_linear") or ffn.get("replace_with_linear"):
            raise fields.error("block_configs", "replaces a block with a linear")
        if not attn["no_op"]:
            kv = heads // int(attn["n_heads_in_group"])
        if not ffn["no_op"]:
            if "ffn_mult" in ffn and ffn["ffn_mult"] is not None:
                wide = int(2 * float(ffn["ffn_mult"]) * fields.size("hidden_size") / 3)
                inner = -(-wide // 256) * 256
            else:
                inner = int(ffn["intermediate_size"])
    except (
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        ZeroDivisionError,
    ) as error:
        fault = f"has a block that cannot be read, {type(error).__name__}: {error},"
        raise ConfigError(str(fields.error("block_configs", fault))) from error
    return kv, inner


def _nemotron_nas(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    """List equal blocks together; the blocks' order is not in the rows."""
    blocks = config.rows("blocks")
    found: list[Linear] = []
    for kv in dict.fromkeys(kv for kv, _ in blocks if kv):
        held = [i for i, (other, _) in enumerate(blocks) if other == kv]
        heads = attention.plain(config, engine, LAYERS, kv_heads=kv)
        found += in_layers(held, heads)
    for size in dict.fromkeys(size for _, size in blocks if size):
        held = [i for i, (_, other) in enumerate(blocks) if other == size]
        between, path = mlp.inner(config, size), f"{LAYERS}.mlp"
        gated = mlp.gated(config, engine, path, len(held), between=between)
        found += in_layers(held, gated)
    return (*found, *mlp.head(config, engine))


NEMOTRON_NAS = (
    Family(
        "DeciLMForCausalLM",
        ("nemotron-nas",),
        _nemotron_nas,
        read=_blocks,
        inner=1,
        untraced=("nemotron-nas",),
    ),
)

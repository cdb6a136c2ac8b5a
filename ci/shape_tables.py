"""The page that compares other people's tables of GEMMs with flytune's own.

`python ci/shape_tables.py` writes it between the markers of `shapes/tables.md`; a test
holds that it is as this makes it. A row agrees where the layer that it names has its N
and K among those that `derive_shapes` works out for the model, at the table's ranks.
What the copies in `tests/data/tables` are is said there.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from flytune.shapes.derive import derive_shapes
from flytune.shapes.gemm import Engine, GemmShape, Platform
from flytune.shapes.quant_fit import SchemeError
from flytune.shapes.registry import SHIPPED, find_model
from flytune.shapes.splits import SplitError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "shapes" / "tables.md"
TABLES = ROOT / "tests" / "data" / "tables"
CONFIGS = ROOT / "tests" / "data" / "configs"

ENGINES: Mapping[str, Engine] = {
    "aiter_untuned_gemm": "vllm",
    "aiter_recorded_timings": "vllm",
    "aiter_fmoe": "vllm",
    "vllm_weight_shapes": "vllm",
    "vllm_benchmark_shapes": "vllm",
    "sglang_deepseek": "vllm",
    "deepgemm": "vllm",
    "tritonbench": "vllm",
    "torchao": "transformers",
    "flydsl_repo_bench": "vllm",
}
"""A table, and whose program its rows are of."""
QWEN2_5 = ("7B", "32B", "72B")
MODELS = {
    **dict.fromkeys(("dsv3", "DeepSeek-V3/R1", "DSV3-671B"), "DeepSeek-V3"),
    **dict.fromkeys(("DeepSeek-V3", "DeepSeek-V3-671B"), "DeepSeek-V3"),
    **dict.fromkeys(("llama70B", "Llama-70B"), "Llama-3.3-70B-Instruct"),
    "meta-llama/Llama-3.3-70B-Instruct": "Llama-3.3-70B-Instruct",
    **dict.fromkeys(("llama405B", "Llama-3.1-405B"), "Llama-3.1-405B"),
    "meta-llama/Llama-3.1-405b-hf": "Llama-3.1-405B",
    **dict.fromkeys(("kimik2", "Kimi-K2"), "Kimi-K2-Instruct"),
    "qwen32B": "Qwen3-32B",
    "qwen3_8b": "Qwen3-8B",
    **dict.fromkeys(("qwen3_235b", "Qwen3-235B-A22B-FP8"), "Qwen3-235B-A22B"),
    "Qwen3-235B-A22B": "Qwen3-235B-A22B",
    **dict.fromkeys(("gptoss", "gpt-oss-120b"), "gpt-oss-120b"),
    # Of another vocabulary; no table has its head.
    "mistralai/Mistral-7B-v0.1": "Mistral-7B-Instruct-v0.3",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "Mixtral-8x7B",
    **{f"Qwen/Qwen2.5-{size}-Instruct": f"Qwen2.5-{size}-Instruct" for size in QWEN2_5},
    **dict.fromkeys(
        ("meta-llama/Llama-3-8b", "meta-llama/Llama-3.1-8B-Instruct"),
        "Llama-3.1-8B-Instruct",
    ),
}
"""A table's name of a model, and that of its config."""
LAYERS = {
    **dict.fromkeys(("qkv", "attn.wqkv"), r"\.(qkv_proj|query_key_value)$"),
    **dict.fromkeys(("o", "attn.wo", "attn.w0"), r"\.o_proj$"),
    **dict.fromkeys(("gate_up", "dense_gate_up", "ffn.w13"), r"\.mlp\.gate_up_proj$"),
    **dict.fromkeys(("down", "dense_down", "ffn.w2"), r"\.mlp\.down_proj$"),
    "ffn.w1": r"\.mlp\.gate_proj$",
    "ffn.w3": r"\.mlp\.up_proj$",
    "moe.shared.w1": r"\.shared_experts\.gate_proj$",
    "moe.shared.w3": r"\.shared_experts\.up_proj$",
    **dict.fromkeys(
        ("shared_down", "moe.shared.w2", "shared/expert down"),
        r"\.shared_experts\.down_proj$",
    ),
    **dict.fromkeys(
        ("shared_gate_up", "shared/expert gate_up"),
        r"\.shared_experts\.(gate_up_proj|gate_proj)$",
    ),
    "router": r"\.(gate|router)$",
    "fused_qkv_a": r"\.(fused_qkv_a_proj|q_a_proj|kv_a_proj_with_mqa)$",
    "attn.wq_a": r"\.q_a_proj$",
    **dict.fromkeys(
        ("kv_a", "attn.wkv_a"), r"\.(kv_a_proj_with_mqa|fused_qkv_a_proj)$"
    ),
    **dict.fromkeys(("q_b", "q", "attn.wq_b"), r"\.q_b_proj$"),
    **dict.fromkeys(("kv_b", "attn.wkv_b"), r"\.kv_b_proj$"),
    "listed": r"\.q_b_proj$",
    "lm_head": r"^lm_head$",
    **dict.fromkeys(("moe_stage1", "w1/w3"), r"\.experts(\.w13)?$"),
    **dict.fromkeys(("moe_stage2", "w2"), r"\.experts(\.w2)?$"),
    "moe": r"\.experts(\.w13|\.w2)?$",
}
"""A table's name of a layer, and ours of its module."""
RANKS = (1, 2, 4, 8)
# The blocks that AITER's fused kernels pad experts to.
_BLOCK = 256


class Row(NamedTuple):
    """A size of a table, and what the table says that it is of."""

    model: str
    ranks: str
    layer: str
    n: int
    k: int
    platform: Platform = "cuda"


class Verdict(NamedTuple):
    """How a size compares."""

    kind: str
    """One of `KINDS`."""
    why: str = ""
    ours: str = ""


KINDS = ("agree", "disagree", "set aside", "no config")
Judged = Counter[tuple[Row, Verdict]]
"""Sizes with their verdicts, and how many rows of the table each is of."""


def main() -> None:
    """Write the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def filled(text: str) -> str:
    """Return the page's text with its marked block made anew."""
    pattern = re.compile(r"(<!-- tables -->\n).*?(<!-- end -->)", re.DOTALL)
    body = "\n".join(page({name: judged(name) for name in ENGINES}))
    return pattern.sub(lambda found: f"{found[1]}{body}\n{found[2]}", text)


def page(tables: Mapping[str, Judged]) -> Iterator[str]:
    """Yield the lines of the block: counts, what is not compared, disagreements."""
    yield f"| table | engine | rows | {' | '.join(KINDS)} |"
    yield f"| --- |{' --- |' * (2 + len(KINDS))}"
    for name, found in tables.items():
        kinds: Counter[str] = Counter()
        for (_, verdict), rows in found.items():
            kinds[verdict.kind] += rows
        cells = (name, ENGINES[name], found.total(), *(kinds[kind] for kind in KINDS))
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    yield "Rows that are set aside, or of a model whose config is not at hand:"
    yield ""
    yield "| table | rows | why |"
    yield "| --- | --- | --- |"
    for name, found in tables.items():
        for why, rows in _uncompared(found):
            yield f"| {name} | {rows} | {why} |"
    yield ""
    yield "Every size in which a table and flytune differ, as N x K:"
    yield ""
    yield "| table | model, ranks, layer | rows | theirs | flytune's | why |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, found in tables.items():
        for (row, verdict), rows in found.items():
            if verdict.kind == "disagree":
                where = ", ".join(filter(None, row[:3])).replace("|", " or ")
                theirs = f"{row.n} x {row.k}"
                cells = (name, where, rows, theirs, verdict.ours, verdict.why)
                yield f"| {' | '.join(map(str, cells))} |"


def _uncompared(found: Judged) -> list[tuple[str, int]]:
    whys: Counter[str] = Counter()
    for (_, verdict), rows in found.items():
        if verdict.kind in ("set aside", "no config"):
            whys[verdict.why] += rows
    return whys.most_common()


def judged(name: str) -> Judged:
    """Judge each row of a table."""
    counts: Judged = Counter()
    with (TABLES / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            n, k = (_size(cells[column]) for column in ("N", "K"))
            platform: Platform = "rocm" if name.startswith("aiter") else "cuda"
            row = Row(cells["model"], cells["tp"], cells["layer"], n, k, platform)
            verdict = _set_aside(cells, row) or compared(row, ENGINES[name])
            counts[row, verdict] += int(cells.get("rows") or 1)
    return counts


def _size(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _set_aside(cells: Mapping[str, str], row: Row) -> Verdict | None:
    """Say why a row is not compared, if it is not."""
    if 0 in (row.n, row.k):
        return Verdict("set aside", "a size is no whole number above zero")
    if "us" in cells and not float(cells["us"] or 0) > 0:
        return Verdict("set aside", "us is 0: it holds a place, and was never timed")
    if "grad" in row.layer:
        return Verdict("set aside", "of a backward pass")
    if row.model in ("", "generic"):
        return Verdict("set aside", "no model is named")
    return None


def compared(row: Row, engine: Engine) -> Verdict:
    """Compare a size with those that flytune derives for the layer that it is of.

    A row that names no layer may be any of the model's; one without ranks, of 1 to 8.
    """
    if row.model not in MODELS:
        return Verdict("no config", f"no config at hand: {row.model}")
    own = _sizes(row, engine)
    if (row.n, row.k) in own:
        return Verdict("agree")
    listed = sorted(own) if _patterns(row.layer) else []
    ours = ", ".join(f"{n} x {k}" for n, k in listed)
    return Verdict("disagree", _why(row, engine), ours or "-")


def _why(row: Row, engine: Engine) -> str:
    """Return what would make the table's size, where something that is known would."""
    theirs, own, named = (row.n, row.k), _sizes(row, engine), _patterns(row.layer)
    other: Engine = "transformers" if engine == "vllm" else "vllm"
    apart = {(n // 2, k) for n, k in own} if named else set()
    whys = {
        "N and K are swapped": {(k, n) for n, k in own},
        "heads of hidden / heads, where the config says head_dim": _sizes(
            row, engine, naive_heads=True
        ),
        f"as {other} runs it": _sizes(row, other),
        f"padded to blocks of {_BLOCK}": {
            *((_padded(n), _padded(k)) for n, k in own),
            *((2 * _padded(n // 2), _padded(k)) for n, k in own),
        },
        "gate or up alone, where they are one": apart,
    }
    for tp in RANKS if named else ():
        word = f"of {tp} ranks" if tp > 1 else "not split over the ranks"
        whys[word] = _sizes(row._replace(ranks=str(tp)), engine)
    found = [why for why, sizes in whys.items() if theirs in sizes]
    if found:
        return ", or ".join(found)
    if not named:
        return "no layer has it at 1, 2, 4 or 8 ranks"
    if not own:
        return f"{row.ranks} ranks do not divide the model: the engine refuses them"
    equal = [name for name, at in (("N", 0), ("K", 1)) if theirs[at] in _side(own, at)]
    return f"only {equal[0]} is that of the layer" if equal else "neither N nor K is"


def _side(sizes: set[tuple[int, int]], at: int) -> set[int]:
    return {size[at] for size in sizes}


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _sizes(
    row: Row, engine: Engine, *, naive_heads: bool = False
) -> set[tuple[int, int]]:
    """Return (N, K) of the layers that a row may be of."""
    patterns = _patterns(row.layer) or ("",)
    # Expert parallel ranks have whole experts.
    words = row.ranks.replace("EP", "1").split("|")
    said = [int(word) for word in words if word.isdigit()]
    return {
        (shape.n, shape.k)
        for tp in said or RANKS
        for shape in _derived(MODELS[row.model], engine, tp, naive_heads, row.platform)
        if any(re.search(pattern, shape.module) for pattern in patterns)
    }


def _patterns(layer: str) -> tuple[str, ...]:
    """Return the patterns of the layers of "o|down", "router(120b)" and the like."""
    words = (re.split(r"[(: ]", word)[0] for word in layer.split("|"))
    whole = (layer, *words)
    return tuple(LAYERS[word] for word in whole if word in LAYERS)


@cache
def _derived(
    name: str, engine: Engine, tp: int, naive_heads: bool, platform: Platform
) -> tuple[GemmShape, ...]:
    """Return a model's GEMMs; none where the ranks do not divide it."""
    shipped = {model.name for model in SHIPPED}
    config = find_model(name if name in shipped else str(CONFIGS / f"{name}.json"))
    if naive_heads:
        config = replace(
            config, head_dim=config.hidden_size // config.num_attention_heads
        )
    # What vLLM pads of a quantised checkpoint is in AITER's tables.
    padded = engine == "vllm" and platform == "rocm" and config.quantised
    try:
        return derive_shapes(
            config,
            tp=tp,
            engine=engine,
            tokens=(1,),
            quant=None if padded else "bf16",
            platform=platform,
        )
    except (SplitError, SchemeError):
        return ()


if __name__ == "__main__":
    main()

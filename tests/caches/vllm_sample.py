"""Factors of vLLM's key in few words, as `vllm_key` would have computed them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from flytune.caches.vllm_factors import VllmFactors

KEY = "a" * 64
PARTS = {
    "vllm": {"version": "0.32.0"},
    "environment": {
        "VLLM_USE_MEGA_AOT_ARTIFACT": "true",
        "VLLM_PLUGINS": "null",
        "CUDA_HOME": "null",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "null",
    },
    "model_config": {"model": "/models/llama", "max_model_len": "512"},
    "compilation_config": {"compile_sizes": "[1, 8]", "mode": "3"},
    "inductor": {"max_autotune": "false"},
    "code": {"LlamaModel.forward": "398"},
}
SHAPES = {
    "mode": "VLLM_COMPILE",
    "ahead": True,
    "device": "cpu",
    "compile_sizes": [1, 8],
    "capture_sizes": [],
    "ranges": [[1, 512]],
    "layers": 2,
    "pieces": True,
    "ranks": 1,
    "lora": False,
}


def factors(key: str = KEY, *, exact: bool = True, **changes: Any) -> VllmFactors:
    """Return factors; `part__name=value` changes or, by None, removes one.

    Other words are fields, and `shapes` is laid over the usual ones.
    """
    parts = {part: dict(named) for part, named in PARTS.items()}
    fields: dict[str, Any] = {}
    for word, value in changes.items():
        part, _, name = word.partition("__")
        if not name:
            fields[word] = value
        elif value is None:
            parts[part].pop(name)
        else:
            parts.setdefault(part, {})[name] = value
    return VllmFactors(
        version="0.32.0",
        complete=fields.get("complete", True),
        keys=fields.get("keys", {"LlamaModel.forward": key}),
        parts={
            part: {"hash": _digest(named), "factors": named}
            for part, named in parts.items()
        },
        sources=fields.get("sources", {"vllm.models.llama": "5" * 64}),
        directory=fields.get("directory", ("e" * 64, "c" * 10, "d" * 10)),
        shapes={**SHAPES, **fields.get("shapes", {})},
        exact=exact,
        code=fields.get("code", ""),
    )


def baked_root(root: Path, *keys: str, beside: str = "", code: str = "") -> Path:
    """Make a cache root as an engine leaves it, its files empty."""
    for key in keys:
        rank = root / "torch_compile_cache/torch_aot_compile" / key / "rank_0_0"
        rank.mkdir(parents=True)
        (rank / "model").touch()
    if code:
        folder = root / "torch_compile_cache" / (beside or "f" * 10)
        inner = folder / "rank_0_0" / "backbone"
        inner.mkdir(parents=True)
        text = json.dumps({"code_hash": code})
        (inner / "cache_key_factors.json").write_text(text)
        if beside:
            (inner / "vllm_compile_cache.py").touch()
    return root


def _digest(named: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()

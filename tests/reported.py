"""Bundles of made-up records, as a build of a whole model on a GPU leaves them."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flytune.caches.manifest import Manifest
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, Status, TuningRecord, write_records
from flytune.caches.ties import spread
from flytune.shapes.gemm import GemmShape

LAYERS = (
    (("self_attn.q_proj", "self_attn.o_proj"), 4096, 4096),
    (("self_attn.k_proj", "self_attn.v_proj"), 1024, 4096),
    (("mlp.gate_proj", "mlp.up_proj"), 14336, 4096),
    (("mlp.down_proj",), 4096, 14336),
)
"""Modules, N and K of Llama-3.1-8B's decoder layers."""
TFLOPS, TB_S = 760.0, 4.2
"""What the made-up device reaches at most."""
_ROUNDS = 15
_FAILED = (
    (Status.OVER_RESOURCES, "OutOfResources: shared memory: {0} of 232448 bytes"),
    (Status.COMPILE_ERROR, "CompilationError: at {0}:12: unsupported layout"),
    (Status.WRONG_RESULT, "differs from the reference by {0} of its largest value"),
)


def shapes(
    tokens: Sequence[int], prefix: str
) -> Iterator[tuple[GemmShape, tuple[str, ...]]]:
    """Each GEMM of the model, and the modules that call it."""
    for m in tokens:
        for names, n, k in LAYERS:
            modules = tuple(f"{prefix}.{name}" for name in names)
            yield GemmShape("mm", m, n, k, module=modules[0], count=32), modules
        yield GemmShape("mm", m, 128256, 4096, module="lm_head"), ("lm_head",)


def bundle(
    folder: Path,
    name: str = "llama-3.1-8b.tar.zst",
    *,
    tokens: Sequence[int] = (1, 16, 64, 256),
    seed: int = 1,
    triton: float = 1.0,
    unsteady: float = 0.003,
    backends: Sequence[str] = ("aten", *["triton"] * 9),
    module: str = "model.layers.*",
    words: str = "",
    **changes: Any,
) -> Path:
    """Pack a bundle.

    Args:
        triton: what every time of Triton's is multiplied by.
        unsteady: the deviation of the canary, over its time.
        backends: whose each candidate of a list is.
        module: what the names of the layers' modules begin with.
        words: what the texts of each candidate end with.
        changes: of the manifest.
    """
    some = random.Random(seed)
    records: list[TuningRecord] = []
    winners = []
    for number, (shape, modules) in enumerate(shapes(tokens, module)):
        canary_us = 182.0 * abs(some.gauss(1, unsteady))
        rows = _rows(shape, number, backends, triton, canary_us, some)
        records += [_with_words(row, words) for row in rows]
        won = next(row for row in rows if row.winner)
        winners.append(
            {
                "shape": str(shape),
                "modules": list(modules),
                "op": "mm",
                "inputs_key": won.inputs_key,
                "backend": won.backend,
            }
        )
    whole: dict[str, Any] = {
        "created": "2026-01-02T03:04:05Z",
        "flytune": "0.1.0",
        "software": "serving",
        "program": {"kind": "model"},
        "inductor_config": {},
        "bake": {"passes": [{}, {}], "settled": True, "remaining": {}},
        "model": {"name": "Llama-3.1-8B", "tp": 1, "engine": "transformers"},
        "policy": {"name": "max-autotune-no-cudagraphs", "tokens": list(tokens)},
        "timed_on": "NVIDIA H200",
        "target": {
            "hardware": {"kind": "cuda", "product": "NVIDIA H200", "arch": "sm_90"},
            "software": {"torch": "2.15.0", "triton": "3.9.0"},
        },
        "coverage": {
            "enumerated": "program",
            "missing": {"a reduction": ["mm (1, 4096, 4096) at model.x"]},
        },
        "winners": tuple(winners),
        "verify": {
            "ok": True,
            "failures": [],
            "work": {},
            "lookups": {},
            "first_call_s": 1.31,
            "worst_error": 0.0096,
        },
        "provenance": {
            "command": ["flytune", "build", "--model", "Llama-3.1-8B"],
            "stages": [["plan", 2.4], ["enumerate", 38.0], ["tune", 66.0]],
            "ceilings": {"copy_gb_s": 1e3 * TB_S, "gemm_tflops": {"bfloat16": TFLOPS}},
        },
    }
    staged = folder / f"staged-{name}"
    staged.mkdir(parents=True)
    write_records(records, staged / RECORDS_NAME)
    return pack(staged, Manifest(**(whole | changes)), folder / name)


def _with_words(record: TuningRecord, words: str) -> TuningRecord:
    texts = ("template", "config", "reason", "method", "backend")
    said = {name: getattr(record, name) for name in texts}
    return replace(record, **{name: f"{s}{words}" for name, s in said.items() if s})


def _rows(
    shape: GemmShape,
    number: int,
    backends: Sequence[str],
    triton: float,
    canary_us: float,
    some: random.Random,
) -> list[TuningRecord]:
    moved = 2 * (shape.m * shape.k + shape.n * shape.k + shape.m * shape.n)
    least_us = max(2 * shape.m * shape.n * shape.k / TFLOPS / 1e6, moved / TB_S / 1e6)
    batch = {"canary_us": canary_us, "batch_s": 0.4 + some.random()}
    rows = []
    for place, backend in enumerate(backends):
        factor = 1.12 if backend == "aten" else 1.04 + some.expovariate(2.5)
        us = least_us * factor * (triton if backend == "triton" else 1.0)
        failed = place and some.random() < 0.06
        rows.append(_record(shape, number, place, backend, us, failed, batch, some))
    fastest = min((r for r in rows if r.median_us), key=lambda r: r.median_us or 0.0)
    return [replace(row, winner=row is fastest, baked=row is fastest) for row in rows]


def _record(
    shape: GemmShape,
    number: int,
    place: int,
    backend: str,
    us: float,
    failed: bool | int,
    batch: Mapping[str, float],
    some: random.Random,
) -> TuningRecord:
    samples = tuple(us * some.gauss(1, 0.004) for _ in range(_ROUNDS))
    summary = spread(samples)
    timed: dict[str, Any] = {
        "status": Status.OK,
        "median_us": summary.median_us,
        "mad_us": summary.mad_us,
        "rounds": _ROUNDS,
        "samples_us": samples,
        "method": "graphs of launches, weights rotated",
    }
    if failed:
        status, reason = some.choice(_FAILED)
        timed = {"status": status, "reason": reason.format(some.randrange(10**5))}
    config = {"BLOCK_M": 16 << place % 4, "BLOCK_N": 64, "num_warps": 4 << place % 2}
    return TuningRecord.of_shape(
        shape,
        backend=backend,
        template="mm" if backend == "aten" else f"{backend}_mm",
        config="{}" if backend == "aten" else json.dumps(config),
        choice_hash=f"{backend}-{number}-{place}",
        compile_s=None if backend == "aten" else 0.5 + some.random(),
        inductor_op="mm",
        inputs_key=f"key {number}",
        precision="highest",
        at_s=44.0 + 1.4 * number,
        **batch,
        **timed,
    )

"""The whole way of three models in three types on recorded times, to a bundle.

Where nobody has published a time for a model's GEMMs, the table is made up and says so.
"""

from pathlib import Path

import pytest
from builds import DATA, Build, run_build, unpacked

from flytune.caches.bundle import Bundle
from flytune.caches.records import read_records
from flytune.shapes.plan import plan_shapes
from flytune.shapes.registry import find_model
from flytune.tuner.candidate import ATEN, FLYDSL, TRITON
from flytune.tuner.publish import RECORDS_NAME

AITER = DATA / "recorded" / "aiter_gfx950.csv"
TOKENS = 32
MADE_UP = "made up"


def built(table: Path, model: str, quant: str, folder: Path, tp: int = 1) -> Build:
    arguments = (
        *("build", "--model", model, "--tokens", str(TOKENS), "--target", "mi355x"),
        *("--engine", "vllm", "--tp", str(tp), "--quant", quant),
        "--allow-unreached",
        *("--runner", f"recorded:{table}", "--work", str(folder / "work")),
    )
    return run_build(arguments, folder / "bundle.tar.zst", folder / "home")


def made_up(model: str, quant: str, folder: Path) -> tuple[Path, int]:
    """Write a table in which FlyDSL wins every GEMM but the last, which has no row."""
    shapes = plan_shapes(
        find_model(model),
        **{"tp": 1, "engine": "vllm", "tokens": (TOKENS,), "attention": "sdpa"},
        quant=quant,
    )
    sizes = list(
        dict.fromkeys((s.op, s.n, s.k, s.scaling or s.a_dtype) for s in shapes)
    )[:-1]
    lines = ["source,op,M,N,K,dtype,aten_tflops,flydsl_tflops"]
    for op, n, k, dtype in sizes:
        lines.append(f"{MADE_UP},{op},{TOKENS},{n},{k},{dtype},100,125")
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path, len(sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "quant"),
    [
        ("Llama-3.1-8B", "mxfp4"),
        *(("Qwen3-32B", quant) for quant in ("mxfp8", "mxfp4")),
        *(("Llama-3.3-70B", quant) for quant in ("mxfp8", "mxfp4")),
    ],
)
def test_a_model_of_which_nobody_has_published_times(
    model: str, quant: str, tmp_path: Path
) -> None:
    table, rows = made_up(model, quant, tmp_path)
    build = built(table, model, quant, tmp_path)
    manifest = Bundle.open(build.bundle).manifest
    assert (manifest.timed_on, manifest.software) == (None, "stand-in")
    assert manifest.coverage["tuned"] == rows
    assert manifest.coverage["sources"] == {f"table.csv: {MADE_UP}": 2 * rows}
    won = [winner["backend"] for winner in manifest.winners]
    assert sorted(won) == [ATEN, *[FLYDSL] * rows]


@pytest.mark.parametrize(
    ("model", "tp", "times"),
    [
        # One of its two was won by a kernel of AITER's own, which is no candidate.
        pytest.param(
            *("Qwen3-32B", 8, {(6400, 5120): (ATEN, 18.3958)}), marks=pytest.mark.slow
        ),
        (
            "Llama-3.3-70B",
            1,
            {
                (8192, 8192): (ATEN, 31.31),
                (8192, 28672): (ATEN, 79.2098),
                (10240, 8192): (TRITON, 39.5825),
                (57344, 8192): (TRITON, 165.8506),
            },
        ),
    ],
)
def test_a_model_that_others_have_tuned(
    model: str,
    tp: int,
    times: dict[tuple[int, int], tuple[str, float]],
    tmp_path: Path,
) -> None:
    build = built(AITER, model, "bf16", tmp_path, tp)
    manifest = Bundle.open(build.bundle).manifest
    assert manifest.timed_on is None
    assert manifest.coverage["tuned"] == len(times)
    assert all("ROCm/aiter@" in source for source in manifest.coverage["sources"])
    rows = read_records(unpacked(build.bundle, tmp_path / "b") / RECORDS_NAME)
    timed = [row for row in rows if row.median_us is not None]
    assert {(r.n, r.k): (r.backend, r.median_us) for r in timed} == times
    # Winners alone are published: each is the only one of its list with a time.
    assert all(row.winner for row in timed)

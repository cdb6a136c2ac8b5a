"""What processes counted, joined: files as the hook writes them."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from flytune.caches.capture import read_counts
from flytune.shapes.gemm import FP4

F8 = "torch.float8_e4m3fn"


def row(op: str = "mm", m: int = 64, n: int = 256, k: int = 512, **more: Any) -> Any:
    """A GEMM of a linear, as the hook writes it."""
    return {
        **{"op": op, "a": [[m, k], [k, 1], "torch.bfloat16"]},
        **{"b": [[k, n], [1, k], "torch.bfloat16"], "out": "torch.bfloat16"},
        **{"device": "cuda", "scales": [], "bias": False, "engine": ""},
        **more,
    }


def write(folder: Path, name: str, *counted: tuple[Any, int], more: str = "") -> None:
    lines = "".join(json.dumps(each) + "\n" for each, _ in counted)
    (folder / f"{name}.jsonl").write_text(lines + more)
    counts = [count for _, count in counted] + [0] * 8
    (folder / f"{name}.counts").write_bytes(struct.pack(f"={len(counts)}Q", *counts))


def test_processes_are_joined_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "1", (row(), 3), (row(m=1), 1))
    write(tmp_path, "2", (row(), 4), (row(m=8), 0), more='{"op": "m')
    captured = read_counts(tmp_path)
    assert [(s.m, s.count) for s in captured.shapes] == [(64, 7), (1, 1)]
    assert (captured.processes, captured.set_aside) == (2, {})
    assert {(s.layout, s.engine) for s in captured.shapes} == {("TN", "transformers")}


def test_an_engine_is_named_where_it_is_known(tmp_path: Path) -> None:
    write(tmp_path, "1", (row(engine="vllm"), 1), (row(engine="other"), 1))
    engines = {shape.engine for shape in read_counts(tmp_path).shapes}
    assert engines == {"vllm", "transformers"}


ONE = [[], "torch.float32"]


@pytest.mark.parametrize(
    ("dtype", "scales", "scaling"),
    [
        (F8, [ONE, ONE], "tensorwise"),
        (F8, [[[64, 1], "torch.float32"], [[1, 256], "torch.float32"]], "rowwise"),
        (F8, [[[64, 4], "torch.float32"], [[4, 2], "torch.float32"]], "block128"),
        (F8, [[[1024], "torch.float8_e8m0fnu"]] * 2, "mxfp8"),
        (f"torch.{FP4}", [[[1024], "torch.float8_e8m0fnu"]] * 2, "mxfp4"),
        (f"torch.{FP4}", [[[2048], F8]] * 2, "nvfp4"),
        (F8, [[[64, 8], "torch.float32"], [[8, 4], "torch.float32"]], None),
    ],
)
def test_scales_name_their_scheme(
    tmp_path: Path, dtype: str, scales: Any, scaling: str | None
) -> None:
    # Two values of four bits lie in a byte.
    held = 256 if dtype.endswith(FP4) else 512
    one = row(
        "_scaled_mm",
        a=[[64, held], [held, 1], dtype],
        b=[[held, 256], [1, held], dtype],
        scales=scales,
    )
    write(tmp_path, "1", (one, 2))
    captured = read_counts(tmp_path)
    if scaling is None:
        assert captured.shapes == ()
        assert captured.set_aside == {"scaled by blocks of another size": 2}
        return
    (shape,) = captured.shapes
    assert (shape.op, shape.scaling, shape.k) == ("scaled_mm", scaling, 512)


def test_experts(tmp_path: Path) -> None:
    weights = [[8, 512, 256], [131072, 1, 512], "torch.bfloat16"]
    write(tmp_path, "1", (row("_grouped_mm", b=weights), 1))
    (shape,) = read_counts(tmp_path).shapes
    assert shape.problem == ("grouped_mm", 64, 256, 512, 1, 8)
    assert shape.layout == "TN"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"m": 0}, "a size is zero"),
        ({"out": "torch.complex64"}, "of complex64"),
        ({"op": "_grouped_mm"}, "groups of K, as in training"),
    ],
)
def test_what_no_plan_has_is_set_aside(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    write(tmp_path, "1", (row(**changes), 5))
    captured = read_counts(tmp_path)
    assert (captured.shapes, captured.set_aside) == ((), {why: 5})

"""GEMMs by themselves, as the programs that the probe lowers."""

from dataclasses import replace

import pytest
import torch

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import FP4, GemmShape, Op
from flytune.shapes.quant_schemes import SCALINGS
from flytune.tuner.isolated import (
    LISTED,
    isolated_pieces,
    piece_name,
    why_unlisted,
)

MM = GemmShape("mm", 16, 96, 64)
FP8 = replace(MM, op="scaled_mm", a_dtype="float8_e4m3fn", b_dtype="float8_e4m3fn")


def inputs_of(shape: GemmShape) -> list[torch.Tensor]:
    ((_, piece),) = isolated_pieces([shape], "cpu")
    args, kwargs = piece.inputs(999, 0)
    assert kwargs == {}
    return list(args)


def result_of(shape: GemmShape) -> torch.Tensor:
    ((_, piece),) = isolated_pieces([shape], "cpu")
    args, _ = piece.inputs(999, 0)
    for tensor in args:
        tensor.zero_()
    result: torch.Tensor = piece.module(*args)
    return result


@pytest.mark.parametrize(
    ("op", "more", "sizes"),
    [
        ("mm", {}, (16, 96)),
        ("mm", {"layout": "NN"}, (16, 96)),
        ("mm", {"layout": "NT"}, (16, 96)),
        ("addmm", {"bias": True}, (16, 96)),
        ("bmm", {"batch": 3, "layout": "NN"}, (3, 16, 96)),
        ("grouped_mm", {"groups": 4}, (16, 96)),
        ("grouped_mm", {"groups": 4, "layout": "NN"}, (16, 96)),
    ],
)
def test_each_op_runs(op: Op, more: dict[str, object], sizes: tuple[int, ...]) -> None:
    result = result_of(replace(MM, op=op, **more))  # type: ignore[arg-type]
    assert (tuple(result.shape), result.dtype) == (sizes, torch.bfloat16)


def test_the_letters_are_those_of_the_layout() -> None:
    a, b = inputs_of(MM)
    assert (a.stride(), b.stride()) == ((64, 1), (1, 64))
    a, b = inputs_of(replace(MM, layout="NT"))
    assert (a.stride(), b.stride()) == ((1, 16), (96, 1))
    _, b, offsets = inputs_of(replace(MM, op="grouped_mm", groups=4))
    assert (tuple(b.shape), b.stride()) == ((4, 64, 96), (96 * 64, 1, 64))
    assert (tuple(offsets.shape), offsets.dtype) == ((4,), torch.int32)


@pytest.mark.parametrize(
    ("shape", "depth", "scales"),
    [
        (replace(FP8, scaling="tensorwise"), 64, ((), ())),
        (replace(FP8, scaling="rowwise"), 64, ((16, 1), (1, 96))),
        (replace(FP8, scaling="mxfp8"), 64, ((16, 2), (96, 2))),
        # Two values are one element.
        (
            replace(FP8, a_dtype=FP4, b_dtype=FP4, scaling="mxfp4"),
            32,
            ((16, 2), (96, 2)),
        ),
    ],
)
def test_scales_are_those_of_the_scheme(
    shape: GemmShape, depth: int, scales: tuple[tuple[int, ...], ...]
) -> None:
    a, b, scale_a, scale_b, bias = inputs_of(replace(shape, bias=True))
    assert (tuple(a.shape), tuple(b.shape)) == ((16, depth), (depth, 96))
    assert str(a.dtype) == str(b.dtype) == f"torch.{shape.a_dtype}"
    assert (tuple(scale_a.shape), tuple(scale_b.shape)) == scales
    mx = str(shape.scaling).startswith("mx")
    assert scale_a.dtype == (torch.float8_e8m0fnu if mx else torch.float32)
    assert (tuple(bias.shape), bias.dtype) == ((96,), torch.bfloat16)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(FlytuneError, match="unknown scaling of scaled_mm: `int8`"):
        inputs_of(replace(FP8, scaling="int8"))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_what_no_program_calls_says_so(scaling: str) -> None:
    words = f"no program here calls a scaled_mm in {scaling}"
    said = why_unlisted(replace(FP8, scaling=scaling))
    assert said == ("" if scaling in LISTED else words)
    experts = replace(FP8, op="grouped_mm", groups=4, scaling=scaling)
    assert why_unlisted(experts) == f"no program here calls a grouped_mm in {scaling}"
    assert why_unlisted(MM) == ""


def test_one_problem_is_one_piece() -> None:
    other = replace(MM, module="lm_head", count=7, tp=8, rule="another", engine="vllm")
    apart = [
        replace(MM, m=17),
        replace(MM, layout="NN"),
        replace(MM, op="addmm", bias=True),
        replace(MM, out_dtype="float32"),
        replace(FP8, scaling="rowwise"),
        replace(FP8, scaling="tensorwise"),
        replace(FP8, scaling="tensorwise", bias=True),
    ]
    made = list(isolated_pieces([MM, other, *apart, MM], "cpu"))
    assert [shape for shape, _ in made] == [MM, *apart]
    assert [piece.name for _, piece in made] == [piece_name(s) for s in (MM, *apart)]
    assert len({piece.name for _, piece in made}) == len(made)
    assert made[0][1].name == "mm (16, 96, 64) bfloat16 TN"

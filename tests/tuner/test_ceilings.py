"""What a device reaches at most, measured on this one in small."""

import pytest
import torch

from flytune.caches.report.work import type_of
from flytune.shapes.gemm import FP8, GemmShape
from flytune.tuner import ceilings
from flytune.tuner.ceilings import SCALED, measure_ceilings
from flytune.tuner.operands import FP8_STD


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings.GEMM_SIZES, "cpu", 256)
    monkeypatch.setattr(ceilings, "_COPIED_BYTES", 2**20)


def test_each_type_and_scheme_has_a_roof_under_the_name_that_lists_have() -> None:
    shapes = [
        GemmShape("mm", 8, 64, 64),
        *(
            GemmShape("scaled_mm", 8, 64, 64, a_dtype=FP8, b_dtype=FP8, scaling=scaling)
            for scaling in (*SCALED, "mxfp8")
        ),
    ]
    measured = measure_ceilings("cpu", {type_of(s): s.a_dtype for s in shapes})
    assert measured["copy_gb_s"] > 0
    # Of MX formats nothing is measured, and what a device lacks is left out.
    assert measured["gemm_tflops"].keys() == {"bfloat16", *SCALED}
    assert min(measured["gemm_tflops"].values()) > 0


def test_what_a_device_does_not_multiply_is_left_out() -> None:
    types = {"float8_e8m0fnu": "float8_e8m0fnu", "tensorwise": "float32"}
    assert measure_ceilings("cpu", types)["gemm_tflops"] == {}


@pytest.mark.parametrize("scaling", SCALED)
def test_a_scaled_product_is_the_product_of_what_was_scaled(scaling: str) -> None:
    call = ceilings._gemm("cpu", scaling, FP8, 64)
    a, b, scale_a, scale_b = call.args  # type: ignore[attr-defined]
    assert scale_a.numel() == scale_b.numel() == (64 if scaling == "rowwise" else 1)
    wide = (a.float() / FP8_STD) @ (b.float() / FP8_STD)
    assert torch.allclose(call().float(), wide, rtol=0.02, atol=0.05)

"""Whether a GEMM that a log tells of may be one that is known whole."""

import pytest

from flytune.shapes.gemm import GemmShape
from flytune.shapes.logs.observed import ObservedGemm

SHAPE = GemmShape("mm", 16, 10240, 5120)


@pytest.mark.parametrize(
    ("facts", "may_be"),
    [
        ({}, True),
        ({"m": 17}, False),
        ({"n": None, "k": None}, True),
        ({"a_dtypes": ("float16", "bfloat16")}, True),
        ({"a_dtypes": ("float16",)}, False),
        ({"layouts": ("NN", "TN")}, True),
        ({"layouts": ("NN",)}, False),
        ({"bias": True}, False),
        ({"ops": ("addmm",)}, False),
        ({"batch": 2}, False),
        ({"scalings": ("rowwise",)}, False),
    ],
)
def test_what_a_log_leaves_out_speaks_against_nothing(
    facts: dict[str, object], may_be: bool
) -> None:
    whole = {"ops": ("mm", "addmm"), "m": 16, "n": 10240, "k": 5120} | facts
    assert ObservedGemm(**whole).may_be(SHAPE) is may_be


def test_a_side_of_one_has_no_layout() -> None:
    one = GemmShape("mm", 1, 10240, 5120, layout="TN")
    said = ObservedGemm(ops=("mm",), m=1, n=10240, k=5120, layouts=("TT",))
    assert said.may_be(one)

import pytest
import torch

from flytune.tuner.accuracy import FP8, TOLERANCES, NoToleranceError, judge, tolerance

# Of real projections: Qwen3-4B's, Llama-3.1-8B's and Llama-3.3-70B's down.
DEPTHS = (32, 2560, 14336, 28672)


def product(k: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return (A, B, result, reference) of a GEMM with weights as models have them."""
    generator = torch.Generator().manual_seed(k)
    a = torch.randn(17, k, generator=generator).to(dtype)
    b = (torch.randn(k, 96, generator=generator) * 0.02).to(dtype)
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    return a, b, a @ b, a.to(wide) @ b.to(wide)


@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.parametrize("k", DEPTHS)
def test_a_right_kernel_passes_at_every_depth(name: str, k: int) -> None:
    _, _, result, reference = product(k, getattr(torch, name))
    error, fault = judge(result, result, reference)
    assert fault == ""
    assert 0 <= error <= TOLERANCES[name]


@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.parametrize("k", DEPTHS[1:])
def test_a_missing_last_tile_of_k_is_wrong(name: str, k: int) -> None:
    a, b, _, reference = product(k, getattr(torch, name))
    short = a[:, :-32] @ b[:-32]
    error, fault = judge(short, short, reference)
    assert fault.startswith("relative error ")
    assert error > TOLERANCES[name]


@pytest.mark.parametrize("where", [(0, 0), (16, 95), (8, 40)])
def test_one_value_that_was_not_written_is_wrong(where: tuple[int, int]) -> None:
    _, _, result, reference = product(64, torch.bfloat16)
    result[where] = torch.nan
    error, fault = judge(result, result, reference)
    assert error != error
    assert fault == "relative error nan exceeds 0.01"


def test_an_infinite_value_is_wrong() -> None:
    _, _, result, reference = product(64, torch.bfloat16)
    result[3, 4] = torch.inf
    assert judge(result, result, reference)[1] == "relative error inf exceeds 0.01"


def test_a_second_launch_must_give_the_same() -> None:
    _, _, result, reference = product(64, torch.bfloat16)
    other = result.clone()
    other[0, 0] += reference.abs().max()
    _, fault = judge(result, other, reference)
    assert fault == "a second launch differs by 1"


def test_a_second_launch_that_wrote_nothing_is_wrong() -> None:
    _, _, result, reference = product(64, torch.bfloat16)
    nothing = torch.full_like(result, torch.nan)
    assert judge(result, nothing, reference)[1] == "a second launch differs by nan"


def test_a_zero_product_is_judged_by_its_absolute_error() -> None:
    zero = torch.zeros(4, 4, dtype=torch.bfloat16)
    assert judge(zero, zero, zero.float()) == (0.0, "")
    assert judge(zero + 1, zero + 1, zero.float())[1]


def fp8_product(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return raw fp8 operands, as float32."""
    generator = torch.Generator().manual_seed(k)
    shapes = ((33, k), (k, 96))
    a, b = (torch.randn(shape, generator=generator) * 48 for shape in shapes)
    return a.to(torch.float8_e4m3fn).float(), b.to(torch.float8_e4m3fn).float()


def cut_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply as Hopper's tensor cores do: 32 products a step, 13 bits of fraction."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], 32):
        step = slice(start, start + 32)
        fraction, exponent = torch.frexp(total + a[:, step] @ b[step])
        total = torch.ldexp((fraction * 2**14).trunc() / 2**14, exponent)
    return total


@pytest.mark.parametrize("k", DEPTHS)
def test_a_short_accumulator_of_fp8_passes_at_every_depth(k: int) -> None:
    a, b = fp8_product(k)
    result = cut_sum(a, b).bfloat16()
    limit = tolerance("float8_e4m3fn", "bfloat16", k)
    error, fault = judge(result, result, a @ b, limit)
    assert (fault, error < limit) == ("", True)


def test_a_short_accumulator_would_fail_without_its_own_tolerance() -> None:
    a, b = fp8_product(DEPTHS[-1])
    result = cut_sum(a, b).bfloat16()
    assert judge(result, result, a @ b)[1].endswith("exceeds 0.01")


@pytest.mark.parametrize("k", DEPTHS[1:])
def test_a_missing_last_tile_of_fp8_is_wrong(k: int) -> None:
    a, b = fp8_product(k)
    short = (a[:, :-128] @ b[:-128]).bfloat16()
    limit = tolerance("float8_e4m3fn", "bfloat16", k)
    assert judge(short, short, a @ b, limit)[1].startswith("relative error ")


@pytest.mark.parametrize("name", FP8)
def test_a_result_rounded_to_fp8_passes(name: str) -> None:
    _, _, _, reference = product(2560, torch.bfloat16)
    result = reference.to(getattr(torch, name))
    assert judge(result, result, reference)[1] == ""
    wrong = reference.clone()
    wrong[3, 4] = -reference.abs().max()
    cast = wrong.to(getattr(torch, name))
    assert judge(cast, cast, reference)[1].startswith("relative error ")


@pytest.mark.parametrize("names", [("int8", "bfloat16"), ("bfloat16", "int32")])
def test_an_unknown_type_has_no_tolerance(names: tuple[str, str]) -> None:
    with pytest.raises(NoToleranceError, match="no tolerance for type: int"):
        tolerance(*names, 64)

import pytest
import torch

from flytune.tuner.accuracy import TOLERANCES, judge

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

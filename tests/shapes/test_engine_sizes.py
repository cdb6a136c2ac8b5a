"""The sizes as vLLM 0.33.0 and SGLang 0.5.23 worked them out from these settings."""

import pytest

from flytune.shapes.engine_sizes import sglang_sizes, vllm_sizes

BY_8 = tuple(range(8, 257, 8))


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ((1,), (1, 2)),
        ((5,), (1, 2, 4, 5, 8)),
        ((16,), (1, 2, 4, 8, 16, 24, 32)),
        ((100,), (1, 2, 4, *sorted({*range(8, 201, 8), 100}))),
        ((256,), (1, 2, 4, *BY_8, *range(272, 513, 16))),
        ((300,), (1, 2, 4, *sorted({*BY_8, *range(272, 513, 16), 300}))),
    ],
)
def test_vllm_pads_to_steps_of_8_and_16(
    settings: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    assert vllm_sizes(*settings) == sizes


def test_vllm_s_defaults_are_the_same_sizes_for_all_memory() -> None:
    for spec in range(9):
        assert vllm_sizes(None, spec) == vllm_sizes(256, spec) == vllm_sizes(1024, spec)
    assert (len(vllm_sizes()), vllm_sizes()[-1]) == (51, 512)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ((1, 2), (1, 2, 3, 4)),
        ((4, 2), (1, 2, 3, 4, 6, 8, 9, 12, 16, 24)),
        ((8, 3), (1, 2, 4, *range(8, 65, 8))),
        ((3, 5, 8192), (1, 2, 4, 6, 8, 12, 16, 18, 24, 32)),
    ],
)
def test_vllm_adds_multiples_of_a_sequence_s_tokens(
    settings: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    assert vllm_sizes(*settings) == sizes


def test_vllm_pads_decoding_to_whole_sequences() -> None:
    for spec in range(1, 8):
        sizes = vllm_sizes(64, spec)
        assert {1 + spec, 8 * (1 + spec), 64 * (1 + spec)} <= set(sizes)


@pytest.mark.parametrize(
    ("batched", "sizes"),
    [
        (8192, (1, 2, 4, 8, 16, 24, 32)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
        (20, (1, 2, 4, 8, 16, 20)),
    ],
)
def test_vllm_captures_no_more_than_a_step_holds(
    batched: int, sizes: tuple[int, ...]
) -> None:
    assert vllm_sizes(16, 0, batched) == sizes


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ((1,), (1,)),
        ((16,), (1, 2, 4, 8, 12, 16)),
        ((50,), (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 50)),
        ((None,), (1, 2, 4, 8, 12, *range(16, 257, 8))),
        ((512,), (1, 2, 4, 8, 12, *range(16, 257, 8))),
        ((None, 0, 4), (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16))),
        ((12, 1), (2, 4, 6, 8, 10, 12, 14, 16, 20, 24)),
        ((6, 3), (4, 8, 12, 16, 20, 24)),
    ],
)
def test_sglang_pads_batches(
    settings: tuple[int | None, int, int], sizes: tuple[int, ...]
) -> None:
    assert sglang_sizes(*settings) == sizes

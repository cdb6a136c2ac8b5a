from typing import Any

import pytest
from vllm_sample import factors

from flytune.caches.vllm_estimate import estimate, estimate_lines, timing_policy

GPU = {"device": "cuda", "capture_sizes": [1, 2, 4, 8], "layers": 32, "ranks": 2}


@pytest.mark.parametrize(
    ("shapes", "graphs"),
    [
        # What an engine of two layers was seen to compile: three kinds of piece.
        ({}, 9),
        ({"layers": 1}, 6),
        ({"layers": 32}, 9),
        ({"compile_sizes": []}, 3),
        ({"compile_sizes": [], "ranges": [[1, 8], [9, 512]]}, 6),
        ({"pieces": False}, 3),
        # One graph for all sizes, whatever compile_sizes says.
        ({"mode": "DYNAMO_TRACE_ONCE"}, 1),
        ({"mode": "NONE"}, 0),
    ],
)
def test_the_graphs_of_an_engine(shapes: dict[str, Any], graphs: int) -> None:
    assert estimate(factors(shapes=shapes)).graphs == graphs


def test_time_and_size_grow_with_the_graphs() -> None:
    few, many = (
        estimate(factors(shapes={**GPU, "compile_sizes": sizes}))
        for sizes in ([1], [1, 2, 4, 8])
    )
    assert few.tuned
    assert few.seconds < many.seconds
    assert few.size_bytes < many.size_bytes
    off = factors(
        shapes={**GPU, "compile_sizes": [1]},
        environment__VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE="false",
    )
    assert estimate(off).seconds < few.seconds


def test_in_words() -> None:
    (first, policy) = estimate_lines(factors())
    assert first == (
        "9 graphs: 3 kinds of piece, 2 static sizes and 1 general range (1 to 512); "
        "about 0.8 min in one thread and 6 MB"
    )
    assert policy == "policy in the keys of timings: none before torch 2.15"


def test_the_captured_sizes_as_static_ones() -> None:
    lines = estimate_lines(factors(shapes={**GPU, "compile_sizes": []}))
    assert lines[0].startswith(
        "3 graphs: 3 kinds of piece, 0 static sizes and 1 general"
    )
    assert "of the 4 that are captured it would be 15 graphs" in lines[1]


def test_lora_and_nothing_compiled() -> None:
    lora = estimate_lines(factors(shapes={"lora": True}))
    assert any(line.startswith("with LoRA every linear has its") for line in lora)
    (none,) = estimate_lines(factors(shapes={"mode": "NONE"}))
    assert none == "vLLM compiles nothing with these arguments: mode NONE"


@pytest.mark.parametrize(
    ("device", "automatic", "policy"),
    [
        ("cpu", "true", "eager"),
        ("cuda", "false", "eager"),
        ("cuda", "true", "cudagraph_auto:cudagraph_unroll=10"),
    ],
)
def test_the_policy_in_the_keys_of_timings(
    device: str, automatic: str, policy: str
) -> None:
    made = factors(
        shapes={"device": device},
        inductor__autotune_cudagraph_benchmarking=automatic,
        inductor__autotune_cudagraph_benchmarking_iters="10",
    )
    assert timing_policy(made) == policy

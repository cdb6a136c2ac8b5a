"""The token counts of which serving engines capture graphs with their default
settings: every decode step is padded to one of them.

The table in README.md names the files that the rules were read in: vLLM 0.33.0 and
SGLang 0.5.23.
"""

VLLM_MAX_NUM_SEQS = 256
"""vLLM's own default below 70 GiB; above it has 1024, and the same sizes."""
_VLLM_LARGEST = 512


def vllm_sizes(
    max_num_seqs: int | None = None,
    spec: int = 0,
    max_num_batched_tokens: int | None = None,
) -> tuple[int, ...]:
    """Return the sizes of vLLM, in tokens, ascending.

    Args:
        max_num_seqs: Most sequences of a step; None for vLLM's default.
        spec: Tokens drafted for a sequence: in a decode step each has `1 + spec`, and
            only multiples of that are padded to. Steps that also prefill are padded
            to the others.
        max_num_batched_tokens: Most tokens of a step; None for more than any size.
    """
    sequences = max_num_seqs or VLLM_MAX_NUM_SEQS
    each = 1 + spec
    ceiling = min(2 * sequences * each, _VLLM_LARGEST)
    most = ceiling if max_num_batched_tokens is None else max_num_batched_tokens
    sizes = set(_vllm_steps(min(most, ceiling)))
    if max_num_batched_tokens is not None and most <= ceiling:
        sizes.add(most)
    widest = min(sequences, _VLLM_LARGEST)
    decode = {each * count for count in (*_vllm_steps(widest), widest)}
    sizes |= {size for size in decode if size <= min(most, ceiling)}
    limit = min(max(sizes), each * sequences)
    rounded = {-(-size // each) * each for size in sizes}
    return tuple(sorted(sizes | {size for size in rounded if size <= limit}))


def _vllm_steps(last: int) -> list[int]:
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, last + 1, 16))
    return [step for step in steps if step <= last]


def sglang_sizes(
    max_num_seqs: int | None = None, spec: int = 0, tp: int = 1
) -> tuple[int, ...]:
    """Return the sizes of SGLang on a GPU of 60 to 160 GiB, in tokens, ascending.

    Args:
        max_num_seqs: SGLang's `max_running_requests`; None for no limit.
        spec: Tokens drafted for a sequence; each then has `1 + spec` in a step.
        tp: Tensor-parallel ranks: more than three take larger batches.
    """
    largest = 256 if tp < 4 else 512
    most = largest if max_num_seqs is None else min(largest, max_num_seqs)
    if spec:
        batches = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4))
        batches += (*range(72, 257, 8), *range(272, most + 1, 16))
    else:
        batches = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16))
        batches += (*range(512, most + 1, 32),)
    taken = {batch for batch in batches if batch <= most} | {most}
    return tuple((1 + spec) * batch for batch in sorted(taken))

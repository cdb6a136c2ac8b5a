"""The token counts that a user asks for: the `m` of every planned GEMM."""

from collections.abc import Sequence
from dataclasses import dataclass

from flytune.shapes.engine_sizes import sglang_sizes, vllm_sizes

DEFAULT_TOKENS = "powers"
"""What is planned where nothing is asked for: decode batches up to `LAST_POWER`."""
LAST_POWER = 256
"""Where `powers` ends unless it says so itself."""

MAX_TOKENS = 2**24
"""Largest count taken; past it, products of sizes no longer fit 64 bits."""
MAX_COUNTS = 1024
"""Most counts taken: each of them is one more GEMM for every linear."""


@dataclass(frozen=True, slots=True)
class Batches:
    """How an engine is started, as far as it decides its token counts."""

    max_num_seqs: int | None = None
    """Most sequences of one decode step; None for the engine's own default."""
    spec: int = 0
    """Tokens that speculation drafts for a sequence in one step."""
    prefill_chunk: int | None = None
    """Most tokens of one step: vLLM's `max_num_batched_tokens`, SGLang's
    `chunked_prefill_size`. None adds no count."""
    tp: int = 1
    """Tensor-parallel ranks."""


PLAIN = Batches()
"""The engines' defaults, and nothing drafted."""


def parse_tokens(text: str, batches: Batches = PLAIN) -> tuple[int, ...]:
    """Read counts such as `1,8,64`: each once, in the order first given.

    A word is a number, `1..256` with both ends, `8..256/8` for every eighth, `powers`
    for 1, 2, 4 up to 256, `powers..64`, or `vllm` and `sglang` for the sizes that the
    engine captures. Numbers, ranges and powers count the sequences of a decode step,
    each of which has `1 + batches.spec` tokens; an engine's sizes count tokens. The
    prefill chunk comes last.

    Raises:
        ValueError: a word is none of these, a count is not from 1 to `MAX_TOKENS`, a
            range is empty, there are more than `MAX_COUNTS`, or `max_num_seqs` is
            there for no engine; the message is one line for the user.
    """
    words = [word.strip() for word in text.split(",")]
    if batches.max_num_seqs is not None and not {"vllm", "sglang"} & set(words):
        raise ValueError(
            f"--max-num-seqs is of vllm and sglang alone, which are not in: `{text}`"
        )
    counts: dict[int, None] = {}
    for word in words:
        for count in _counts(word, text, batches):
            _add(count, counts, text)
    if batches.prefill_chunk is not None:
        _add(batches.prefill_chunk, counts, text)
    return tuple(counts)


def _add(count: int, counts: dict[int, None], text: str) -> None:
    if count > MAX_TOKENS:
        raise ValueError(f"more than {MAX_TOKENS} tokens: `{count}`")
    counts[count] = None
    if len(counts) > MAX_COUNTS:
        raise ValueError(f"more than {MAX_COUNTS} token counts: `{text}`")


def _counts(word: str, text: str, batches: Batches) -> Sequence[int]:
    each = 1 + batches.spec
    if word == "vllm":
        return vllm_sizes(batches.max_num_seqs, batches.spec, batches.prefill_chunk)
    if word == "sglang":
        return sglang_sizes(batches.max_num_seqs, batches.spec, batches.tp)
    first, dots, rest = word.partition("..")
    if first == "powers":
        last = _number(rest, text) if dots else LAST_POWER
        return [each * 2**power for power in range(last.bit_length())]
    if not dots:
        if word[:1].isalpha():
            known = "powers, powers..N, vllm and sglang"
            raise ValueError(f"no such word for tokens: `{word}`; known are {known}")
        return [each * _number(word, text)]
    end, slash, by = rest.partition("/")
    low, high = _number(first, text), _number(end, text)
    step = _number(by, text) if slash else 1
    if high < low:
        raise ValueError(f"a range of tokens that is empty: `{word}`")
    return range(each * low, each * high + 1, each * step)


def _number(word: str, text: str) -> int:
    if not word:
        raise ValueError(f"empty token count in: `{text}`")
    digits = word.removeprefix("-")
    # int() alone would take `1_0`, `+8` and the digits of other scripts.
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"not a number of tokens: `{word}`")
    if digits != word or not digits.strip("0"):
        raise ValueError(f"token counts start at 1: `{word}`")
    # The length first: int() refuses thousands of digits with its own words.
    if len(digits.lstrip("0")) > len(str(MAX_TOKENS)) or int(word) > MAX_TOKENS:
        raise ValueError(f"more than {MAX_TOKENS} tokens: `{word}`")
    return int(word)

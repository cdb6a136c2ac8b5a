"""The token counts that a user asks for: the `m` of every planned GEMM."""

DEFAULT_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Decode batch sizes that serving engines capture."""

MAX_TOKENS = 2**24
"""Largest count taken; past it, products of sizes no longer fit 64 bits."""


def parse_tokens(text: str) -> tuple[int, ...]:
    """Read counts such as `1,8,64`, in the order given.

    Raises:
        ValueError: a count is empty, not a decimal number, zero, negative, above
            `MAX_TOKENS` or given twice; the message is one line for the user.
    """
    counts: list[int] = []
    for word in text.split(","):
        count = _parse_count(word.strip(), text)
        if count in counts:
            raise ValueError(f"token count given twice: `{count}`")
        counts.append(count)
    return tuple(counts)


def _parse_count(word: str, text: str) -> int:
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

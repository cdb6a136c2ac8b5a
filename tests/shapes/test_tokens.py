import pytest
from hypothesis import given
from hypothesis import strategies as st

from flytune.shapes.engine_sizes import sglang_sizes, vllm_sizes
from flytune.shapes.tokens import (
    DEFAULT_TOKENS,
    MAX_COUNTS,
    MAX_TOKENS,
    Batches,
    parse_tokens,
)

KNOWN = "known are powers, powers..N, vllm and sglang"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1", (1,)),
        ("1,8,64", (1, 8, 64)),
        ("64, 8 ,1", (64, 8, 1)),
        ("008", (8,)),
        ("1..4", (1, 2, 3, 4)),
        ("7..7", (7,)),
        ("8..40/8", (8, 16, 24, 32, 40)),
        ("1..10/4", (1, 5, 9)),
        ("powers..1", (1,)),
        ("powers..48", (1, 2, 4, 8, 16, 32)),
        ("powers..64,48", (1, 2, 4, 8, 16, 32, 64, 48)),
    ],
)
def test_counts_keep_their_order(text: str, counts: tuple[int, ...]) -> None:
    assert parse_tokens(text) == counts


def test_what_is_said_twice_counts_once() -> None:
    assert parse_tokens("8,1,8") == (8, 1)
    assert parse_tokens("4..6,powers..8,5..7") == (4, 5, 6, 1, 2, 8, 7)


def test_the_default_is_the_powers_of_two_to_256() -> None:
    assert parse_tokens(DEFAULT_TOKENS) == (1, 2, 4, 8, 16, 32, 64, 128, 256)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty token count in: ``"),
        ("1,,8", "empty token count in: `1,,8`"),
        ("0", "token counts start at 1: `0`"),
        ("8,-1", "token counts start at 1: `-1`"),
        ("eight", f"no such word for tokens: `eight`; {KNOWN}"),
        ("1.5", "not a number of tokens: `1.5`"),
        ("1_0", "not a number of tokens: `1_0`"),
        ("+8", "not a number of tokens: `+8`"),
        ("٣", "not a number of tokens: `٣`"),
        ("16777217", "more than 16777216 tokens: `16777217`"),
        ("9" * 5000, f"more than 16777216 tokens: `{'9' * 5000}`"),
        ("1..", "empty token count in: `1..`"),
        ("..8", "empty token count in: `..8`"),
        ("1..8/", "empty token count in: `1..8/`"),
        ("1..8/0", "token counts start at 1: `0`"),
        ("1...8", "not a number of tokens: `.8`"),
        ("1..8..9", "not a number of tokens: `8..9`"),
        ("8/2", "not a number of tokens: `8/2`"),
        ("9..8", "a range of tokens that is empty: `9..8`"),
        ("powers..", "empty token count in: `powers..`"),
        ("powers..x", "not a number of tokens: `x`"),
        ("vLLM", f"no such word for tokens: `vLLM`; {KNOWN}"),
        ("vllm..8", "not a number of tokens: `vllm`"),
        ("1..1025", "more than 1024 token counts: `1..1025`"),
        ("1..16777216", "more than 1024 token counts: `1..16777216`"),
    ],
)
def test_a_bad_count_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="token") as caught:
        parse_tokens(text)
    assert str(caught.value) == message


def test_as_many_counts_as_are_allowed() -> None:
    assert len(parse_tokens(f"1..{MAX_COUNTS}")) == MAX_COUNTS
    with pytest.raises(ValueError, match="more than 1024 token counts"):
        parse_tokens(f"1..{MAX_COUNTS}", Batches(prefill_chunk=8192))


def test_each_sequence_has_the_drafted_tokens_too() -> None:
    assert parse_tokens("1,8,64", Batches(spec=3)) == (4, 32, 256)
    assert parse_tokens("2..4", Batches(spec=1)) == (4, 6, 8)
    assert parse_tokens("1..9/4", Batches(spec=1)) == (2, 10, 18)
    assert parse_tokens("powers..4", Batches(spec=2)) == (3, 6, 12)
    with pytest.raises(ValueError, match="more than 16777216 tokens: `16777218`"):
        parse_tokens("8388609", Batches(spec=1))


def test_a_prefill_chunk_is_one_count_more() -> None:
    assert parse_tokens("1,8", Batches(prefill_chunk=8192)) == (1, 8, 8192)
    assert parse_tokens("1,8", Batches(spec=1, prefill_chunk=16)) == (2, 16)


def test_an_engine_s_sizes_stand_among_others() -> None:
    sizes = vllm_sizes(16)
    assert parse_tokens("vllm", Batches(16)) == sizes
    assert parse_tokens("3,vllm", Batches(16)) == (3, *sizes)
    assert parse_tokens("vllm", Batches(16, 2)) == vllm_sizes(16, 2)
    assert parse_tokens("sglang", Batches(16, tp=8)) == sglang_sizes(16, tp=8)


def test_a_number_of_sequences_without_an_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="max-num-seqs is of vllm and sglang alone"):
        parse_tokens("1,8", Batches(16))


@given(st.lists(st.integers(1, MAX_TOKENS), min_size=1, unique=True))
def test_what_is_joined_is_parsed(counts: list[int]) -> None:
    assert parse_tokens(",".join(map(str, counts))) == tuple(counts)


@given(st.text(), st.integers(0, 8))
def test_any_text_is_counts_or_a_value_error(text: str, spec: int) -> None:
    try:
        counts = parse_tokens(text, Batches(spec=spec))
    except ValueError:
        return
    assert all(1 <= count <= MAX_TOKENS for count in counts)
    assert len(set(counts)) == len(counts) <= MAX_COUNTS


@given(st.text("0123456789./,powersvlmg ", max_size=24))
def test_any_words_are_counts_or_one_line(text: str) -> None:
    said = ""
    try:
        parse_tokens(text)
    except ValueError as error:
        said = str(error)
    assert "\n" not in said

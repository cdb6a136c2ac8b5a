import pytest
from hypothesis import given
from hypothesis import strategies as st

from flytune.shapes.tokens import MAX_TOKENS, parse_tokens


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1", (1,)), ("1,8,64", (1, 8, 64)), ("64, 8 ,1", (64, 8, 1)), ("008", (8,))],
)
def test_counts_keep_their_order(text: str, counts: tuple[int, ...]) -> None:
    assert parse_tokens(text) == counts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty token count in: ``"),
        ("1,,8", "empty token count in: `1,,8`"),
        ("0", "token counts start at 1: `0`"),
        ("8,-1", "token counts start at 1: `-1`"),
        ("eight", "not a number of tokens: `eight`"),
        ("1.5", "not a number of tokens: `1.5`"),
        ("1_0", "not a number of tokens: `1_0`"),
        ("+8", "not a number of tokens: `+8`"),
        ("٣", "not a number of tokens: `٣`"),
        ("8,1,8", "token count given twice: `8`"),
        ("16777217", "more than 16777216 tokens: `16777217`"),
        ("9" * 5000, f"more than 16777216 tokens: `{'9' * 5000}`"),
    ],
)
def test_a_bad_count_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="token") as caught:
        parse_tokens(text)
    assert str(caught.value) == message


@given(st.lists(st.integers(1, MAX_TOKENS), min_size=1, unique=True))
def test_what_is_joined_is_parsed(counts: list[int]) -> None:
    assert parse_tokens(",".join(map(str, counts))) == tuple(counts)


@given(st.text())
def test_any_text_is_counts_or_a_value_error(text: str) -> None:
    try:
        counts = parse_tokens(text)
    except ValueError:
        return
    assert all(1 <= count <= MAX_TOKENS for count in counts)

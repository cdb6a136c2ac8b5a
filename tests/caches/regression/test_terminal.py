"""The table of times on terminals, however narrow."""

import io

import pytest
from rich.console import Console

from flytune.caches.regression.terminal import table

NAMES = (
    "forward pass at 16 tokens",
    "mm (16, 4096, 14336) at model.layers.*.mlp.down_proj",
)
NUMBERS = (
    ("2,230.5", "2,277.6", "+2.1%", "", "0.012"),
    ("17.4", "18.8", "+7.9%", "32", "<0.0001"),
)
WINNERS = ("5 lists", "triton triton_mm -> aten mm")
ROWS = [
    ("", "old us", "new us", "change", "calls", "p", "winner"),
    *((n, *some, w) for n, some, w in zip(NAMES, NUMBERS, WINNERS, strict=True)),
]


def printed(width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(table(ROWS, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_row_is_one_line_where_it_fits() -> None:
    head, first, second = printed(140)
    assert head.split() == ["old", "us", "new", "us", *ROWS[0][3:]]
    for line, name, winner in zip((first, second), NAMES, WINNERS, strict=True):
        assert line.startswith(name)
        assert line.endswith(winner)
    # Numbers stand below one another.
    assert first.index("2,230.5") + 7 == second.index("17.4") + 4


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_on_a_narrow_terminal_nothing_is_cut_and_numbers_are_aligned(
    width: int,
) -> None:
    lines = printed(width)
    assert all(len(line) <= width for line in lines)
    whole = " ".join(" ".join(lines).split())
    for name, numbers, winner in zip(NAMES, NUMBERS, WINNERS, strict=True):
        assert name in whole
        assert " ".join(filter(None, numbers)) in whole
        assert winner in whole
    (first,) = (line for line in lines if "2,230.5" in line)
    (second,) = (line for line in lines if "17.4" in line)
    assert first.index("2,277.6") + 7 == second.index("18.8") + 4


def test_names_are_text_and_no_markup() -> None:
    out = io.StringIO()
    rows = [ROWS[0], ("[red]a[/red]", *NUMBERS[0], "[b]w")]
    for width in (20, 200):
        Console(file=out, width=width).print(table(rows, width))
    assert out.getvalue().count("[red]a[/red]") == 2

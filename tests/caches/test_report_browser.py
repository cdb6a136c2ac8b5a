"""A report in a real, headless Chromium: drawn, quiet, and answering clicks."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reported

from flytune.caches.bundle import Bundle
from flytune.caches.report.page import page_of

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))

from browser import Page, browser, program

HOSTILE = '</script><script>window.bad = 1</script><img src=x onerror="window.bad = 2">'
# Of every chart: its marks, and whether one lies outside of the chart or has no size.
MARKS = """
[...document.querySelectorAll('svg.chart')].map(chart => {
  const frame = chart.getBoundingClientRect();
  const marks = [...chart.querySelectorAll('rect, circle:not(.cursor), path, text')];
  const boxes = marks.map(mark => mark.getBoundingClientRect());
  return {
    name: chart.getAttribute('aria-label'), size: [frame.width, frame.height],
    marks: marks.length,
    outside: boxes.filter(box => box.left < frame.left - 8
      || box.right > frame.right + 8 || box.top < frame.top - 8
      || box.bottom > frame.bottom + 8).length,
  };
})
"""
# Texts of each chart that lie upon one another.
OVERLAPS = """
[...document.querySelectorAll('svg.chart')].flatMap(chart => {
  const texts = [...chart.querySelectorAll('text')].filter(text => text.textContent
    && !text.hasAttribute('transform'));
  const boxes = texts.map(text => text.getBoundingClientRect());
  return texts.flatMap((text, i) => texts.slice(i + 1).filter((_, k) => {
    const [a, b] = [boxes[i], boxes[i + 1 + k]];
    return a.left < b.right - 1 && b.left < a.right - 1
      && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  }).map(other => `${text.textContent} / ${other.textContent}`));
})
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser(program()) as opened:
        yield opened


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    old = reported.bundle(folder, "old.tar.zst", tokens=[2**n for n in range(9)])
    new = reported.bundle(folder, "new.tar.zst", tokens=(16, 64), triton=1.1)
    bad = reported.bundle(
        folder, "bad.tar.zst", tokens=(16,), module=HOSTILE, words=HOSTILE
    )
    slow = reported.bundle(
        folder, "slow.tar.zst", tokens=(16,), triton=2000.0, unsteady=0.3
    )
    pages = {"one": [old], "two": [old, new], "bad": [bad, bad], "slow": [slow]}
    for name, paths in pages.items():
        text = page_of([Bundle.open(path) for path in paths])
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.fixture
def opened(page: Page, files: dict[str, Path]) -> Iterator[Page]:
    page.media(prefers_color_scheme="light")
    page.open(files["one"])
    page.complaints.clear()
    yield page
    assert page.complaints == []


def texts(page: Page, selector: str) -> list[str]:
    code = f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)"
    found: list[str] = page.run(code)
    return found


@pytest.mark.parametrize("name", ["one", "two", "bad", "slow"])
@pytest.mark.parametrize("width", [390, 1200])
def test_every_chart_is_drawn_and_nothing_complains(
    page: Page, files: dict[str, Path], name: str, width: int
) -> None:
    page.complaints.clear()
    page.open(files[name], width=width)
    charts: list[dict[str, Any]] = page.run(MARKS)
    assert len(charts) == 6 * (2 if name in ("two", "bad") else 1)
    for chart in charts:
        assert chart["marks"] > 3, chart
        assert min(chart["size"]) > 40, chart
        assert chart["outside"] == 0, chart
    assert page.complaints == []
    # Tables scroll within the page, never the page itself.
    assert page.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["one", "two", "slow"])
def test_no_label_lies_upon_another(
    page: Page, files: dict[str, Path], name: str
) -> None:
    page.open(files[name])
    assert page.run(OVERLAPS) == []


def test_a_hostile_bundle_runs_nothing(page: Page, files: dict[str, Path]) -> None:
    page.open(files["bad"])
    page.run("document.querySelector('button.link').click()")
    assert HOSTILE in texts(page, "#list-about")[0]
    assert all(HOSTILE in row for row in texts(page, "#list-rows tr"))
    assert page.run("String(window.bad)") == "undefined"
    assert page.run("document.querySelectorAll('img').length") == 0


def test_links_lead_to_their_sections(opened: Page) -> None:
    links: list[str] = opened.run(
        "[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))"
    )
    assert len(links) == 7
    for link in links[1:]:
        opened.run(f"document.querySelector('nav a[href=\"{link}\"]').click()")
        top = f"document.querySelector('{link}').getBoundingClientRect().top"
        # Beneath the bar that stays, unless the page ends before.
        assert opened.run(
            f"{top} < 80 || scrollY + innerHeight + 2 > "
            "document.documentElement.scrollHeight"
        ), link


def test_a_head_sorts_by_value_and_again_the_other_way(opened: Page) -> None:
    column = "#b0-lists tbody td:nth-child(7)"
    head = "document.querySelector('#b0-lists th:nth-child(7)')"
    assert texts(opened, "#b0-lists th:nth-child(7)") == ["time"]
    before = texts(opened, column)
    opened.run(f"{head}.click()")
    values = f"[...document.querySelectorAll('{column}')].map(e => +e.dataset.order)"
    down: list[float] = opened.run(values)
    assert down == sorted(down, reverse=True)
    assert opened.run(f"{head}.getAttribute('aria-sort')") == "descending"
    opened.run(f"{head}.click()")
    assert opened.run(values) == sorted(down)
    # 9 µs before 1.2 ms, which texts would not be.
    assert sorted(texts(opened, column)) == sorted(before)
    opened.run("document.querySelector('#b0-lists th:nth-child(6)').click()")
    winners = texts(opened, "#b0-lists tbody td:nth-child(6)")
    assert winners == sorted(winners)


def test_a_filter_leaves_the_rows_that_hold_its_words(opened: Page) -> None:
    opened.run(
        "(() => { const input = document.querySelector('[data-filters=\"b0-table\"]');"
        "input.value = 'lm_head triton'; input.dispatchEvent(new Event('input')); })()"
    )
    shown = texts(opened, "#b0-table tbody tr:not([hidden])")
    every = texts(opened, "#b0-table tbody tr")
    assert shown == [row for row in every if "lm_head" in row and "triton" in row]
    assert 0 < len(shown) < len(every)


def test_a_list_opens_with_its_candidates_in_order(opened: Page) -> None:
    opened.run("document.querySelector('#b0-choice td[data-list]').click()")
    assert opened.run("document.getElementById('list').open")
    rows = texts(opened, "#list-rows tr")
    assert len(rows) == 10
    assert "won" in rows[0]
    assert texts(opened, "#list-name")[0].startswith("q_proj +1, 1 token: mm (1, ")
    opened.run("document.querySelector('#list form button').click()")
    assert not opened.run("document.getElementById('list').open")


def test_what_lies_under_the_pointer_is_named(opened: Page) -> None:
    opened.run("document.querySelector('svg.points').scrollIntoView()")
    opened.settle()
    at = opened.run(
        "(() => { const b = document.querySelector('svg.points .won')"
        ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
    (tip,) = texts(opened, "#tip:not([hidden])")
    assert "q_proj +1, 1 token: mm (1, 4096, 4096): " in tip
    assert "µs" in tip


def test_the_theme_is_the_systems_until_one_is_chosen(opened: Page) -> None:
    def colours() -> tuple[str, str]:
        paper = opened.run("getComputedStyle(document.body).backgroundColor")
        return paper, texts(opened, "#theme")[0]

    light, dark = "rgb(255, 255, 255)", "rgb(20, 24, 31)"
    assert colours() == (light, "Theme: auto")
    opened.media(prefers_color_scheme="dark")
    assert colours() == (dark, "Theme: auto")
    opened.run("document.getElementById('theme').click()")
    assert colours() == (light, "Theme: light")
    opened.run("document.getElementById('theme').click()")
    assert colours() == (dark, "Theme: dark")
    # On paper it is light whatever was chosen, and what only works on a screen is gone.
    opened.media("print")
    assert colours()[0] == light
    shown = "getComputedStyle(document.getElementById('theme')).display"
    assert opened.run(shown) == "none"


def test_paper_shows_what_is_folded_on_a_screen(
    page: Page, files: dict[str, Path]
) -> None:
    page.media(prefers_color_scheme="light")
    page.open(files["two"])
    shown = "document.querySelector('#b1 table.facts').checkVisibility()"
    assert not page.run(shown)
    page.media("print")
    assert page.run(shown)


def test_it_prints(opened: Page, tmp_path: Path) -> None:
    opened.pdf(tmp_path / "report.pdf")
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    # A4 on its side: 842 by 595 points.
    assert b"/MediaBox [0 0 841" in content or b"/MediaBox [0 0 842" in content

"""The page of a report: whole by itself, and text where a bundle's text stands."""

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import reported
from small_reports import HEAD, UP, read, record, small_report

from flytune.caches.bundle import Bundle
from flytune.caches.report.page import page_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&{{ 7*7 }}"
VOID = {"meta", "link", "input", "br", "img"}
SECTIONS = ("time", "choice", "roof", "sure", "failed", "cost", "out", "lists")


class Parsed(HTMLParser):
    """What a browser would make of a page, as far as these tests ask."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert self.open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def of(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [value for _, found, value in self.attributes if found == name]


def page(*paths: Path) -> str:
    return page_of([Bundle.open(path) for path in paths])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page(reported.bundle(tmp_path_factory.mktemp("page")))


def test_each_question_has_its_section_and_its_chart(whole: str) -> None:
    parsed = Parsed(whole)
    assert {f"b0-{name}" for name in SECTIONS} <= set(parsed.of("id"))
    labels = parsed.of("aria-label")
    for chart in (
        "Share of each module",
        "Rate of every",
        "Each list's",
        "Stages of",
    ):
        assert any(label.startswith(chart) for label in labels), chart
    cells = [tag for tag, name, _ in parsed.attributes if name == "data-list"]
    # Who won, and the speed-up over each of two backends: 20 lists each.
    assert Counter(cells)["td"] == 3 * 20
    assert Counter(cells)["button"] == 20


def test_every_link_leads_somewhere_in_the_page(whole: str) -> None:
    parsed = Parsed(whole)
    links = [value for value in parsed.of("href") if value != "data:,"]
    assert {link[1:] for link in links} <= set(parsed.of("id"))
    assert len(links) >= 7
    ids = parsed.of("id")
    assert len(ids) == len(set(ids))


def test_every_list_says_its_change_even_where_there_is_none(tmp_path: Path) -> None:
    path = small_report(tmp_path).bundle.path
    rows = re.findall(r'<span class="change d d4">([^<]*)<', page(path, path))
    # A pass and two lists, of the second bundle alone.
    assert rows == ["0.0 %"] * 3


def test_bundles_without_a_list_in_common_have_no_map_of_changes(
    tmp_path: Path,
) -> None:
    old = reported.bundle(tmp_path, "old.tar.zst", tokens=(16,))
    new = reported.bundle(tmp_path, "new.tar.zst", tokens=(64,), module="other")
    told = page(old, new)
    assert "No list has a time in all of them." in told
    assert "Which layers changed?" not in told


def test_it_asks_for_nothing_and_runs_its_own_script_alone(whole: str) -> None:
    parsed = Parsed(whole)
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", whole) == []
    assert "src" not in {name for _, name, _ in parsed.attributes}
    assert [n for _, n, _ in parsed.attributes if n == "style" or n[:2] == "on"] == []
    (policy,) = (v for v in parsed.of("content") if v.startswith("default-src"))
    assert policy.startswith("default-src 'none'; ")
    (data, script), (style,) = parsed.texts["script"], parsed.texts["style"]
    json.loads(data)
    for kind, text in (("script", script), ("style", style)):
        sha = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{sha}';" in policy


def test_a_hostile_bundle_is_text(tmp_path: Path, whole: str) -> None:
    def hostile(value: Any) -> Any:
        """The same value with each of its texts, and names, made hostile."""
        match value:
            case str():
                return value + HOSTILE
            case dict():
                return {name + HOSTILE: hostile(some) for name, some in value.items()}
            case list():
                return [hostile(some) for some in value]
        return value

    bundle = reported.bundle(
        tmp_path,
        f"x{HOSTILE.replace('/', '')}.tar.zst",
        module=HOSTILE,
        words=HOSTILE,
        model={"name": HOSTILE, "tp": HOSTILE},
        policy={"tokens": [HOSTILE], HOSTILE: HOSTILE},
        timed_on=HOSTILE,
        program={"kind": HOSTILE},
        target={
            "hardware": {"product": HOSTILE, "kind": "cuda"},
            "software": {"torch": HOSTILE},
        },
        coverage=hostile({"missing": {"w": ["g"]}, "unreached": {"w": 1}})
        | {"missing": {HOSTILE: [HOSTILE]}, "unreached": {HOSTILE: 1}},
        verify={"ok": False, "failures": [HOSTILE]},
        provenance={
            "command": [HOSTILE],
            "commit": HOSTILE,
            "stages": [[HOSTILE, 5.0]],
        },
    )
    twice = page(bundle, bundle)
    parsed = Parsed(twice)
    assert parsed.elements["img"] == 0
    assert parsed.elements["script"] == Parsed(whole).elements["script"] == 2
    assert [n for _, n, _ in parsed.attributes if n[:2] == "on"] == []
    assert "49" not in re.findall(r"&amp;(.{2})", twice)
    # And it is there, word for word.
    assert any(HOSTILE in text for text in parsed.texts["td"])
    assert any(HOSTILE in text for text in parsed.of("data-tip"))
    data = json.loads(parsed.texts["script"][0])
    assert HOSTILE in json.dumps(data, ensure_ascii=False).replace('\\"', '"')


def test_several_bundles_are_side_by_side(tmp_path: Path) -> None:
    old = reported.bundle(tmp_path, "old.tar.zst", tokens=(16,))
    new = reported.bundle(tmp_path, "new.tar.zst", tokens=(16,), triton=1.2)
    parsed = Parsed(page(old, new, old))
    assert {"beside", "b0", "b1", "b2"} <= set(parsed.of("id"))
    assert {"#beside", "#b0", "#b2-cost"} <= set(parsed.of("href"))
    ids = parsed.of("id")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("schema", [1, 2])
def test_stored_bundles_of_every_schema_have_a_page(schema: int) -> None:
    stored = Path(__file__).parents[1] / "data" / "bundles"
    parsed = Parsed(page(stored / f"schema-{schema}.tar.zst"))
    assert "b0-lists" in parsed.of("id")


def test_a_pass_of_which_few_lists_have_times_says_so(tmp_path: Path) -> None:
    rows = [
        record(UP, "a", 20.0, backend="aten"),
        record(UP, "t", 10.0, winner=True),
        record(HEAD, "a", None, backend="aten", winner=True),
    ]
    told = page(read(tmp_path, rows).bundle.path)
    assert "<dt>GEMMs of a pass, 16 tokens, of 1 of 2 lists<" in told


def test_lists_that_are_left_out_are_counted(
    whole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "<dt>GEMMs of a pass, 1 token<" in whole
    monkeypatch.setattr("flytune.caches.report.beside._MOST_LISTS", 1)
    path = small_report(tmp_path).bundle.path
    assert "Left out: 1 list of the least change." in page(path, path)

"""The file of thresholds and waivers: what it does, and how a bad one is refused."""

import datetime
from pathlib import Path

import pytest

from flytune.caches.regression.finding import Finding, Kind, Standing, found, noted
from flytune.caches.regression.limits import Limits, Threshold, read_limits, share
from flytune.shapes.errors import FlytuneError

TODAY = datetime.date(2026, 11, 30)
NAME = "mm (1, 4096, 4096) at model.layers.*.self_attn.o_proj"
WHOLE = """
[[limit]]
pattern = "mm (1, *"
max_regression = "10%"

[[limit]]
pattern = "mm (*"
floor_us = 2

[[waiver]]
pattern = "*.o_proj"
kind = "slower"
reason = "an upstream change, see its issue"
expires = 2026-12-31
"""


def limits(tmp_path: Path, text: str) -> Limits:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    return read_limits(path)


def slower(subject: str = NAME) -> Finding:
    return found(Kind.SLOWER, subject, "1 -> 2 us")


def test_the_first_limit_that_matches_decides(tmp_path: Path) -> None:
    read = limits(tmp_path, WHOLE)
    default = Threshold(0.03, 0.2)
    assert read.threshold(NAME, default) == (0.1, 0.2)
    assert read.threshold("mm (16, 1, 1) at a", default) == (0.03, 2.0)
    assert read.threshold("bmm 2x(16, 1, 1)", default) == default


def test_what_is_waived_keeps_its_words_and_says_why(tmp_path: Path) -> None:
    read = limits(tmp_path, WHOLE)
    (waived, *_) = read.applied([slower()], [NAME], TODAY)
    assert waived.standing is Standing.WAIVED
    assert waived.reason == "an upstream change, see its issue (until 2026-12-31)"
    (kept, *_) = read.applied([slower("mm (1, 2, 3)")], [NAME], TODAY)
    assert kept.standing is Standing.FAILS
    lost = found(Kind.LOST, NAME, "gone")
    assert read.applied([lost], [NAME], TODAY)[0].standing is Standing.FAILS


def test_a_waiver_holds_through_its_last_day(tmp_path: Path) -> None:
    read = limits(tmp_path, WHOLE)
    last, after = datetime.date(2026, 12, 31), datetime.date(2027, 1, 1)
    assert read.applied([slower()], [], last)[0].standing is Standing.WAIVED
    first, said, *_ = read.applied([slower()], [NAME, "mm (16, 1, 1)"], after)
    assert first.standing is Standing.FAILS
    assert (said.kind, said.subject) == (Kind.LIMITS, "*.o_proj")
    assert said.text == (
        "waiver of `slower` expired on 2026-12-31, and does not apply: an upstream "
        "change, see its issue"
    )
    assert said.hint == "what it waived is back"


def test_what_matches_nothing_is_said(tmp_path: Path) -> None:
    read = limits(tmp_path, WHOLE)
    said = read.applied([noted(Kind.FASTER, NAME, "2 -> 1 us")], ["bmm"], TODAY)[1:]
    assert [finding.text for finding in said] == [
        "waiver of `slower` matches nothing: an upstream change, see its issue",
        "limit matches no list",
        "limit matches no list",
    ]
    assert {finding.standing for finding in said} == {Standing.NOTED}


WAIVER = (
    '[[waiver]]\npattern = "*"\nkind = "lost"\nreason = "r"\nexpires = 2027-01-01\n'
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limits = 3", "limits: key is unknown: `limits` in "),
        ("limit = 3", "limits: key is not a list of tables: `limit` in "),
        ("[limit]\npattern = 'a'", "limits: key is not a list of tables: `limit` in "),
        ("[[limit]]\nfloor_us = 1", "limits: key is missing: `limit[1].pattern` in "),
        (
            "[[limit]]\npattern = 'a'",
            "limits: key is missing: `limit[1].max_regression` in ",
        ),
        (
            "[[limit]]\npattern = 'a'\nmax_regresion = '1%'",
            "limits: key is unknown: `limit[1].max_regresion` in ",
        ),
        (
            "[[limit]]\npattern = 'a'\nmax_regression = 3",
            "limits: key is not a text: `limit[1].max_regression` in ",
        ),
        (
            "[[limit]]\npattern = 'a'\nmax_regression = '-3%'",
            "limits: key is not a share: `limit[1].max_regression` in ",
        ),
        (
            "[[limit]]\npattern = 'a'\nmax_regression = '3'",
            "limits: key is not a share: `limit[1].max_regression` in ",
        ),
        (
            "[[limit]]\npattern = 'a'\nfloor_us = nan",
            "limits: key is not a number of microseconds: `limit[1].floor_us` in ",
        ),
        (
            "[[limit]]\npattern = 'a'\nfloor_us = true",
            "limits: key is not a number of microseconds: `limit[1].floor_us` in ",
        ),
        (
            "[[limit]]\npattern = ' '\nfloor_us = 1",
            "limits: key is not a text: `limit[1].pattern` in ",
        ),
        *(
            (
                WAIVER
                + "\n".join(
                    line for line in WAIVER.splitlines() if not line.startswith(key)
                ),
                f"limits: key is missing: `waiver[2].{key}` in ",
            )
            for key in ("pattern", "kind", "reason", "expires")
        ),
        (
            WAIVER.replace("lost", "faster"),
            "limits: key is not a kind that fails: `waiver[1].kind` in ",
        ),
        (
            WAIVER.replace("2027-01-01", "'soon'"),
            "limits: key is not a date: `waiver[1].expires` in ",
        ),
        (
            WAIVER.replace("2027-01-01", "2027-01-01T00:00:00Z"),
            "limits: key is not a date: `waiver[1].expires` in ",
        ),
        ("[[limit", "limits are not TOML: "),
        ("\x00", "limits are not TOML: "),
    ],
)
def test_a_bad_file_is_refused_by_its_key(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(FlytuneError) as caught:
        limits(tmp_path, text)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match=r"cannot read limits: .*: No such file"):
        read_limits(tmp_path / "none.toml")


@pytest.mark.parametrize(("text", "number"), [("3%", 0.03), ("0.5", 0.5), ("0%", 0)])
def test_a_share_is_said_in_two_ways(text: str, number: float) -> None:
    assert share(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "%", "three", "-1%", "nan", "inf%", "3", "1"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ValueError, match=r"float|^nan|^-1%|^inf%|^3|^1"):
        share(text)

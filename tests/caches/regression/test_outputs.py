"""The result in each of its forms: all of it there, and nothing of a bundle's run."""

import datetime
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tuned_bundles import Made, Tune, shape, three_lists, tuned, usual

from flytune.caches.regression.annotations import annotations
from flytune.caches.regression.check import Check, Settings, check
from flytune.caches.regression.junit import junit
from flytune.caches.regression.limits import read_limits
from flytune.caches.regression.markdown import markdown
from flytune.caches.regression.rows import rows
from flytune.caches.regression.sides import Side
from flytune.caches.regression.table import text
from flytune.shapes.gemm import GemmShape

TODAY = datetime.date(2026, 11, 30)
HOSTILE = 'a|b</script><script>x</script>\n::error::`c` & "d"\x1b[31m'
LIMITS = """
[[waiver]]
pattern = "*linear_1"
kind = "slower"
reason = "known | upstream"
expires = 2027-01-01
[[waiver]]
pattern = "bundle"
kind = "size"
reason = "gone"
expires = 2020-01-01
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """One list slower, one slower and waived, one lost, one of a hostile name."""
    folder = tmp_path_factory.mktemp("outputs")
    hostile = GemmShape("mm", 16, 8, 8, module=HOSTILE)
    old = {**{shape(n): usual(20.0 + n) for n in range(6)}, hostile: usual(9.0)}
    new = {
        gemm: [some[0].slower(0.12 * (n < 2)), *some[1:]]
        for n, (gemm, some) in enumerate(old.items())
        if gemm is not hostile
    }
    limits = folder / "limits.toml"
    limits.write_text(LIMITS)
    return check(
        Side.open(tuned(folder / "new", Tune(2), new)),
        Side.open(tuned(folder / "old", Tune(1), old)),
        Settings(limits=read_limits(limits)),
        TODAY,
    )


def test_the_table_names_what_failed_and_what_to_do(checked: Check) -> None:
    lines = text(checked).splitlines()
    assert lines[0].startswith("new       /")
    assert lines[2] == "lists     6 in both, 1 lost, 0 new"
    assert lines[3].startswith("times     6 lists and 1 forward pass: 7 tests, Holm")
    (slow,) = (at for at, line in enumerate(lines) if "FAIL      slower: " in line)
    assert re.search(r"linear_0: 20\.\d -> 22\.\d us, \+1\d\.\d%, p <0", lines[slow])
    assert lines[slow + 1].startswith("          do: build again")
    (waived,) = (at for at, line in enumerate(lines) if line.startswith("waived"))
    assert lines[waived + 1] == (
        "          waived: known | upstream (until 2027-01-01)"
    )
    assert re.fullmatch(r"check     REGRESSION: 1 lost, .*1 slower.*", lines[-1])


def test_a_line_of_the_table_is_one_finding(checked: Check) -> None:
    """A name may hold what ends a line, or colours a terminal."""
    assert "\x1b" not in text(checked)
    assert not any(line.startswith("::") for line in text(checked).splitlines())


def test_json_has_every_finding_and_every_test(checked: Check) -> None:
    made = [json.loads(json.dumps(row, allow_nan=False)) for row in rows(checked)]
    kinds = [row["row"] for row in made]
    assert kinds[0] == "check"
    assert made[0]["outcome"] == "regression"
    assert made[0]["tests"] == kinds.count("list") + kinds.count("pass") == 7
    assert kinds.count("finding") == len(checked.findings)
    (slow,) = (r for r in made if r["row"] == "finding" and r["standing"] == "waived")
    assert slow["waived"] == "known | upstream (until 2027-01-01)"
    first = next(row for row in made if row["row"] == "list")
    assert (first["op"], first["m"], first["n"]) == ("mm", 16, 1024)
    assert first["new_winner"]["backend"] == "triton"
    assert first["slower"] is True


def test_junit_is_well_formed_and_counts(checked: Check) -> None:
    made = junit(checked)
    (suite,) = ElementTree.fromstring(made)
    cases = suite.findall("testcase")
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    assert suite.get("tests") == str(len(cases))
    assert suite.get("failures") == str(len(failed))
    assert suite.get("skipped") == str(len(skipped)) == "1"
    assert suite.get("errors") == "0"
    # Nobody asked for it.
    assert "retime" not in [case.get("name") for case in cases]
    assert {"lost", "mm (16, 1024, 4096) at model.layers.*.linear_0"} <= set(failed)
    times = [c for c in cases if c.get("classname") == "flytune.check.times"]
    assert len(times) == 7
    assert "\x1b" not in made


def test_what_is_undecided_is_an_error_in_junit(tmp_path: Path) -> None:
    """It fails the job: a report in which all passed would tell nobody why."""
    lists = {shape(n): usual(20.0) for n in range(3)}
    new = tuned(tmp_path / "new", Tune(2, canary_us=110.0), lists)
    old = tuned(tmp_path / "old", Tune(1), lists)
    undecided = check(Side.open(new), Side.open(old), Settings(), TODAY)
    (suite,) = ElementTree.fromstring(junit(undecided))
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    (case,) = (c for c in suite.findall("testcase") if c.find("error") is not None)
    assert case.get("name") == "other device"


def test_markdown_is_a_table_of_what_got_slower(checked: Check) -> None:
    made = markdown(checked)
    lines = made.splitlines()
    assert lines[0] == "## flytune check: regression"
    at = lines.index("### Slower")
    assert lines[at + 2] == "| what | was | is | change | why | do |"
    tables = [line for line in lines if line.startswith("| ")]
    # Of a cell's own bars none ends it.
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in tables}
    assert columns == {7, 5, 8}
    assert "<script>" not in made
    assert r"known \| upstream" in made


def test_annotations_are_commands_of_one_line(checked: Check) -> None:
    made = list(annotations(checked))
    assert all(re.match(r"::(error|warning|notice) title=", line) for line in made)
    assert all("\n" not in line and "\r" not in line for line in made)
    assert made[0].startswith(
        "::error title=flytune check%3A lost%3A mm (16%2C 8%2C 8)"
    )
    assert any(line.startswith("::warning") and "expired" in line for line in made)
    assert any(line.startswith("::notice") and "waived" in line for line in made)


def test_what_is_undecided_is_an_error_where_it_is_what_fails_the_run(
    tmp_path: Path,
) -> None:
    lists = {shape(n): usual(20.0) for n in range(3)}
    fewer = {shape(n): usual(20.0) for n in range(2)}
    old = Side.open(tuned(tmp_path / "old", Tune(1), lists))

    def levels(new: dict[GemmShape, tuple[Made, ...]], **how: bool) -> list[str]:
        folder = tmp_path / f"new-{len(list(tmp_path.iterdir()))}"
        path = tuned(folder, Tune(2, canary_us=110.0), new)
        checked = check(Side.open(path), old, Settings(), TODAY)
        made = [line.partition("%3A ") for line in annotations(checked, **how)]
        return [f"{level[2:].split()[0]} {rest[:5]}" for level, _, rest in made]

    assert levels(lists) == ["error other"]
    assert levels(lists, undecided_passes=True) == ["warning other"]
    # Beside a list that is lost it decides nothing.
    assert levels(fewer) == ["error lost%", "warning other"]


def test_ten_annotations_of_a_level_are_shown(tmp_path: Path) -> None:
    old = {shape(n): usual(20.0) for n in range(30)}
    checked = check(
        Side.open(tuned(tmp_path / "new", Tune(2), three_lists())),
        Side.open(tuned(tmp_path / "old", Tune(1), old)),
        Settings(),
        TODAY,
    )
    made = [line for line in annotations(checked) if line.startswith("::error")]
    assert len(made) == 10
    assert made[-1].endswith(" more: see the summary")

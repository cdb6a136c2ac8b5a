"""The codes: closed, explained, in the README, and each provoked by a test."""

import re
from pathlib import Path

from flytune.caches.archive import BundleError, Fault
from flytune.caches.codes import EXPLAINED, Code, markdown

ROOT = Path(__file__).parents[2]
SOURCES = [
    p for name in ("shapes", "caches", "tuner") for p in (ROOT / name).rglob("*.py")
]


def test_every_code_is_explained() -> None:
    assert EXPLAINED.keys() == set(Code)
    assert all(re.fullmatch(r"FT\d{3}", code) for code in Code)
    assert all(meaning and action for meaning, action in EXPLAINED.values())


def test_the_readme_has_the_table() -> None:
    assert markdown() in (ROOT / "caches/README.md").read_text()


def test_every_fault_of_a_bundle_has_its_own_code() -> None:
    codes = {BundleError(fault, "x").code for fault in Fault}
    assert codes == {Code[fault.name] for fault in Fault}


def test_what_the_hook_names_is_a_code() -> None:
    # It lacks flytune, and spells them out.
    text = "".join(path.read_text() for path in (ROOT / "caches/hook").glob("*.py"))
    named = set(re.findall(r"FT\d{3}", text))
    assert named
    assert named <= set(Code)


def test_no_code_is_of_no_use() -> None:
    text = "".join(p.read_text() for p in SOURCES if p.name != "codes.py")
    used = set(re.findall(r"Code\.(\w+)", text)) | set(Fault.__members__)
    spelt = set(re.findall(r"FT\d{3}", text))
    assert [c for c in Code if c.name not in used and c not in spelt] == []


def test_every_code_is_provoked_by_a_test() -> None:
    files = [p for p in (ROOT / "tests").rglob("test_*.py") if p != Path(__file__)]
    text = "".join(path.read_text() for path in files)
    told = set(re.findall(r"FT\d{3}", text))
    # The tests of hostile bundles name faults.
    told |= {Code[name] for name in re.findall(r"Fault\.(\w+)", text)}
    assert sorted(set(Code) - told) == []

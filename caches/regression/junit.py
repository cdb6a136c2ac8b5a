"""The result as JUnit XML, a test case for each question that was asked.

Source: the schema that Jenkins' xUnit plugin and GitLab read, "junit-10.xsd".
"""

import re
from collections.abc import Iterable
from xml.etree import ElementTree

from flytune.caches.regression.cause import us
from flytune.caches.regression.check import Check
from flytune.caches.regression.finding import WAIVABLE, Finding, Kind, Standing
from flytune.caches.regression.table import ordered, statistics
from flytune.caches.regression.times import Compared, p_words

_TAGS = {
    Standing.FAILS: ("failure", "failures"),
    Standing.UNDECIDED: ("error", "errors"),
    Standing.WAIVED: ("skipped", "skipped"),
}
"""What a case holds by its gravest finding, and the name of their number."""
_OF_TIMES = (Kind.SLOWER, Kind.SLOWER_PASS)
# XML 1.0 has no other control characters, nor a way to write them.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(check: Check) -> str:
    """Return the XML.

    A finding that fails is a failure, one that is undecided an error, one that is
    waived a skipped case, and a question that found nothing is a case that passed.
    """
    cases = [*_structure(check), *_times(check)]
    suite = ElementTree.Element("testsuite", name="flytune check")
    suite.set("tests", str(len(cases)))
    for tag, name in _TAGS.values():
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    suite.extend(cases)
    notes = [finding.line for finding in check.of(Standing.NOTED)]
    out = ElementTree.SubElement(suite, "system-out")
    out.text = _clean("\n".join([*statistics(check), *notes]))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _structure(check: Check) -> list[ElementTree.Element]:
    """Return a case for each kind of finding that is not of one test of times."""
    decide = [f for f in check.findings if f.standing is not Standing.NOTED]
    unasked = _OF_TIMES if check.retimed else (*_OF_TIMES, Kind.RETIME)
    return [
        _case("structure", str(kind), [f for f in decide if f.kind is kind])
        for kind in WAIVABLE
        if kind not in unasked
    ]


def _times(check: Check) -> list[ElementTree.Element]:
    by_name: dict[str, list[Finding]] = {}
    for finding in check.findings:
        if finding.kind in _OF_TIMES:
            by_name.setdefault(finding.subject, []).append(finding)
    cases = []
    for one in (*check.times.passes, *check.times.lists):
        case = _case("times", one.name, by_name.get(one.name, []))
        out = ElementTree.SubElement(case, "system-out")
        out.text = _clean(_measured(one))
        cases.append(case)
    return cases


def _case(group: str, name: str, findings: Iterable[Finding]) -> ElementTree.Element:
    case = ElementTree.Element("testcase")
    case.set("classname", f"flytune.check.{group}")
    case.set("name", _clean(name))
    said = ordered(findings)
    if not said:
        return case
    # The gravest is the first.
    gravest = said[0]
    tag, _ = _TAGS.get(gravest.standing, _TAGS[Standing.WAIVED])
    child = ElementTree.SubElement(case, tag, message=_clean(_words(gravest)))
    child.text = _clean("\n".join(map(_words, said)))
    return case


def _words(finding: Finding) -> str:
    waived = f" (waived: {finding.reason})" if finding.reason else ""
    do = f" - {finding.hint}" if finding.hint and not waived else ""
    return f"{finding.line}{waived}{do}"


def _measured(one: Compared) -> str:
    return (
        f"{us(one.old_us)} -> {us(one.new_us)} us, {one.ratio - 1:+.1%}, "
        f"{p_words(one.p_value)}"
    )


def _clean(text: str) -> str:
    return _NO_XML.sub("?", text)

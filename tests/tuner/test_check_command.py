"""`flytune check` as it is typed: exit codes, files, and what is refused."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from builds import BARE, flytune
from click.testing import CliRunner, Result
from small_bundles import small_bundle
from tuned_bundles import POLICY, Made, Tune, shape, three_lists, tuned, usual

from flytune.caches.bundle import Bundle
from flytune.caches.regression.check import Check, check
from flytune.shapes.gemm import GemmShape
from flytune.tuner.cli import main

LISTS = {shape(n): usual(20.0 + n) for n in range(6)}


def slowed() -> dict[object, list[Made]]:
    """The first list is slower by a tenth."""
    return {
        gemm: [some[0].slower(0.1 * (not n)), *some[1:]]
        for n, (gemm, some) in enumerate(LISTS.items())
    }


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned(tmp_path_factory.mktemp("old"), Tune(1), LISTS)


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned(tmp_path_factory.mktemp("same"), Tune(2), LISTS)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned(tmp_path_factory.mktemp("slow"), Tune(2), slowed())


def run(new: object, old: object, *options: object, **env: str | None) -> Result:
    arguments = ["check", str(new), "--baseline", str(old), *map(str, options)]
    clean: dict[str, str | None] = {"GITHUB_ACTIONS": None}
    return CliRunner().invoke(main, arguments, env={**clean, **env})


def test_exit_codes_say_what_it_comes_to(
    tmp_path: Path, old: Path, same: Path, slow: Path
) -> None:
    fine = run(same, old)
    assert (fine.exit_code, fine.stderr) == (0, "")
    assert fine.stdout.splitlines()[-1] == "check     fine"
    worse = run(slow, old)
    assert worse.exit_code == 1
    assert worse.stdout.splitlines()[-1].startswith("check     REGRESSION: 1 slower")
    assert run(slow, old, "--max-regression", "50%").exit_code == 0
    warm = tuned(tmp_path, Tune(2, canary_us=104.0), LISTS)
    elsewhere = run(warm, old)
    assert elsewhere.exit_code == 3
    assert "--retime" in elsewhere.stdout
    assert elsewhere.stdout.splitlines()[-1].startswith("check     UNDECIDED: 1 ")
    for undecided, level in (("fail", "error"), ("pass", "warning")):
        told = run(warm, old, "--github", "--undecided", undecided)
        assert told.exit_code == 3
        assert told.stderr.startswith(f"::{level} title=flytune check%3A other device")


def test_json_alone_is_on_stdout(old: Path, slow: Path) -> None:
    result = run(slow, old, "--json", "--github")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows[0]["exit_code"] == result.exit_code == 1
    assert result.stderr.startswith("::error title=flytune check")


def test_a_workflow_of_githubs_is_annotated(old: Path, slow: Path) -> None:
    assert "::error" in run(slow, old, GITHUB_ACTIONS="true").stderr
    assert run(slow, old, "--no-github", GITHUB_ACTIONS="true").stderr == ""


def test_reports_are_written_whatever_comes_of_it(
    tmp_path: Path, old: Path, slow: Path
) -> None:
    xml, summary = tmp_path / "check.xml", tmp_path / "check.md"
    result = run(slow, old, "--junit", xml, "--markdown", summary)
    assert result.exit_code == 1
    assert ElementTree.parse(xml).getroot().tag == "testsuites"
    assert summary.read_text().startswith("## flytune check: regression\n")


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_compared(
    tmp_path: Path, old: Path, slow: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flytune.tuner.check_command.check", None)
    result = run(slow, old, option, tmp_path / "none" / "check")
    assert (result.exit_code, result.stdout) == (1, "")
    message, hint = result.stderr.splitlines()
    assert message.startswith(f"error: cannot write: {tmp_path / 'none'}")
    assert hint == "hint: choose another path"


def test_what_happens_to_a_file_later_costs_no_result(
    tmp_path: Path, old: Path, same: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the summary, the last that is written, a gate knows of an error."""
    xml, summary = tmp_path / "gone" / "check.xml", tmp_path / "check.md"
    xml.parent.mkdir()

    def checked(*arguments: Any) -> Check:
        xml.parent.rmdir()
        return check(*arguments)

    monkeypatch.setattr("flytune.tuner.check_command.check", checked)
    result = run(same, old, "--junit", xml, "--markdown", summary)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "check     fine"
    assert result.stderr.startswith(f"error: cannot write: {xml.parent}")
    assert not summary.exists()


def test_files_are_replaced_as_a_whole(tmp_path: Path, old: Path, same: Path) -> None:
    summary, other = tmp_path / "check.md", tmp_path / "other"
    summary.write_text("of an earlier run")
    other.hardlink_to(summary)
    assert run(same, old, "--markdown", summary).exit_code == 0
    assert summary.read_text().startswith("## flytune check: no regression\n")
    assert other.read_text() == "of an earlier run"
    assert sorted(tmp_path.iterdir()) == [summary, other]
    # What is no file is written to, and not replaced.
    assert (
        "## flytune check"
        in flytune(
            tmp_path, "check", same, "--baseline", old, "--markdown", "/dev/stderr"
        ).stderr
    )


def test_an_error_leaves_no_summary(tmp_path: Path, old: Path) -> None:
    summary = tmp_path / "check.md"
    result = run(tmp_path / "none.tar.zst", old, "--markdown", summary)
    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path, old: Path) -> None:
    named = {GemmShape("mm", 16, 8, 8, module="modèle"): usual(20.0)}
    one, other = (tuned(tmp_path / f"{n}", Tune(n), named) for n in (1, 2))
    limits, xml = tmp_path / "limits.toml", tmp_path / "check.xml"
    limits.write_text(
        '[[limit]]\npattern = "*modèle"\nfloor_us = 1\n', encoding="utf-8"
    )
    files = ["--limits", limits, "--junit", xml, "--markdown", tmp_path / "check.md"]
    done = flytune(tmp_path, "check", other, "--baseline", one, *files, command=BARE)
    assert done.returncode == 0, done.stderr
    assert "modèle" in xml.read_text(encoding="utf-8")
    assert "modèle" in (tmp_path / "check.md").read_text(encoding="utf-8")


def test_a_pin_holds(old: Path, same: Path) -> None:
    digest = Bundle.open(old).digest
    assert run(same, f"{old}@sha256:{digest}").exit_code == 0
    result = run(same, f"{old}@sha256:{'0' * 64}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "(FT601)" in result.stderr


def test_a_serving_policy_is_a_file_or_a_bundle(
    tmp_path: Path, old: Path, same: Path
) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({**POLICY, "tokens": [1, 16, 64]}))
    result = run(same, old, "--serving-policy", policy)
    assert result.exit_code == 1
    assert "misses: size 64: serving has it" in result.stdout
    assert run(same, old, "--serving-policy", old).exit_code == 0
    for content, words in (
        ("{}", f"error: serving policy is malformed: 'tokens': {policy} (FT221)\n"),
        ("[]", f"error: serving policy is not a JSON object: {policy} (FT202)\n"),
        ("{", "error: serving policy is not JSON: "),
    ):
        policy.write_text(content)
        said = run(same, old, "--serving-policy", policy).stderr
        assert said.startswith(words)
        assert str(policy) in said
        assert said.splitlines()[1].startswith("hint: give the `policy` of a bundle's ")
    result = run(same, old, "--serving-policy", tmp_path / "none.json")
    assert result.stderr.startswith("error: cannot read serving policy: ")


def test_a_waiver_lets_a_slower_list_pass(
    tmp_path: Path, old: Path, slow: Path
) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text(
        '[[waiver]]\npattern = "*linear_0"\nkind = "slower"\nreason = "known"\n'
        "expires = 2999-01-01\n"
    )
    result = run(slow, old, "--limits", limits)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "check     fine; 1 waived"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--max-regression", "3 percent"],
            "`3 percent` is no share: write 3% or 0.03",
        ),
        (["--max-growth", "-1%"], "`-1%` is no share"),
        (["--max-regression", "3"], "`3` is no share: write 3% or 0.03"),
        (["--max-growth", "20"], "`20` is no share: write 3% or 0.03"),
        (["--floor-us", "nan"], "nan is no time"),
        (["--floor-us", "-1"], "-1.0 is not in the range"),
    ],
)
def test_bad_options_are_usage(
    old: Path, same: Path, options: list[str], words: str
) -> None:
    result = run(same, old, *options)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_baseline_is_needed(old: Path) -> None:
    result = CliRunner().invoke(main, ["check", str(old)])
    assert result.exit_code == 2
    assert "Missing option '--baseline'" in result.stderr


def test_what_is_no_bundle_is_one_line(tmp_path: Path, old: Path) -> None:
    plain = small_bundle(tmp_path)
    result = run(plain, old)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: bundle has no records: {plain}\n"
    damaged = tmp_path / "damaged.tar.zst"
    damaged.write_bytes(old.read_bytes()[:-20])
    # There are two: which one it is is said.
    for pair in ((damaged, old), (old, damaged)):
        result = run(*pair)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error: archive ")
        assert f": {damaged} (FT" in result.stderr


def test_a_bundle_is_its_own_baseline(old: Path) -> None:
    result = run(old, old)
    assert result.exit_code == 0
    assert "this is the very bundle that it is compared with" in result.stdout


def test_lists_at_several_sizes_have_a_pass_each(tmp_path: Path) -> None:
    first = tuned(tmp_path / "1", Tune(1), three_lists())
    second = tuned(tmp_path / "2", Tune(2), three_lists())
    result = run(second, first)
    assert "forward pass at 1 token " in result.stdout
    assert "forward pass at 16 tokens" in result.stdout


def test_winners_are_run_only_of_bundles_that_are_trusted(
    tmp_path: Path, old: Path, same: Path
) -> None:
    refused = run(same, old, "--retime")
    assert refused.exit_code == 1
    assert "bundle is not signed by a key that is trusted here" in refused.stderr
    assert "hint: " in refused.stderr
    # The records decide, so that nothing is run.
    fine = run(same, old, "--retime", "--allow-unsigned", "--json")
    assert fine.exit_code == 0
    whole = json.loads(fine.stdout.splitlines()[0])
    assert whole["retimed"]["lists"] == 0
    assert run(same, old, "--allow-unsigned").exit_code == 2


def test_without_the_device_what_is_open_is_named(
    tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flytune.tuner.retime.live_profile", lambda: None)
    other = [Made(20.0, config={"BLOCK_M": 32}), *usual(20.0)[1:]]
    warm = tuned(tmp_path, Tune(2, canary_us=104.0), {**LISTS, shape(0): other})
    result = run(warm, old, "--retime", "--allow-unsigned", "--json")
    assert result.exit_code == 3
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    (open_,) = (row for row in rows if row.get("standing") == "undecided")
    assert open_["kind"] == "retime"
    assert open_["text"] == "no accelerator here to time on"
    assert rows[0]["retimed"]["one_kernel"] == len(LISTS) - 1

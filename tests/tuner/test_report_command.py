"""`flytune report`, as it is typed."""

from pathlib import Path

import pytest
import reported
from builds import BARE, flytune
from click.testing import CliRunner, Result

from flytune.tuner.cli import main


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reported.bundle(tmp_path_factory.mktemp("reported"), tokens=(16,))


def report(*words: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, words)])


def test_one_file_is_written_and_named(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = report(bundle, "--html", out)
    assert (done.exit_code, done.stderr) == (0, "")
    page = out.read_text(encoding="utf-8")
    assert done.stdout == f"{out}: {len(page.encode()) / 1e3:.0f} kB\n"
    assert page.startswith("<!doctype html>\n")
    assert page.rstrip().endswith("</html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert report(bundle, bundle, "--html", out).exit_code == 0
    assert "Side by side" in out.read_text(encoding="utf-8")


def test_a_bundle_is_pinned_as_elsewhere(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = report(f"{bundle}@sha256:{'0' * 64}", "--html", out)
    assert done.exit_code == 1
    assert "(FT601)" in done.stderr
    assert not out.exists()


def test_what_cannot_be_written_is_one_line(bundle: Path, tmp_path: Path) -> None:
    done = report(bundle, "--html", tmp_path / "none" / "report.html")
    assert done.exit_code == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: cannot write: ")
    assert hint == "hint: choose another path"


def test_a_page_is_utf_8_whatever_the_locale(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = flytune(tmp_path, "report", bundle, "--html", out, command=BARE)
    assert done.returncode == 0, done.stderr
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>\n")


def test_a_bundle_that_cannot_be_read_is_named(bundle: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tar.zst"
    damaged.write_bytes(bundle.read_bytes()[:-20])
    done = report(bundle, damaged, "--html", tmp_path / "report.html")
    assert done.exit_code == 1
    assert str(damaged) in done.stderr
    assert str(bundle) not in done.stderr


def test_a_failed_report_leaves_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("old")
    done = report(tmp_path / "absent", "--html", out)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert out.read_text() == "old"


@pytest.mark.parametrize("words", [(), ("b.tar.zst",), ("--html", "r.html")])
def test_usage(words: tuple[str, ...]) -> None:
    done = report(*words)
    assert done.exit_code == 2
    assert "Usage: " in done.stderr

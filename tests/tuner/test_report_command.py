"""`flytune report`, as it is typed."""

import os
import subprocess
import sys
import threading
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


def test_a_link_stays_and_what_it_leads_to_is_replaced(
    bundle: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("old.html", "new.html"):
        link = tmp_path / name
        link.symlink_to(f"folder/{name}")
    (folder / "old.html").write_text("old")
    (folder / "old.html").chmod(0o600)
    for name in ("old.html", "new.html"):
        assert report(bundle, "--html", tmp_path / name).exit_code == 0
        assert (tmp_path / name).is_symlink()
        assert (folder / name).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (folder / "old.html").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["new.html", "old.html"]


def test_a_pipe_is_written_to(bundle: Path, tmp_path: Path) -> None:
    pipe, link, read = tmp_path / "pipe", tmp_path / "link", list[bytes]()
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for out in (pipe, link):
        reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
        reader.daemon = True
        reader.start()
        done = report(bundle, "--html", out)
        reader.join(60)
        assert (done.exit_code, done.stderr) == (0, "")
        assert pipe.is_fifo()
        assert read.pop().startswith(b"<!doctype html>")


def test_a_file_that_nobody_may_write_to_is_left(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("kept")
    out.chmod(0o444)
    done = report(bundle, "--html", out)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: cannot write: {out}: Permission denied")
    assert out.read_text() == "kept"


def test_stdout_has_the_page_alone(bundle: Path, tmp_path: Path) -> None:
    done = report(bundle, "--html", "-")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("<!doctype html>\n")
    assert done.stdout.rstrip().endswith("</html>")


def test_stdout_under_another_name_where_no_text_is_utf_8(
    bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "from flytune.tuner.cli import main; main()"
    words = ["report", str(bundle), "--html", str(out)]
    with out.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, **plain},
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    page = out.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>\n")
    assert page.rstrip().endswith("</html>")


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


@pytest.mark.parametrize(
    "words", [(), ("b.tar.zst",), ("--html", "r.html"), ("b.tar.zst", "--html", "")]
)
def test_usage(words: tuple[str, ...]) -> None:
    done = report(*words)
    assert done.exit_code == 2
    assert "Usage: " in done.stderr

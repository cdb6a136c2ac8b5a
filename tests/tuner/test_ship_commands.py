"""What push, pull and mirror print; what they do is tested in `tests/caches`."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from registry import registry
from small_bundles import small_bundle

from flytune.caches.bundle import Bundle
from flytune.tuner.cli import main


def lines(*words: object) -> dict[str, str]:
    done = CliRunner().invoke(main, [*map(str, words)])
    assert (done.exit_code, done.stderr) == (0, "")
    pairs = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    return {name: text for name, text in pairs}


def test_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    made = small_bundle(tmp_path)
    with registry(tmp_path / "registry") as running:
        repo = f"{running.place}/team/tiny"
        pushed = lines("push", made, f"{repo}:v1", "--insecure")
        assert list(pushed) == ["bundle", "index", "moved"]
        assert pushed["bundle"].startswith(f"{repo}@sha256:")
        assert pushed["moved"].startswith("3 of 3 blobs, ")
        out = tmp_path / "out"
        words = ("pull", pushed["index"], "--insecure", "--for-host", "--out", out)
        pulled = lines(*words)
        assert (pulled["bundle"], pulled["out"]) == (pushed["bundle"], str(out))
        stick = tmp_path / "stick"
        mirrored = lines("mirror", f"{repo}:v1", stick, "--insecure")
        assert mirrored["layout"] == f"oci:{stick}:v1"
        assert mirrored["index"] == pushed["index"]
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["pull", f"oci:{stick}:v1", "--json"])
    assert done.exit_code == 0
    row = json.loads(done.stdout)
    assert row["moved_blobs"] == 0
    assert row["bundle"].endswith(pushed["bundle"].partition("@")[2])
    assert Path(row["out"]).is_file()


@pytest.mark.parametrize(
    "words",
    [("push", "b.tar.zst"), ("pull",), ("mirror", "oci:x"), ("pull", "x", "--tp", "0")],
)
def test_wrong_usage(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, list(words)).exit_code == 2


def test_wheel_prints_its_path(tmp_path: Path) -> None:
    made = small_bundle(tmp_path)
    done = CliRunner().invoke(main, ["wheel", str(made), "--out", str(tmp_path / "w")])
    (wheel,) = (tmp_path / "w").iterdir()
    assert (done.exit_code, done.stdout) == (0, f"{wheel}\n")
    assert Bundle.open(made).manifest.model["name"] in wheel.name


def test_no_bundle_may_be_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    out = tmp_path / "out"

    def pulled(reference: str, *more: str) -> tuple[int, str, str]:
        words = ["pull", reference, "--insecure", "--out", str(out), *more]
        done = CliRunner().invoke(main, words)
        return done.exit_code, done.stdout, done.stderr

    with registry(tmp_path / "registry") as running:
        repo = f"{running.place}/team/tiny"
        assert pulled(f"{repo}:v1")[0] == 1
        code, stdout, stderr = pulled(f"{repo}:v1", "--allow-absent")
        assert (code, stdout) == (0, "")
        assert stderr.startswith("absent: not in the registry: ")
        lines("push", small_bundle(tmp_path), f"{repo}:v1", "--insecure")
        # Another tag, and another target: the first bundle for it is still to come.
        for wanted in ((f"{repo}:v2",), (f"{repo}:v1", "--target", "another")):
            assert pulled(*wanted, "--allow-absent")[0] == 0
        assert not out.exists()
        row = json.loads(pulled(f"{repo}:v2", "--allow-absent", "--json")[1])
        assert row == {"bundle": None, "index": None, "out": None}
        assert pulled(f"{repo}:v1", "--allow-absent")[0] == 0
        assert out.exists()
        # What was pushed and is gone is damage, not absence.
        out.unlink() if out.is_file() else shutil.rmtree(out)
        for blob in running.storage.rglob("data"):
            if blob.stat().st_size > 1000:
                blob.unlink()
        shutil.rmtree(tmp_path / "home", ignore_errors=True)
        code, _, stderr = pulled(f"{repo}:v1", "--allow-absent")
        assert code == 1
    # Nor is a registry that does not answer.
    code, _, stderr = pulled(f"{repo}:v1", "--allow-absent")
    assert code == 1
    assert stderr.startswith("error: ")

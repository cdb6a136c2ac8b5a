import subprocess
from pathlib import Path

import pytest

from flytune.caches import provenance as module
from flytune.caches.provenance import provenance

COMMAND = ("flytune", "build", "--model", "M")
AUTHOR = ("-c", "user.name=n", "-c", "user.email=e@example.com")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *AUTHOR, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_of_a_work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "config.json").write_text("{}")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    git(tmp_path, "tag", "v1", "--annotate", "--message", "a tag is no commit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLYTUNE_IMAGE", "registry.example/tune:1")
    made = provenance(COMMAND)
    assert made["command"] == [*COMMAND]
    assert made["commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert made["image"] == "registry.example/tune:1"
    assert made["host"]
    (tmp_path / "config.json").write_text("changed")
    assert provenance(COMMAND)["commit"] == f"{made['commit']}-dirty"


def test_of_no_work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLYTUNE_IMAGE", raising=False)
    monkeypatch.setattr(module, "_CONTAINER", tmp_path / "none")
    assert provenance(())["commit"] is None
    assert provenance(())["image"] is None


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance(())["commit"] is None


def test_a_container_that_knows_its_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / ".containerenv"
    told.write_text('engine="podman-5.4"\nname="x"\nimage="localhost/tune:2"\n')
    monkeypatch.delenv("FLYTUNE_IMAGE", raising=False)
    monkeypatch.setattr(module, "_CONTAINER", told)
    assert provenance(())["image"] == "localhost/tune:2"


def test_nothing_of_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "hf_secret" not in str(provenance(COMMAND))

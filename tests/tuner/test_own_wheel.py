"""The wheel that a cluster's processes import flytune from."""

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from flytune.shapes.errors import FlytuneError
from flytune.tuner import own_wheel as module
from flytune.tuner.own_wheel import own_wheel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_wheel(tmp_path_factory.mktemp("wheel"))


def test_it_holds_every_source_and_no_notes(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
        held = archive.read("flytune/tuner/own_wheel.py")
    sources = {
        f"flytune/{path.relative_to(ROOT).as_posix()}"
        for folder in ("shapes", "caches", "tuner")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".md", ".pyc")
    }
    assert names == sources
    assert held == (ROOT / "tuner" / "own_wheel.py").read_bytes()


def test_pip_installs_it_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")
    # With all that it requires, as Ray does it; there is no index to find that in.
    command = (*pip, "--no-index", "--target", str(tmp_path), str(wheel))
    subprocess.run(command, check=True, capture_output=True)
    assert sorted(path.name for path in tmp_path.glob("*-info")) == [
        f"flytune-{importlib.metadata.version('flytune')}.dist-info"
    ]
    where = "import flytune.tuner.cli as m; print(m.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", where],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(tmp_path))


def test_its_name_tells_it_from_another_of_its_version(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = own_wheel(tmp_path)
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())
    changed = tmp_path / "shapes"
    changed.mkdir()
    (changed / "__init__.py").write_text("changed = True\n")
    import flytune.shapes

    monkeypatch.setattr(flytune.shapes, "__path__", [str(changed)])
    assert own_wheel(tmp_path).name != wheel.name


def test_what_no_folder_holds_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flytune.shapes

    monkeypatch.setattr(flytune.shapes, "__path__", [str(tmp_path / "app.zip/shapes")])
    with pytest.raises(FlytuneError, match="cannot be sent to a cluster: no folder"):
        own_wheel(tmp_path)


def test_what_is_not_installed_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(FlytuneError, match="cluster: it is not installed") as caught:
        own_wheel(tmp_path)
    assert caught.value.hint == "install its wheel here with pip"


def test_what_else_lies_in_a_checkout_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "caches"
    (root / ".venv").mkdir(parents=True)
    hidden = (".venv/theirs.py", ".docker.json", ".netrc")
    for name in ("code.py", "py.typed", "own.pem", "notes.txt", *hidden):
        (root / name).write_text("")
    package = SimpleNamespace(__path__=[str(root)])
    monkeypatch.setattr(module.importlib, "import_module", lambda _: package)
    names = {Path(name).name for name, _ in module._sources()}
    assert names == {"code.py", "py.typed"}

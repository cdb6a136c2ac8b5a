"""Installed bundles: listed, served again by digest, and cleared away."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bundles import FILES, installable, tree

from flytune.caches.bundle import Bundle
from flytune.caches.install import attempt
from flytune.caches.installed import clear, installed_bundles, installed_path
from flytune.caches.prepare import prepare
from flytune.shapes.errors import FlytuneError

SERVE = """
import flytune.caches, sys
print(flytune.caches.install(sys.argv[1]).status, flush=True)
sys.stdin.read()
"""
EXEC = "from flytune.tuner.cli import main; main()"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "installed"


def make(folder: Path, number: int) -> Path:
    """A bundle of its own digest, in its own folder."""
    (folder / str(number)).mkdir()
    model = {"name": f"model-{number}"}
    return installable(folder / str(number), model=model)


def placed(bundle: Path, used: int) -> str:
    """Install a bundle in a process that ends; return its digest."""
    code = "import flytune.caches, sys; flytune.caches.install(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(bundle)], check=True)
    digest = Bundle.open(bundle).digest
    marker = installed_path(f"sha256:{digest}") / "installed.json"
    os.utime(marker, (used, used))
    return digest


@contextmanager
def running(*command: object) -> Iterator[str]:
    """A process that serves, and the first word that it says."""
    with subprocess.Popen(
        [sys.executable, "-c", *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def test_the_last_used_comes_first(tmp_path: Path, home: Path) -> None:
    assert installed_bundles() == ()
    digests = [placed(make(tmp_path, number), 10 + number) for number in range(2)]
    second, first = installed_bundles()
    assert [first.digest, second.digest] == digests
    assert (second.model, second.used, second.in_use) == ("model-1", 11.0, False)
    assert second.directory == home / digests[1][:16]
    assert second.target.startswith("cpu-")
    assert second.size_bytes > sum(
        len(text) for name, text in FILES.items() if name.startswith("inductor/")
    )


def test_what_was_used_longest_ago_goes(tmp_path: Path, home: Path) -> None:
    digests = [placed(make(tmp_path, number), 10 + number) for number in range(4)]
    would = clear(2, dry_run=True)
    assert [one.digest for one in would.bundles] == [digests[1], digests[0]]
    assert len(installed_bundles()) == 4
    assert clear(2) == would
    assert sorted(path.name for path in home.iterdir()) == sorted(
        name for d in digests[2:] for name in (d[:16], f".{d[:16]}.lock")
    )
    # Installed again it is the last used.
    os.utime(home / digests[2][:16] / "installed.json", (10, 10))
    subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "2" / "b.tar.zst")],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    (gone,) = clear(1).bundles
    assert gone.digest == digests[3]


def test_what_serves_stays(tmp_path: Path) -> None:
    bundle = make(tmp_path, 0)
    digest = placed(bundle, 10)
    with running(SERVE, bundle) as status:
        assert status == "hit"
        (one,) = installed_bundles()
        assert one.in_use
        assert clear(0).bundles == ()
    (gone,) = clear(0).bundles
    assert gone.digest == digest
    assert installed_bundles() == ()


@pytest.mark.parametrize("children", ["sh", "python"])
def test_what_a_command_serves_stays(tmp_path: Path, children: str) -> None:
    bundle = make(tmp_path, 0)
    code = "print('up', flush=True); import sys; sys.stdin.read()"
    command = {
        "sh": ("sh", "-c", "echo up; read x"),
        "python": (sys.executable, "-c", code),
    }
    with running(EXEC, "exec", bundle, "--", *command[children]) as said:
        assert said == "up"
        assert clear(0).bundles == ()
    assert len(clear(0).bundles) == 1


def test_what_killed_processes_left_goes(tmp_path: Path, home: Path) -> None:
    digest = placed(make(tmp_path, 0), 10)
    for name in (f".{digest[:16]}.flytune-abc", ".0123.flytune-abc"):
        (home / name / "half").mkdir(parents=True)
    (home / ".4567.lock").touch()
    names = {f".{digest[:16]}.flytune-abc", ".0123.flytune-abc", ".4567.lock"}
    assert set(clear(1, dry_run=True).leftovers) == names
    assert set(clear(1).leftovers) == names
    assert {path.name for path in home.iterdir()} == {
        *(digest[:16], f".{digest[:16]}.lock")
    }
    assert clear(1).leftovers == ()


def test_what_is_being_installed_stays(tmp_path: Path, home: Path) -> None:
    placed(make(tmp_path, 0), 10)
    (home / ".0123.flytune-abc").mkdir()
    code = (
        "import sys; from pathlib import Path\n"
        "from flytune.caches.placing import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    print('locked', flush=True); sys.stdin.read()\n"
    )
    with running(code, home / ".0123.lock") as said:
        assert said == "locked"
        assert clear(1).leftovers == ()
    assert (home / ".0123.flytune-abc").exists()
    assert set(clear(1).leftovers) == {".0123.flytune-abc", ".0123.lock"}


def test_a_directory_without_its_marker_can_go(tmp_path: Path, home: Path) -> None:
    digest = placed(make(tmp_path, 0), 10)
    (home / digest[:16] / "installed.json").unlink()
    (one,) = installed_bundles()
    assert one.digest == digest[:16]
    assert len(clear(0).bundles) == 1


def test_an_earlier_bundle_is_served_again_without_its_archive(
    tmp_path: Path, home: Path
) -> None:
    first, second = make(tmp_path, 0), make(tmp_path, 1)
    digest = placed(first, 10)
    placed(second, 11)
    first.unlink()
    installed = prepare(f"sha256:{digest[:9]}")
    assert (installed.status, installed.digest) == ("hit", digest)
    assert installed.directory == home / digest[:16]
    assert tree(installed.directory / "inductor").keys() == {
        name.removeprefix("inductor/") for name in FILES if "inductor/" in name
    }
    (newest, _) = installed_bundles()
    assert newest.digest == digest


def test_what_is_damaged_of_it_is_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = placed(make(tmp_path, 0), 10)
    graph = "inductor/fxgraph/ab/fabc/0123"
    (installed_path(digest) / graph).write_bytes(b"GRAPH")
    assert attempt(f"sha256:{digest}").set_aside == (graph,)
    assert capsys.readouterr().err.endswith(f"are set aside: {graph} (FT402)\n")


def test_a_manifest_that_was_changed_is_not_served(tmp_path: Path) -> None:
    digest = placed(make(tmp_path, 0), 10)
    manifest = installed_path(digest) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"model-0", b"model-9"))
    installed = attempt(f"sha256:{digest}")
    assert (installed.status, installed.code) == ("error", "FT217")


def test_digests_of_none_and_of_several(tmp_path: Path) -> None:
    digest = placed(make(tmp_path, 0), 10)
    other = installed_path(digest).with_name("other")
    subprocess.run(["cp", "-r", installed_path(digest), other], check=True)
    assert attempt("sha256:").code == "FT306"
    assert attempt("sha256:xyz").code == "FT306"
    assert attempt(f"sha256:{digest}").code == "FT307"
    with pytest.raises(FlytuneError, match="installed already"):
        prepare(f"sha256:{digest}", tmp_path / "into")

"""Installing where hosts are unlike a developer's: real users, mounts and kills."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import FILES, installable, tree

from flytune.caches import bundle_files
from flytune.caches.bundle import Bundle
from flytune.caches.install import attempt
from flytune.caches.prepare import prepare

# Python itself may be readable for this user alone: all that is imported late is loaded
# by a first installation.
AS_NOBODY = """
import os, sys
import flytune.caches
flytune.caches.install(sys.argv[1], sys.argv[1] + "-first")
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
"""
INSTALL = """
import flytune.caches, os, sys
installed = flytune.caches.install(sys.argv[1])
print(installed.status, installed.code, installed.directory)
"""
MOUNTS = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts and sets users")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every user can look into, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        # The key that the tests sign with, where every user can read it.
        (public,) = Path(os.environ["FLYTUNE_KEYS"]).glob("*.pub")
        shutil.copy(public, Path(name, "trusted.pub"))
        yield Path(name)


def run(
    code: str, bundle: Path, cwd: Path | None = None, **env: str | None
) -> subprocess.CompletedProcess[str]:
    env = {"FLYTUNE_STATUS_DIR": str(bundle.parent / "status"), **env}
    whole = {name: text for name, text in os.environ.items() if name not in env}
    whole |= {name: text for name, text in env.items() if text is not None}
    return subprocess.run(
        [sys.executable, "-c", code, str(bundle)],
        capture_output=True,
        text=True,
        check=True,
        env=whole,
        cwd=cwd,
    )


def installed_files(done: subprocess.CompletedProcess[str]) -> dict[str, bytes]:
    assert done.stderr == ""
    status, code, directory = done.stdout.split()
    assert (status, code) == ("hit", "None")
    return tree(Path(directory) / "inductor")


CACHES = {
    name.removeprefix("inductor/"): text
    for name, text in FILES.items()
    if name.startswith("inductor/")
}


@MOUNTS
@pytest.mark.parametrize("home", [None, "/", "/root"])
def test_a_user_that_no_table_lists(folder: Path, home: str | None) -> None:
    bundle = installable(folder, "b")
    for path in (bundle, *bundle.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    done = run(
        AS_NOBODY + INSTALL,
        bundle,
        HOME=home,
        FLYTUNE_HOME=None,
        FLYTUNE_KEYS=None,
        FLYTUNE_TRUST=str(folder / "trusted.pub"),
        TMPDIR=str(folder / "tmp"),
    )
    assert installed_files(done) == CACHES
    assert f"{folder}/tmp/flytune-12345/installed/" in done.stdout
    assert (folder / "tmp/flytune-12345").stat().st_uid == 12345


@MOUNTS
@pytest.mark.parametrize("squat", ["link", "owner", "mode"])
def test_a_temporary_home_that_another_made(folder: Path, squat: str) -> None:
    bundle = installable(folder)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    home = folder / "tmp/flytune-12345"
    if squat == "link":
        (folder / "theirs").mkdir(mode=0o700)
        os.chown(folder / "theirs", 12345, 12345)
        home.symlink_to(folder / "theirs")
    else:
        home.mkdir()
        os.chmod(home, 0o777)
        os.chown(home, 12345 if squat == "mode" else 54321, 12345)
    env = {"HOME": None, "FLYTUNE_HOME": None, "TMPDIR": str(folder / "tmp")}
    env |= {"FLYTUNE_KEYS": None, "FLYTUNE_TRUST": str(folder / "trusted.pub")}
    done = run(AS_NOBODY + INSTALL, bundle, None, **env)
    assert done.stdout == "error FT304 None\n"
    assert done.stderr.count("\n") == 1
    assert not (home / "installed").exists()


@MOUNTS
def test_a_root_that_is_read_only(folder: Path) -> None:
    bundle = installable(folder)
    (folder / "tmp").mkdir()
    script = (
        f"mount -t tmpfs tmpfs {folder}/tmp && mount -o remount,bind,ro / && "
        f'exec {sys.executable} -c "$0" {bundle}'
    )
    env = {**os.environ, "HOME": "/root", "TMPDIR": f"{folder}/tmp"}
    env.pop("FLYTUNE_HOME", None)
    code = INSTALL + (
        "print(sorted(os.listdir(f'{installed.directory}/inductor/fxgraph')))\n"
        "try:\n    open('/root/.written', 'w')\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, code],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    first, listed, refused = done.stdout.splitlines()
    assert first.startswith(f"hit None {folder}/tmp/flytune-0/installed/")
    assert (listed, refused) == ("['ab']", "Read-only file system")
    assert done.stderr == ""


@pytest.fixture
def mounted(folder: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A mount of a small file system, with the options that the test asks for."""
    place = folder / "mount"
    place.mkdir()
    options = f"mode=700,{request.param}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    subprocess.run(command, check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@MOUNTS
@pytest.mark.parametrize("mounted", ["noexec"], indirect=True)
def test_a_mount_without_exec_takes_no_libraries(folder: Path, mounted: Path) -> None:
    libraries = {**FILES, "inductor/ab/cab.main.so": b"\x7fELF"}
    bundle = installable(folder, files=libraries)
    done = run(INSTALL, bundle, FLYTUNE_HOME=str(mounted))
    assert done.stdout == "error FT305 None\n"
    assert done.stderr.startswith("flytune: bundle not used: caches would lie on a mou")
    # Without one nothing is kept from being loaded.
    plain = installable(folder, "plain.tar.zst")
    assert installed_files(run(INSTALL, plain, FLYTUNE_HOME=str(mounted))) == CACHES


@MOUNTS
def test_a_bundle_on_read_only_media(folder: Path) -> None:
    (folder / "media").mkdir()
    installable(folder / "media", "b")
    media = str(folder / "media")
    subprocess.run(["mount", "--bind", "-o", "ro", media, media], check=True)
    try:
        with pytest.raises(OSError, match="Read-only"):
            (folder / "media/b/x").touch()
        home = str(folder / "home")
        done = run(INSTALL, folder / "media/b", FLYTUNE_HOME=home)
        assert installed_files(done) == CACHES
        # What serves is a copy, to which serving may add.
        (Path(done.stdout.split()[2]) / "inductor/new").touch()
    finally:
        subprocess.run(["umount", media], check=True)


def test_a_home_that_cannot_be_written(folder: Path) -> None:
    bundle = installable(folder)
    (folder / "home").write_text("a file is in the way")
    done = run(INSTALL, bundle, FLYTUNE_HOME=str(folder / "home"))
    assert done.stdout == "error FT302 None\n"
    assert done.stderr.startswith("flytune: bundle not used: cannot write: ")


def test_a_working_directory_that_is_gone(folder: Path) -> None:
    bundle = installable(folder)
    (folder / "gone").mkdir()
    code = "import os, shutil; shutil.rmtree(os.getcwd())\n" + INSTALL
    done = run(code, bundle, folder / "gone", FLYTUNE_HOME=str(folder / "home"))
    assert installed_files(done) == CACHES
    elsewhere = run(INSTALL, bundle, Path("/"), FLYTUNE_HOME=str(folder / "home"))
    assert elsewhere.stdout == done.stdout


def test_no_compiler_on_the_path(folder: Path) -> None:
    bundle = installable(folder)
    (folder / "bin").mkdir()
    env = {"PATH": str(folder / "bin"), "FLYTUNE_HOME": str(folder / "home")}
    done = run(INSTALL, bundle, None, **env)
    # Inductor's keys hold the compiler: it would find nothing, and say nothing.
    assert done.stdout == "miss FT102 None\n"
    assert "software.compiler: built for `g++" in done.stderr
    assert "here `absent`" in done.stderr


def test_killed_at_any_moment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = folder / "home"
    monkeypatch.setenv("FLYTUNE_HOME", str(home))
    files = {f"inductor/{i}/x": os.urandom(40_000) for i in range(60)}
    bundle = installable(folder, files=files)
    command = [sys.executable, "-c", INSTALL, str(bundle)]
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    whole_s = time.monotonic() - start
    place = home / "installed" / Bundle.open(bundle).digest[:16]
    killed = 0
    for moment in range(12):
        if moment % 2:
            # The next one mends.
            (place / "inductor/7/x").write_bytes(b"damaged")
        else:
            subprocess.run(["rm", "-rf", str(place)], check=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(whole_s * (moment + 1) / 14)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        if place.exists():
            names = {path.name for path in place.iterdir()}
            assert {"installed.json", "activation.json", "manifest.json"} <= names
            assert len(list((place / "inductor").rglob("x"))) == 60
        assert attempt(bundle).status == "hit"
        assert tree(place / "inductor") == {
            name.removeprefix("inductor/"): text for name, text in files.items()
        }
    assert killed > 0
    assert [p.name for p in place.parent.iterdir() if ".flytune-" in p.name] == []


def test_blocks_are_shared_where_the_file_system_can(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(folder / "home"))
    bundle = installable(folder, "b")
    shared = []

    def share(target: int, request: int, source: int) -> int:
        # What FICLONE does, but for the sharing.
        assert request == 0x40049409
        os.write(target, os.pread(source, 1 << 20, 0))
        os.lseek(target, 0, os.SEEK_SET)
        shared.append(target)
        return 0

    monkeypatch.setattr(bundle_files.fcntl, "ioctl", share)
    directory = prepare(bundle).directory
    assert directory is not None
    assert len(shared) == len(CACHES)
    assert tree(directory / "inductor") == CACHES
    # What it got is checked, not what the bundle holds.
    (bundle / "inductor/fxgraph/ab/fabc/0123").write_bytes(b"GRAPH")
    assert attempt(bundle, folder / "other").code == "FT217"

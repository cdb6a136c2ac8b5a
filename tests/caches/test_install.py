import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundles import FILES, elsewhere, installable, python, tree

from flytune.caches.bundle import Bundle
from flytune.caches.install import exec_environment
from flytune.caches.placing import place
from flytune.caches.prepare import Installed, InstallStatus, prepare
from flytune.shapes.errors import FlytuneError

CACHES = {name: text for name, text in FILES.items() if name.startswith("inductor/")}
INSTALL = "import flytune.caches as c, sys; i = c.install(sys.argv[1]); "


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "installed"


def placed(bundle: Path) -> Path:
    directory = prepare(bundle).directory
    assert directory is not None
    return directory


def test_environment_of_the_process(tmp_path: Path, home: Path) -> None:
    code = INSTALL + "import os, json; print(json.dumps(dict(os.environ)))"
    bundle = installable(tmp_path)
    live = json.loads(python(code, bundle, TRITON_CACHE_DIR="/elsewhere").stdout)
    directory = home / Bundle.open(bundle).digest[:16]
    inductor = directory / "inductor"
    assert live["TORCHINDUCTOR_CACHE_DIR"] == str(inductor)
    assert live["TRITON_CACHE_DIR"] == str(inductor / "triton" / "0")
    assert live["FLYDSL_RUNTIME_CACHE_DIR"] == str(inductor / "flydsl_compile_cache")
    assert live["VLLM_CACHE_ROOT"] == str(inductor / "vllm")
    assert live["OMP_NUM_THREADS"] == "1"
    assert tree(directory / "inductor") == {
        name.removeprefix("inductor/"): text for name, text in CACHES.items()
    }
    assert directory.stat().st_mode & 0o777 == 0o700


def test_heavy_packages_are_not_imported(tmp_path: Path) -> None:
    code = INSTALL + (
        "heavy = {'torch', 'ray', 'flydsl', 'pyarrow', 'numpy', 'transformers'};"
        "print(i.status, heavy & set(sys.modules))"
    )
    assert python(code, installable(tmp_path)).stdout == "hit set()\n"


def test_miss_changes_nothing(tmp_path: Path, home: Path) -> None:
    code = (
        "import os; before = dict(os.environ);"
        + INSTALL
        + "print(i.status, i.misses[0].part, dict(os.environ) == before)"
    )
    live = python(code, installable(tmp_path, target=elsewhere()))
    assert live.stdout == "miss hardware.isa True\n"
    assert live.stderr.startswith("flytune: bundle not used: hardware.isa: built for ")
    assert live.stderr.count("\n") == 1
    assert not home.exists()


@pytest.mark.parametrize(
    "policy",
    [{"env": []}, {"inductor": 3}, {"env": {"A=B": ""}}, {"env": {"A": 1}}],
)
def test_malformed_policy(tmp_path: Path, home: Path, policy: dict[str, Any]) -> None:
    with pytest.raises(FlytuneError, match="manifest policy"):
        prepare(installable(tmp_path, policy=policy))
    assert not home.exists()


def test_corrupt_bundle(tmp_path: Path, home: Path) -> None:
    bundle = installable(tmp_path, "b")
    (bundle / "inductor/cache/5e1f").write_bytes(b"{}")
    with pytest.raises(FlytuneError, match="another size"):
        prepare(bundle)
    assert [path.suffix for path in home.iterdir()] == [".lock"]


def test_into_a_directory(tmp_path: Path) -> None:
    bundle = installable(tmp_path)
    assert prepare(bundle, tmp_path / "new" / "x").directory == tmp_path / "new" / "x"
    (tmp_path / "empty").mkdir()
    assert prepare(bundle, tmp_path / "empty").directory == tmp_path / "empty"
    assert prepare(bundle, tmp_path / "empty").mended == ()


def test_into_a_directory_of_something_else(tmp_path: Path) -> None:
    bundle = installable(tmp_path)
    with pytest.raises(FlytuneError, match="holds something else"):
        prepare(bundle, tmp_path)
    prepare(bundle, tmp_path / "x")
    other = installable(tmp_path, "other.tar.zst", timed_on="cpu")
    with pytest.raises(FlytuneError, match="holds something else"):
        prepare(other, tmp_path / "x")


def test_directory_that_others_can_write(tmp_path: Path) -> None:
    bundle = installable(tmp_path)
    placed(bundle).chmod(0o777)
    with pytest.raises(FlytuneError, match="written by other users"):
        prepare(bundle)


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o1777, False)])
def test_into_a_folder_that_others_can_write(
    tmp_path: Path, mode: int, refused: bool
) -> None:
    bundle = installable(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    if refused:
        with pytest.raises(FlytuneError, match=f"written by other users: {shared}"):
            prepare(bundle, shared / "x")
        assert list(shared.iterdir()) == []
    else:
        for _ in range(2):
            assert prepare(bundle, shared / "x").directory == shared / "x"


def damage_text(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"x" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def damage_kind(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "x").touch()


def damage_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


@pytest.mark.parametrize("damage", [damage_text, Path.unlink, damage_kind, damage_link])
@pytest.mark.parametrize("name", ["b.tar.zst", "b"])
def test_damaged_file_is_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Any
) -> None:
    bundle = installable(tmp_path, name)
    path = placed(bundle) / "inductor/cache/5e1f"
    (path.parent / "tuned_since").write_bytes(b"kept")
    damage(path)
    assert prepare(bundle).mended == ("inductor/cache/5e1f",)
    assert capsys.readouterr().err.count("mended 1 files") == 1
    assert path.read_bytes() == FILES["inductor/cache/5e1f"]
    assert not path.is_symlink()
    assert (path.parent / "tuned_since").read_bytes() == b"kept"
    assert prepare(bundle).mended == ()
    assert [p.name for p in path.parents[2].parent.glob(".*.flytune-*")] == []


@pytest.mark.parametrize("name", ["installed.json", "activation.json"])
@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff"])
def test_damaged_bookkeeping_is_mended(tmp_path: Path, name: str, text: bytes) -> None:
    bundle = installable(tmp_path)
    path = placed(bundle) / name
    whole = json.loads(path.read_bytes())
    path.write_bytes(text)
    assert prepare(bundle).mended == (name,)
    assert json.loads(path.read_bytes()).keys() == whole.keys()
    assert prepare(bundle).mended == ()


def test_large_bundle_is_trusted_by_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flytune.caches.hook.flytune_files._DIGEST_LIMIT_BYTES", 1)
    bundle = installable(tmp_path)
    path = placed(bundle) / "inductor/cache/5e1f"
    damage_text(path)
    assert prepare(bundle).mended == ()
    os.utime(path)
    assert prepare(bundle).mended == ("inductor/cache/5e1f",)


def test_eight_at_once(tmp_path: Path, home: Path) -> None:
    files = {f"inductor/{i}": os.urandom(50_000) for i in range(100)}
    bundle = installable(tmp_path, files=files)
    code = INSTALL + "print(i.status, i.mended)"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(bundle)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    assert [p.communicate()[0] for p in running] == ["hit ()\n"] * 8
    directory = home / Bundle.open(bundle).digest[:16]
    assert sorted(p.name for p in home.iterdir()) == sorted(
        [f".{directory.name}.lock", directory.name]
    )
    assert tree(directory / "inductor") == {
        name.removeprefix("inductor/"): text for name, text in files.items()
    }


def test_killed_in_the_middle(tmp_path: Path, home: Path) -> None:
    bundle = installable(tmp_path)
    code = """
import os, signal, sys
from pathlib import Path
from flytune.caches import bundle, install
copy = bundle._copy
def copy_some(name, *rest):
    copy(name, *rest)
    if name == "inductor/empty":
        os.kill(os.getpid(), signal.SIGKILL)
bundle._copy = copy_some
install(sys.argv[1])
"""
    killed = subprocess.run([sys.executable, "-c", code, str(bundle)], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = [path for path in home.iterdir() if ".flytune-" in path.name]
    assert [(path / "inductor/empty").exists() for path in left] == [True]
    directory = placed(bundle)
    assert tree(directory / "inductor").keys() == {
        name.removeprefix("inductor/") for name in CACHES
    }
    assert not left[0].exists()


def test_after_inductor(tmp_path: Path) -> None:
    code = """
import sys, types
sys.modules["torch._inductor"] = types.ModuleType("torch._inductor")
import flytune.caches
try:
    print(flytune.caches.install(sys.argv[1]).status)
    flytune.caches.install(sys.argv[1], strict=True)
except Exception as error:
    print(error, "|", error.hint)
"""
    done = python(code, installable(tmp_path))
    assert done.stdout == (
        "error\n"
        "torch._inductor is imported already | "
        "call flytune.caches.install before the first import of torch\n"
    )
    assert done.stderr == (
        "flytune: bundle not used: torch._inductor is imported already (FT106)\n"
    )


def test_environment_of_a_command(tmp_path: Path) -> None:
    bundle = installable(tmp_path)
    before = dict(os.environ)
    environment = exec_environment(prepare(bundle, command=True))
    assert dict(os.environ) == before
    assert environment["FLYTUNE_INSTALLED"] == str(placed(bundle))
    assert environment["PYTHONPATH"].split(os.pathsep)[0].endswith("/caches/hook")
    assert environment["OMP_NUM_THREADS"] == "1"


def test_environment_of_a_command_after_a_miss(tmp_path: Path) -> None:
    missed = Installed(InstallStatus.MISS, tmp_path, ())
    with pytest.raises(FlytuneError, match="bundle was not installed"):
        exec_environment(missed)


def test_place_beside_a_full_digest_of_another(tmp_path: Path, home: Path) -> None:
    bundle = Bundle.open(installable(tmp_path))
    squatter = home / bundle.digest[:16]
    squatter.mkdir(parents=True, mode=0o700)
    (squatter / "x").touch()
    home.chmod(0o700)
    placed = place(bundle, None)
    assert (placed.directory, placed.mended) == (squatter, ("installed.json",))
    assert not (squatter / "x").exists()

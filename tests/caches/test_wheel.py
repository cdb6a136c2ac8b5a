"""Wheels of small bundles, as pip itself and importlib.metadata take them."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from bundles import elsewhere, installable

from flytune.caches.bundle import Bundle
from flytune.caches.target import Target
from flytune.caches.wheel import make_wheel
from flytune.shapes.errors import FlytuneError

FLYTUNE = ("-c", "from flytune.tuner.cli import main; main(prog_name='flytune')")
FIND = """
import sys, flytune.caches
for found in flytune.caches.find_bundles():
    print(found.name, found.version, found.path)
print(sorted(name for name in sys.modules if name.startswith("flytune_")))
"""


def run(*command: object, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Python process that finds what is installed into a folder."""
    paths = [*([] if site is None else [str(site)]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )


def pip_install(wheel: Path, site: Path) -> Path:
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--no-index")
    done = run(*pip, "--no-deps", "--target", site, wheel)
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.parametrize("name", ["b.tar.zst", "b"])
def test_wheel_is_the_same_bytes_each_time(tmp_path: Path, name: str) -> None:
    bundle = installable(tmp_path, name)
    wheels = [make_wheel(bundle, tmp_path / out) for out in ("one", "two")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    slug = Target.here(threads=1).slug.replace("-", "_")
    tags = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tag = f"{tags}-{tags}-linux_x86_64"
    assert wheels[0].name == f"flytune_tiny_{slug}-2026.1.2.30405-{tag}.whl"
    assert [p.name for p in (tmp_path / "one").iterdir()] == [wheels[0].name]


def test_pip_installs_it_and_the_loader_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    bundle = installable(tmp_path, "b")
    site = pip_install(make_wheel(bundle, tmp_path), tmp_path / "site")
    name, version, path, *loaded = run("-c", FIND, site=site).stdout.split()
    assert name == f"flytune-tiny-{Target.here(threads=1).slug}"
    assert (version, loaded) == ("2026.1.2.30405", ["[]"])
    assert Bundle.open(path).heads() == Bundle.open(bundle).heads()
    Bundle.open(path).check()
    for words in (("--installed", "--json"), ("--installed", "TINY", "--json")):
        done = run(*FLYTUNE, "install", *words, site=site)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["bundle"] == path
    code = "import os, sys; print(os.environ['FLYTUNE_INSTALLED'], sys.argv[1:])"
    command = ("--", sys.executable, "-c", code, "--installed")
    for model in ((), ("tiny",)):
        done = run(*FLYTUNE, "exec", "--installed", *model, *command, site=site)
        assert done.returncode == 0, done.stderr
        assert str(tmp_path / "home") in done.stdout
        assert done.stdout.endswith("['--installed']\n")


def test_pip_checks_and_uninstalls_it(tmp_path: Path) -> None:
    wheel = make_wheel(installable(tmp_path), tmp_path, name="my.bundle")
    venv = tmp_path / "venv"
    assert run("-m", "venv", "--without-pip", venv).returncode == 0
    pip = ("-m", "pip", "--disable-pip-version-check", "--python", venv)
    for words in (("install", "--no-index", wheel), ("check",)):
        done = run(*pip, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    shown = run(*pip, "show", "--files", "my-bundle").stdout
    assert "Summary: Prebuilt Inductor caches of tiny for " in shown
    assert "my_bundle/bundle.tar.zst" in shown
    assert run(*pip, "uninstall", "-y", "my-bundle").returncode == 0
    assert list(venv.rglob("my_bundle*")) == []


def test_record_holds_each_file(tmp_path: Path) -> None:
    wheel = make_wheel(installable(tmp_path), tmp_path, name="x", version="1.0")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = archive.read("x-1.0.dist-info/RECORD").decode().splitlines()
        assert archive.testzip() is None
    assert [line.partition(",")[0] for line in record] == names
    assert all(line.count(",") == 2 for line in record)


def test_bundle_for_another_host_is_not_taken(tmp_path: Path) -> None:
    site = tmp_path / "site"
    far = installable(tmp_path, "far.tar.zst", target=elsewhere())
    assert run(*FLYTUNE, "install", "--installed").stderr.startswith(
        "error: no package of this environment brings a bundle (FT308)\n"
    )
    pip_install(make_wheel(far, tmp_path), site)
    done = run(*FLYTUNE, "install", "--installed", site=site)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no bundle for this host: nearest is cpu-" in done.stderr
    assert "hardware.isa: built for `amx_tile`" in done.stderr
    done = run(*FLYTUNE, "install", "--installed", "other", site=site)
    assert "no package brings a bundle of `other`: there is flytune-" in done.stderr
    # Serving goes on without one, unless it is to be strict.
    command = ("--installed", "--", sys.executable, "-c", "print(1)")
    done = run(*FLYTUNE, "exec", *command, site=site)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "nearest is cpu-" in done.stderr
    assert done.stderr.splitlines()[0].endswith(" (FT308)")
    done = run(*FLYTUNE, "exec", "--strict", *command, site=site)
    assert (done.returncode, done.stdout) == (1, "")


def test_one_of_several_is_asked_for_by_its_name(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("one", "two"):
        bundle = installable(tmp_path, name, model={"name": name})
        pip_install(make_wheel(bundle, tmp_path, name=name), site)
    done = run(*FLYTUNE, "exec", "--strict", "--installed", "--", "true", site=site)
    assert "several bundles for this host" in done.stderr
    assert done.stderr.splitlines()[0].endswith(" (FT308)")
    assert "--for-host" not in done.stderr
    words = ("--installed", "two", "--", sys.executable, "-c", "print(1)")
    done = run(*FLYTUNE, "exec", "--strict", *words, site=site)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize(
    "words",
    [("install",), ("install", "b", "--installed"), ("exec", "--installed"), ("exec",)],
)
def test_either_a_bundle_or_an_installed_one(words: tuple[str, ...]) -> None:
    assert run(*FLYTUNE, *words).returncode == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "a b"}, "not the name of a distribution: `a b`"),
        ({"version": "one"}, "not a version in PEP 440's normal form: `one`"),
    ],
)
def test_bad_names_and_versions(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(FlytuneError, match=words):
        make_wheel(installable(tmp_path), tmp_path, **given)


def test_faults(tmp_path: Path) -> None:
    bundle = installable(tmp_path, "b")
    make_wheel(bundle, tmp_path)
    with pytest.raises(FlytuneError, match="output exists"):
        make_wheel(bundle, tmp_path)
    (bundle / "inductor/cache/5e1f").write_bytes(b'{"cache": []}')
    with pytest.raises(FlytuneError, match="another digest"):
        make_wheel(bundle, tmp_path, version="2")
    target = Target.here(threads=1).to_json()
    target["software"]["python_abi"] = "pypy310-pp73-x86_64-linux-gnu"
    pypy = installable(tmp_path, "pypy.tar.zst", target=target)
    with pytest.raises(FlytuneError, match="no wheel is for this Python ABI: `pypy310"):
        make_wheel(pypy, tmp_path)

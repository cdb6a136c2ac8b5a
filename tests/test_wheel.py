"""The wheel as a host without this checkout, and without the extras, has it."""

import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import distributions, entry_points
from pathlib import Path

import pytest
from small_bundles import small_bundle

from flytune.tuner.cli import EXTRA_OF

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

# A base installation's `flytune`: what only an extra brings cannot be imported.
BASE_FLYTUNE = """
import sys

absent, site = sys.argv.pop(1).split(), sys.argv.pop(1)

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import flytune.tuner.cli
assert flytune.tuner.cli.__file__.startswith(site), flytune.tuner.cli.__file__
flytune.tuner.cli.main(prog_name="flytune")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: setuptools leaves its `build/` among the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("shapes", "caches", "tuner"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=skip)
    build = ("wheel", "--no-deps", "--no-build-isolation", "--no-index")
    log = run(*PIP, *build, "--wheel-dir", str(folder), str(source))
    (made,) = folder.glob("*.whl")
    assert "error" not in log.lower()
    return made


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone, beside what this environment has."""
    folder = tmp_path_factory.mktemp("site")
    target = ("--no-deps", "--no-index", "--target", str(folder))
    run(*PIP, "install", *target, str(wheel))
    return folder


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def flytune(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the wheel's `flytune` as a host with the base alone would."""
    return subprocess.run(
        [sys.executable, "-c", BASE_FLYTUNE, " ".join(EXTRA_OF), str(site), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=site,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(site)},
    )


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_it_holds_one_name_and_every_source(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    sources = {
        f"flytune/{file.relative_to(ROOT)}"
        for folder in ("shapes", "caches", "tuner")
        for pattern in (
            *("*.py", "py.typed", "models/*.json", "profiles/*.json"),
            *("report/*.css", "report/*.html", "report/*.js", "smart/*.parquet"),
        )
        for file in (ROOT / folder).rglob(pattern)
    }
    assert names == sources
    assert "flytune/caches/hook/sitecustomize.py" in names
    assert "flytune/shapes/models/Qwen3-4B.json" in names
    assert "flytune/caches/profiles/h200.json" in names
    assert {f"flytune/{n}/py.typed" for n in ("shapes", "caches", "tuner")} < names


def test_the_base_is_what_a_serving_host_needs(wheel: Path) -> None:
    requires = metadata(wheel).get_all("Requires-Dist", [])
    base = sorted(line for line in requires if "extra ==" not in line)
    assert base == ["click>=8.1", "cryptography", "torch", "zstandard"]


def test_no_requirement_of_an_extra_changes_torch(wheel: Path) -> None:
    requires = metadata(wheel).get_all("Requires-Dist", [])
    named = [re.split(r"[^\w.-]", line)[0] for line in requires]
    assert named.count("torch") == 1


def test_metadata_names_licence_extras_and_command(wheel: Path, site: Path) -> None:
    fields = metadata(wheel)
    assert fields["Name"] == "flytune"
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Requires-Python"] == ">=3.11"
    assert fields.get_all("Provides-Extra") == ["build", "cluster", "amd", "ship"]
    (command,) = entry_points(group="console_scripts", name="flytune")
    assert command.value == "flytune.tuner.cli:main"
    assert (site / "bin" / "flytune").exists()


def test_vllm_finds_its_plugin(site: Path) -> None:
    (wheel,) = distributions(name="flytune", path=[str(site)])
    (plugin,) = wheel.entry_points.select(group="vllm.general_plugins")
    assert plugin.value == "flytune.caches.vllm_plugin:register"
    assert callable(plugin.load())


def test_the_base_lists_its_commands(site: Path) -> None:
    done = flytune(site, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "List the GEMMs that a model runs." in done.stdout


@pytest.mark.parametrize("command", ["inspect", "install", "exec", "verify"])
def test_the_base_has_what_reads_a_bundle(command: str, site: Path) -> None:
    done = flytune(site, command, "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["shapes", "build"])
def test_what_needs_an_extra_says_which_to_install(command: str, site: Path) -> None:
    output = ("--out", str(site / "bundle")) if command == "build" else ()
    done = flytune(site, command, "--model", "Qwen3-4B", "--tokens", "1", *output)
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = done.stderr.splitlines()[-2:]
    assert re.match("error: .* needs ", error)
    assert hint == "hint: pip install 'flytune[build]'"
    assert not (site / "bundle").exists()


def test_registry_needs_the_extra_that_it_names(site: Path) -> None:
    done = flytune(site, "push", "bundle", "localhost:5000/team/tiny")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "error: flytune push needs oras, which is not installed",
        "hint: pip install 'flytune[ship]'",
    ]


def test_the_base_takes_a_bundle_from_a_folder(site: Path, tmp_path: Path) -> None:
    bundle, stick = small_bundle(tmp_path), f"oci:{tmp_path / 'stick'}"
    for words in (("push", str(bundle), stick), ("pull", stick, "--for-host")):
        done = flytune(site, *words)
        assert done.returncode == 0, done.stderr
    (pulled,) = site.glob("tiny.*.tar.zst")
    assert pulled.read_bytes() == bundle.read_bytes()

"""What the plugin does where there is no vLLM to ask; `tests/vllm` has the engines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import installable

from flytune.caches.bundle import Bundle
from flytune.caches.install import exec_environment
from flytune.caches.prepare import prepare
from flytune.caches.target import Target

REGISTER = "from flytune.caches.vllm_plugin import register; register()\n"
# As vLLM has it by then.
INDUCTOR = "import os, sys, torch._inductor.codecache\n"
TELL = "print(os.environ.get('VLLM_CACHE_ROOT'))\n"
COMPILE = "torch.compile(lambda x: x.sin() + 1)(torch.ones(4))\n"


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    return tmp_path / "home" / "installed"


def test_without_a_bundle_it_does_nothing() -> None:
    code = (
        "import os, sys; before = dict(os.environ)\n"
        + REGISTER
        + "print('flytune.caches.vllm_watch' in sys.modules, sys.meta_path[0])\n"
        + "print(before == dict(os.environ))"
    )
    done = run(code)
    assert done.stderr == ""
    assert "flytune" not in done.stdout.splitlines()[0].partition(" ")[2].lower()
    assert done.stdout.startswith("False ")
    assert done.stdout.endswith("True\n")


def test_with_one_it_is_installed(tmp_path: Path, home: Path) -> None:
    bundle = installable(tmp_path)
    done = run("import os\n" + REGISTER + TELL, FLYTUNE_BUNDLE=str(bundle))
    root = home / Bundle.open(bundle).digest[:16] / "inductor" / "vllm"
    assert (done.stdout, done.stderr) == (f"{root}\n", "")


def test_a_command_of_another_bundle_serves_from_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTUNE_BUNDLE", "other.tar.zst")
    assert "FLYTUNE_BUNDLE" not in exec_environment(prepare(installable(tmp_path)))


@pytest.mark.parametrize("strict", ["0", "1"])
def test_another_build_of_torch(strict: str, tmp_path: Path) -> None:
    target = Target.here(threads=1, torch_key="0" * 64).to_json()
    bundle = installable(tmp_path, target=target)
    env = {"FLYTUNE_BUNDLE": str(bundle), "FLYTUNE_STRICT": strict}
    done = run(INDUCTOR + REGISTER + TELL, **env)
    said = f"software.torch_key: built for `{'0' * 64}`, here "
    assert f"flytune: bundle not used: {said}" in done.stderr
    if strict == "1":
        assert done.returncode == 1
        assert f"FlytuneError: bundle is not used: {said}" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "None\n")


@pytest.mark.parametrize("strict", ["0", "1"])
def test_no_bundle_there(strict: str, tmp_path: Path) -> None:
    env = {"FLYTUNE_BUNDLE": str(tmp_path / "b"), "FLYTUNE_STRICT": strict}
    done = run("import os\n" + REGISTER + TELL, **env)
    assert done.returncode == int(strict)
    assert "cannot read bundle: " in done.stderr
    assert done.stdout == ("" if strict == "1" else "None\n")


def test_strict_compiles_nothing(tmp_path: Path) -> None:
    env = {"FLYTUNE_BUNDLE": str(installable(tmp_path)), "FLYTUNE_STRICT": "1"}
    done = run(INDUCTOR + REGISTER + COMPILE, **env)
    assert done.returncode == 1
    assert "FlytuneError: vLLM missed the bundle: 1 graph lowered" in done.stderr
    assert not list((tmp_path / "home").rglob("*.main.*"))

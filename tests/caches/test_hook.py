"""The import hook, in real processes that import the real torch."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builds import FLYDSL_HIDDEN
from bundles import manifest, signed, stage

from flytune.caches.hook import flytune_hook
from flytune.caches.install import exec_environment
from flytune.caches.prepare import prepare
from flytune.caches.target import Target

POLICY = {
    "env": {"OMP_NUM_THREADS": "1", "FLYTUNE_TEST": "set"},
    "inductor": {"max_autotune": True, "cpp.cxx": [None, "g++"]},
    "dynamo": {"recompile_limit": 17},
    "threads": 1,
}
REPORT = """
import json, os, sys, threading
import torch, torch._dynamo.config as dynamo, torch._inductor.config as inductor
import torch._inductor.codecache
def row():
    return [inductor.max_autotune, list(inductor.cpp.cxx), dynamo.recompile_limit]
seen = []
thread = threading.Thread(target=lambda: seen.append(row()))
thread.start()
thread.join()
print(json.dumps({
    "main": row(), "thread": seen[0], "env": dict(os.environ),
    "hooks": [hasattr(f, "flytune_directory") for f in sys.meta_path].count(True),
}))
"""
INSTALL = "import flytune.caches, sys; flytune.caches.install(sys.argv[1])\n"
SET = [True, [None, "g++"], 17]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TORCHINDUCTOR_MAX_AUTOTUNE", raising=False)


@pytest.fixture(scope="module")
def key() -> str:
    # Not in this process: Inductor sets variables when it is imported.
    code = "from flytune.caches.inductor import torch_key; print(f'\"{torch_key()}\"')"
    return str(run(code)[0])


def make(folder: Path, key: str, **changes: Any) -> Path:
    target = Target.here(threads=1, torch_key=key).to_json()
    policy = {**POLICY, **changes}
    whole = manifest(policy=policy, target=target)
    return signed(stage(folder / "staged"), whole, folder / "b.tar.zst")


def run(
    code: str, *args: object, env: Mapping[str, str] | None = None
) -> tuple[Any, str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(env or {})},
    )
    live = json.loads(done.stdout.splitlines()[-1])
    return live, done.stderr


def settings(live: Any) -> Any:
    """What a process saw; Inductor itself sets its cache directory when asked."""
    environment = dict(live["env"])
    cache_dir = environment.pop("TORCHINDUCTOR_CACHE_DIR", "")
    return {**live, "env": environment, "installed": "installed" in cache_dir}


def test_policy_reaches_every_thread(tmp_path: Path, key: str) -> None:
    live, log = run(INSTALL + REPORT, make(tmp_path, key))
    assert (live["main"], live["thread"], live["hooks"], log) == (SET, SET, 0, "")
    assert live["env"]["FLYTUNE_TEST"] == "set"


def test_other_torch_source_sets_all_back(tmp_path: Path) -> None:
    plain, _ = run(REPORT)
    live, log = run(INSTALL + REPORT, make(tmp_path, "ab" * 32))
    assert log.startswith("flytune: bundle not used: software.torch_key: built for `ab")
    assert log.count("\n") == 1
    assert settings(live) == settings(plain)


@pytest.mark.parametrize("part", ["torch", "torch_git", "python_abi"])
def test_command_of_another_build(tmp_path: Path, key: str, part: str) -> None:
    target = Target.here(threads=1, torch_key=key).to_json()
    target["software"][part] = "other"
    whole = manifest(policy=POLICY, target=target)
    bundle = signed(stage(tmp_path / "staged"), whole, tmp_path / "b.tar.zst")
    live, log = run(REPORT, env=exec_environment(prepare(bundle, command=True)))
    assert log.startswith(f"flytune: bundle not used: software.{part}: built for `oth")
    assert log.count("\n") == 1
    assert live["main"] != SET


def hook_folder() -> str:
    return str(Path(flytune_hook.__file__).parent)


def hook_path() -> str:
    """The hook's folder before what the tests themselves are found by."""
    paths = [hook_folder(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.pathsep.join(paths)


def test_a_setting_that_torch_lacks(tmp_path: Path, key: str) -> None:
    bundle = make(tmp_path, key, inductor={"max_autotune": True, "no_such": 1})
    live, log = run(INSTALL + REPORT, bundle)
    assert log == (
        "flytune: bundle not used: torch has no setting that the policy names: "
        "`no_such` (FT105)\n"
    )
    assert live["main"][0] is False
    assert "FLYTUNE_TEST" not in live["env"]


def test_a_program_may_set_what_it_likes(tmp_path: Path, key: str) -> None:
    code = (
        INSTALL + "import torch._dynamo.config as d; d.recompile_limit = 3\n" + REPORT
    )
    live, log = run(code, make(tmp_path, key))
    assert (live["main"][2], log) == (3, "")


def test_a_variable_that_the_program_changed_stays(tmp_path: Path) -> None:
    code = INSTALL + "import os; os.environ['FLYTUNE_TEST'] = 'mine'\n" + REPORT
    live, _ = run(code, make(tmp_path, "ab" * 32))
    assert live["env"]["FLYTUNE_TEST"] == "mine"


def test_asking_for_torch_does_not_spend_the_hook(tmp_path: Path) -> None:
    code = INSTALL + "import importlib.util as u; u.find_spec('torch')\n" + REPORT
    _, log = run(code, make(tmp_path, "ab" * 32))
    assert "software.torch_key" in log


def test_a_loader_that_lets_nobody_watch(tmp_path: Path, key: str) -> None:
    code = (
        INSTALL
        + """
import importlib.machinery, json
class Fixed:
    __slots__ = ()
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.version = 1
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            return importlib.machinery.ModuleSpec(name, Fixed())
sys.meta_path.append(Finder())
sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, type)]
import torch
import os
print(json.dumps({"torch": torch.version, "env": dict(os.environ)}))
"""
    )
    live, log = run(code, make(tmp_path, key))
    assert log == (
        "flytune: bundle not used: cannot watch the import of torch (FT107)\n"
    )
    assert live["torch"] == 1
    assert "FLYTUNE_TEST" not in live["env"]


def test_install_twice(tmp_path: Path, key: str) -> None:
    live, log = run(INSTALL + INSTALL + REPORT, make(tmp_path, key))
    assert (live["main"], live["hooks"], log) == (SET, 0, "")


def test_command_is_held_to_the_policy(tmp_path: Path, key: str) -> None:
    env = exec_environment(prepare(make(tmp_path, key), command=True))
    live, log = run(REPORT, env=env)
    assert (live["main"], live["thread"], log) == (SET, SET, "")


def test_command_of_another_torch(tmp_path: Path) -> None:
    env = exec_environment(prepare(make(tmp_path, "ab" * 32), command=True))
    plain, _ = run(REPORT)
    live, log = run(REPORT, env=env)
    assert log.count("\n") == 1
    assert "software.torch_key" in log
    assert settings(live) == settings(plain)


def test_children_of_install(tmp_path: Path, key: str) -> None:
    code = (
        "import flytune.caches, subprocess, sys\n"
        "flytune.caches.install(sys.argv[1], children=True)\n"
        "subprocess.run([sys.executable, '-c', sys.argv[2]], check=True)\n"
    )
    live, log = run(code, make(tmp_path, key), REPORT)
    assert (live["main"], log) == (SET, "")


def hold(folder: Path, text: str) -> None:
    """Be an installed directory that holds torch to this."""
    (folder / "activation.json").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    marker = {"bundle": "", "files": {}, "activation": digest}
    (folder / "installed.json").write_text(json.dumps(marker))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "FileNotFoundError"),
        ("{", "JSONDecodeError"),
        ("{}", "KeyError"),
        ("other", "not as it was installed"),
    ],
)
def test_damaged_activation_never_stops_the_program(
    tmp_path: Path, text: str | None, said: str
) -> None:
    if text is not None:
        hold(tmp_path, text)
    if text == "other":
        (tmp_path / "activation.json").write_text("{}")
    env = {"FLYTUNE_INSTALLED": str(tmp_path), "PYTHONPATH": hook_folder()}
    live, log = run(REPORT, env=env)
    assert live["main"] != SET
    assert said in log
    assert log.count("\n") == 1


@pytest.mark.parametrize("changes", ["{", "[]", '{"A": 1}'])
def test_damaged_variable_never_stops_the_program(tmp_path: Path, changes: str) -> None:
    env = {
        "FLYTUNE_INSTALLED": str(tmp_path),
        "FLYTUNE_CHANGES": changes,
        "PYTHONPATH": hook_folder(),
    }
    assert run("print(1)", env=env) == (1, "")
    live, log = run("import torch; print(1)", env=env)
    assert live == 1
    assert log.startswith("flytune: bundle not used: FLYTUNE_CHANGES: ")
    assert log.endswith(" (FT405)\n")


def test_next_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = 7\n")
    path = os.pathsep.join([hook_folder(), str(tmp_path), hook_folder()])
    code = "import sitecustomize; print(theirs, '# ', sitecustomize.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.split() == ["7", "#", str(tmp_path / "sitecustomize.py")]


def test_hook_needs_the_standard_library_alone(tmp_path: Path) -> None:
    code = (
        "import flytune_hook, flytune_start, sys; print(int('flytune' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": hook_folder()},
    )
    assert done.stdout == "0\n"


@pytest.mark.parametrize("hidden", [False, True])
def test_a_host_without_flydsl_gets_the_policy_without_it(
    tmp_path: Path, key: str, hidden: bool
) -> None:
    asks = {"max_autotune_gemm_backends": "ATEN,FLYDSL,TRITON"}
    bundle = make(tmp_path, key, inductor=asks)
    code = "import json, torch._inductor.config as inductor\n"
    code += "print(json.dumps(inductor.max_autotune_gemm_backends))"
    start = FLYDSL_HIDDEN if hidden else ""
    live, said = run(start + INSTALL + code, bundle)
    assert live == ("ATEN,TRITON" if hidden else "ATEN,FLYDSL,TRITON")
    assert said.startswith("flytune: served without FlyDSL" if hidden else "")
    assert said.endswith(" (FT108)\n" if hidden else "")
    assert said.count("\n") == hidden


PLATFORM = """
import json, torch
import torch._dynamo.config, torch._inductor.codecache
import triton.runtime.build as build
print(json.dumps(build.platform_key()))
"""


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_modules_in_c_have_one_name_on_every_host(tmp_path: Path, kind: str) -> None:
    held = {"kind": kind, "software": {}, "inductor": {}, "dynamo": {}}
    hold(tmp_path, json.dumps(held))
    env = {"FLYTUNE_INSTALLED": str(tmp_path), "PYTHONPATH": hook_path()}
    # No `file` is found there, which tells Python how a program is linked.
    lacking, log = run(PLATFORM, env={**env, "PATH": str(tmp_path)})
    assert lacking == (
        "x86_64,Linux,64bit,ELF" if kind == "cuda" else "x86_64,Linux,64bit,"
    )
    assert log == ""


def test_a_policy_names_them_alike(tmp_path: Path) -> None:
    code = "from flytune.caches.policy import cuda_policy\n"
    code += "cuda_policy(tokens=(1,), threads=1, attention='sdpa').apply()\n"
    key, _ = run(code + PLATFORM, env={"PATH": str(tmp_path)})
    assert key == "x86_64,Linux,64bit,ELF"


def test_a_directory_that_others_can_write_is_not_used(
    tmp_path: Path, key: str
) -> None:
    installed = prepare(make(tmp_path, key), command=True)
    env = exec_environment(installed)
    assert installed.directory is not None
    installed.directory.chmod(0o777)
    live, log = run(REPORT, env=env)
    assert log == (
        "flytune: bundle not used: directory can be written by other users: "
        f"{installed.directory} (FT304)\n"
    )
    assert live["main"] != SET
    assert not settings(live)["installed"]


def test_a_kept_key_of_torch_is_taken(tmp_path: Path, key: str) -> None:
    installed = prepare(make(tmp_path, key), command=True)
    env = exec_environment(installed)
    assert run(REPORT, env=env)[1] == ""
    assert installed.directory is not None
    kept = installed.directory / "sources.json"
    row = json.loads(kept.read_text())
    looks, other = row["torch"][0], "ef" * 32
    digest = hashlib.sha256(f"{looks} {other}".encode()).hexdigest()
    kept.write_text(json.dumps({**row, "torch": [looks, other, digest]}))
    _, log = run(REPORT, env=env)
    assert f"built for `{key}`, here `{other}`" in log

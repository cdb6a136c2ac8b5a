"""A torch that nobody has tried yet: its private interfaces, one by one."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flytune.caches import compat, interfaces
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_hooks import entry_points
from flytune.shapes.errors import FlytuneError

ROOT = Path(__file__).parents[2]
# Checked where they are used: optional parts of torch, and what stands in for a device.
ELSEWHERE = ("flydsl", "eligibility", "stand_in", "vllm", "compat", "interfaces")
CHECK = """
from flytune.caches import compat
compat.torch_version = lambda: "2.16.0.dev20261201"
{change}
print(compat.require_torch())
"""


def checked(change: str) -> subprocess.CompletedProcess[str]:
    """Ask for a torch that calls itself newer, in a process of its own."""
    code = CHECK.format(change=change)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )


def test_a_newer_torch_that_has_them_all_is_taken() -> None:
    done = checked("")
    assert (done.returncode, done.stdout) == (0, "2.16.0.dev20261201\n")
    said = "flytune: torch 2.16.0.dev20261201 is newer than 2.15, the newest that was "
    assert f"{said}tested; all interfaces are there\n" in done.stderr


def test_what_a_newer_torch_has_changed_is_named() -> None:
    done = checked(
        "import torch._inductor.codecache as c; del c.PersistentCache.lookup"
    )
    assert done.returncode == 1
    name = "torch._inductor.codecache.PersistentCache.lookup"
    assert f"changed a private interface that flytune uses: `{name}`" in done.stderr


def test_an_older_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "torch_version", lambda: "2.10.1")
    monkeypatch.setattr(interfaces, "check_interfaces", pytest.fail)
    with pytest.raises(FlytuneError, match="torch is older than"):
        compat.require_torch()


def used() -> Iterator[tuple[str, str]]:
    """Yield what the sources ask of torch's private parts, where it is said by name."""
    for folder in ("caches", "tuner"):
        for path in sorted((ROOT / folder).glob("*.py")):
            if any(word in path.name for word in ELSEWHERE):
                continue
            calls = [
                node
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("private", "wrap")
                and len(node.args) >= 2
            ]
            names = vars(importlib.import_module(f"flytune.{folder}.{path.stem}"))
            for call in calls:
                words = [_value(argument, names) for argument in call.args[:2]]
                if words[0].startswith("torch.") and words[1]:
                    yield words[0], words[1]


def _value(argument: ast.expr, names: dict[str, object]) -> str:
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    if isinstance(argument, ast.Name):
        return str(names.get(argument.id, ""))
    return ""


def test_the_list_is_whole() -> None:
    listed = {*interfaces.PRIVATE, *entry_points(Ledger())}
    needed = set(used())
    assert len(needed) > 20
    assert needed - listed == set()

"""Which modules may import which, and what a light command may load."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flytune.tuner.cli import EXTRA_OF

ROOT = Path(__file__).parents[1]
FORBIDDEN = {"shapes": {"caches", "tuner"}, "caches": {"tuner"}}
HEAVY = {"torch", "triton", "vllm", *EXTRA_OF}

MAIN = "from flytune.tuner.cli import main; main"
LIST = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"


def imported(source: str) -> Iterator[str]:
    """Yield the full name of every module that `source` imports, wherever it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("flytune."):
            # What importlib, or a process of its own, is given by name.
            yield str(node.value).partition(":")[0]


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_go_one_way(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    back = {
        (str(file.relative_to(ROOT)), name)
        for file in files
        for name in imported(file.read_text())
        if name.startswith(tuple(f"flytune.{other}" for other in FORBIDDEN[folder]))
    }
    assert back == set()


def test_nobody_elses_code_is_trusted_for_the_user() -> None:
    """transformers runs a model's own code for whoever passes this, in any way."""
    setting = "trust_" + "remote_code"
    sources = {
        file.relative_to(ROOT): file.read_text()
        for folder in ("shapes", "caches", "tuner", "ci")
        for file in (ROOT / folder).rglob("*.py")
    }
    assert len(sources) > 100
    assert [path for path, text in sources.items() if setting in text] == []


@pytest.mark.parametrize(
    "statement",
    [
        "import flytune.tuner.cli, flytune.caches",
        f"{MAIN}(['--help'], standalone_mode=False)",
        f"{MAIN}(['--version'], standalone_mode=False)",
        "import flytune.caches.install",
        "import flytune.caches.hook.flytune_hook",
        "from flytune.caches.vllm_plugin import register; register()",
        "from flytune.shapes.registry import find_model; find_model('Qwen3-4B')",
    ],
)
def test_what_needs_no_torch_loads_nothing_heavy(statement: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\n{LIST}"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {"flytune", "click"} & loaded
    assert loaded & HEAVY == set()

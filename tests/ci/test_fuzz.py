"""A short run of the fuzzer, and the proof that it would see what it looks for."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

FUZZ = Path(__file__).parents[2] / "ci" / "bench" / "fuzz.py"
# The start of a run against a reader that is broken on purpose.
BROKEN = """
import runpy, sys
from flytune.caches import bundle
{broken}
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def fuzz(
    folder: Path, inputs: int, broken: str = ""
) -> subprocess.CompletedProcess[str]:
    start = ("-c", BROKEN.format(broken=broken))
    options = ("--inputs", str(inputs), "--state", str(folder / "state.json"))
    return subprocess.run(
        [sys.executable, *start, str(FUZZ), *options, "--results", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_short_run(tmp_path: Path) -> None:
    done = fuzz(tmp_path, 1000)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("fuzz.*.json")
    result = json.loads(path.read_text())
    assert result["figures"]["fuzz_inputs"] == 1000
    assert {row["layer"] for row in result["rows"]} == {
        *("archive", "members", "headers", "manifest", "envelope", "paths")
    }
    assert result["figures"]["ways_refused"] > 30


def test_an_exception_of_another_kind_is_seen(tmp_path: Path) -> None:
    done = fuzz(tmp_path, 300, "bundle.check_path = lambda name: [][0]")
    assert done.returncode == 1
    assert "IndexError" in done.stderr


def test_a_file_elsewhere_is_seen(tmp_path: Path) -> None:
    stray = tmp_path / "stray"
    broken = (
        "copy = bundle._copy\n"
        "def stray(*arguments):\n"
        "    copy(*arguments)\n"
        f"    open({str(stray)!r}, 'w').close()\n"
        "bundle._copy = stray"
    )
    done = fuzz(tmp_path, 300, broken)
    assert done.returncode == 1
    assert f"changed elsewhere: ['{stray}'" in done.stderr


def test_other_content_is_seen(tmp_path: Path) -> None:
    broken = "bundle._copy = lambda name, entry, content, _: [*iter(content.read, b'')]"
    done = fuzz(tmp_path, 300, broken)
    assert done.returncode == 1
    assert "other files than the original's" in done.stderr


def test_an_input_is_made_from_its_number(bench: Callable[[str], ModuleType]) -> None:
    mutations = bench("mutations")
    from random import Random

    stored = Path(__file__).parents[1] / "data" / "bundles" / "schema-2.tar.zst"
    seed = mutations.Seed.read(stored)
    for layer in mutations.LAYERS:
        made = [mutations.mutated(seed, layer, Random(n)) for n in range(50)]
        assert made == [mutations.mutated(seed, layer, Random(n)) for n in range(50)]
        assert len(set(made)) > 25

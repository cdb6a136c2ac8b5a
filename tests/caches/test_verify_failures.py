"""Verification is seen to fail, each time with the name of what missed.

The digests are repaired, so that only the run itself can find what was changed.
"""

import json
import os
import struct
from pathlib import Path

import pytest
from builds import copied, repacked, unpacked, verified

# In the verified program: one more candidate in the first list with a choice.
LONGER = """
from flytune.caches.hook.flytune_imports import AfterImport

class Other:
    def __init__(self, choice):
        self.choice = choice

    def __getattr__(self, name):
        return getattr(self.choice, name)

    def hash_key(self):
        return "an_unknown_candidate"

made = []

def longer(choices):
    if len(choices) > 1 and not made:
        made.append(Other(choices[0]))
        return [*choices, *made]
    return choices

class Longer(AfterImport):
    def loaded(self, module):
        module.add_preprocessing_fn(longer)

Longer(["torch._inductor.select_algorithm"]).start()
"""


def failures(bundle: Path) -> list[str]:
    """Verify a bundle that must fail, and return what it says."""
    row = verified(bundle)
    assert row["ok"] is False
    lines: list[str] = row["failures"]
    return lines


def test_a_kernel_that_is_gone(unfrozen_bundle: Path, tmp_path: Path) -> None:
    folder = copied(unfrozen_bundle, tmp_path / "b")
    kernel = sorted(folder.rglob("*.main.so"))[0]
    kernel.unlink()
    bundle = repacked(folder, tmp_path / "less")
    assert failures(bundle) == [f"cpp_compiled: {kernel.name}"]


def test_a_graph_that_is_gone(unfrozen_bundle: Path, tmp_path: Path) -> None:
    folder = copied(unfrozen_bundle, tmp_path / "b")
    graph = sorted((folder / "inductor/fxgraph").glob("*/*"))[0]
    for file in graph.iterdir():
        file.unlink()
    lines = failures(repacked(folder, tmp_path / "less"))
    key = graph.name[:16]
    why = "the key is the same, and the graph's file is absent or unreadable"
    assert f"graph missed: {key}: {why}" in lines
    assert [line for line in lines if line.startswith("lowered: ")]
    # Its kernels are there, and the other graphs hit.
    assert not [line for line in lines if "compiled" in line]
    assert sum(line.startswith("graph missed: ") for line in lines) == 1


def test_a_candidate_without_a_time(frozen_bundle: Path, tmp_path: Path) -> None:
    folder = unpacked(frozen_bundle, tmp_path / "b")
    (path,) = (folder / "inductor/cache").iterdir()
    row = json.loads(path.read_text())
    (key, precisions), *_ = row["cache"]["bmm"].items()
    (times,) = precisions.values()
    gone = next(name for name in times if not name.startswith("Cpp"))
    del times[gone]
    path.write_text(json.dumps(row))
    lines = failures(repacked(folder, tmp_path / "less"))
    assert f"tuned: bmm {key}: no time for candidate {gone}" in lines
    assert sum(line.startswith("tuned: ") for line in lines) == 1


def test_one_more_candidate(
    frozen_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpacked(frozen_bundle, tmp_path / "b")
    bundle = repacked(folder, tmp_path / "one")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LONGER)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    lines = failures(bundle)
    (tuned,) = [line for line in lines if line.startswith("tuned: ")]
    assert tuned.endswith(": no time for candidate an_unknown_candidate")


def test_another_value_in_the_policy(unfrozen_bundle: Path, tmp_path: Path) -> None:
    folder = copied(unfrozen_bundle, tmp_path / "b")
    changed = {"max_autotune_gemm_backends": "ATEN"}
    # One size is enough: what is changed is changed for every size.
    bundle = repacked(folder, tmp_path / "other", inductor=changed, tokens=(1,))
    lines = failures(bundle)
    assert lines[0] == (
        "Inductor setting differs: max_autotune_gemm_backends: "
        "baked `'ATEN,CPP'`, here `'ATEN'`"
    )
    missed = [line for line in lines if line.startswith("graph missed: ")]
    assert len(missed) == 2
    said = "inductor_config[max_autotune_gemm_backends]: baked `ATEN,CPP`, here `ATEN`"
    assert all(line.endswith(said) for line in missed)


def test_another_number_of_threads(unfrozen_bundle: Path, tmp_path: Path) -> None:
    folder = copied(unfrozen_bundle, tmp_path / "b")
    bundle = repacked(folder, tmp_path / "other", threads=2)
    assert failures(bundle) == [
        "target differs: hardware.threads: built for `1`, here `2`"
    ]


def test_a_kernel_that_computes_something_else(
    unfrozen_bundle: Path, tmp_path: Path
) -> None:
    folder = copied(unfrozen_bundle, tmp_path / "b")
    # The normalisation's epsilon, which the compiler left in the kernel's data.
    right, wrong = struct.pack("<f", 1e-5), struct.pack("<f", 100.0)
    changed = 0
    for kernel in folder.rglob("*.main.so"):
        content = kernel.read_bytes()
        changed += content.count(right)
        kernel.write_bytes(content.replace(right, wrong))
    assert changed
    lines = failures(repacked(folder, tmp_path / "wrong"))
    said = "output differs from eager: layer at 8 tokens: "
    assert [line for line in lines if line.startswith(said)]
    assert all(line.endswith("exceeds 0.03") for line in lines)


def test_a_frozen_graph_that_torch_caches(frozen_bundle: Path, tmp_path: Path) -> None:
    folder = unpacked(frozen_bundle, tmp_path / "b")
    unpacked_weights = {"cpp.weight_prepack": False, "max_autotune": False}
    bundle = repacked(folder, tmp_path / "other", inductor=unpacked_weights)
    lines = failures(bundle)
    cached = [line for line in lines if line.startswith("a frozen graph was cached: ")]
    assert len(cached) == 2

import json
import subprocess
import sys
from dataclasses import replace

import flydsl_candidates
import pytest
from flydsl_candidates import of_case, rendered

from flytune.tuner.flydsl_keys import build_key


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """FlyDSL's own names of all the candidates."""
    folder = tmp_path_factory.mktemp("names")
    script = str(flydsl_candidates.__file__)
    command = [sys.executable, script, str(folder / "cache"), str(folder / "result")]
    subprocess.run(command, check=True, timeout=300)
    names: list[str] = json.loads((folder / "result").read_text())
    return names


def test_keys_are_equal_where_flydsls_entries_are(entries: list[str]) -> None:
    keys = [one.key for one in rendered()]
    pairs = set(zip(keys, entries, strict=True))
    assert len(pairs) == len(set(keys)) == len(set(entries))
    # Both happen in it: the same kernel for other sizes, and another for them.
    assert 50 < len(pairs) < len(keys) - 20


def test_another_size_is_the_same_kernel() -> None:
    one, other = (
        of_case(f"mm_bf16_{sizes}")[0] for sizes in ("256x8192x8192", "16x1024x4096")
    )
    assert one.kernel.source != other.kernel.source
    assert one.key == other.key != ""


def test_a_tail_of_k_is_another_kernel() -> None:
    one = of_case("mm_bf16_16x1024x4096")[0]
    specs = one.specs[:-1]

    def key(k: int) -> str:
        source = one.kernel.source.replace(
            "GEMM_K: fx.Constexpr = 4096", f"GEMM_K: fx.Constexpr = {k}"
        )
        assert source != one.kernel.source
        return build_key(source, specs)

    assert key(8192) == one.key
    assert key(8192 + 32) == key(128 + 32) != one.key


def test_another_layout_is_another_kernel() -> None:
    one = of_case("mm_bf16_16x1024x4096")[0]
    a, b = one.specs[:-1]
    plain = replace(b, strides=(1024, 1))
    padded = replace(a, strides=(4224, 1))
    nowhere = replace(a, strides=(8192, 2))
    source = one.kernel.source
    assert build_key(source, [a, plain]) != one.key
    assert build_key(source, [a, replace(b, dtype="float16")]) != one.key
    assert build_key(source, [padded, b]) == one.key
    assert build_key(source, [nowhere, b]) not in ("", one.key)


@pytest.mark.parametrize("name", ["GEMM_K", "GEMM_N", "STAGES", "TILE_K"])
def test_a_source_of_another_form_has_no_key(name: str) -> None:
    one = of_case("mm_bf16_16x1024x4096")[0]
    assert f"{name}: fx.Constexpr" in one.kernel.source
    for changed in (
        one.kernel.source.replace(f"{name}: fx.Constexpr", f"OF_{name}: int"),
        one.kernel.source.replace(
            f"{name}: fx.Constexpr = ", f"{name}: fx.Constexpr = x"
        ),
    ):
        known = name == "GEMM_N" and "= x" in changed
        assert bool(build_key(changed, one.specs)) == known
    assert build_key("", ()) == ""

"""Two real bundles of one model at other token counts, joined and verified as one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builds import LLAMA, Build, arguments_of, flytune, run_build, unpacked, verified

from flytune.caches.bundle import Bundle
from flytune.caches.keyring import own_key
from flytune.caches.packing import pack
from flytune.caches.several import parts_of, program_of


@pytest.mark.slow
def test_merged_bundle_hits_for_each_of_its_programs(
    tmp_path: Path, unfrozen_build: Build
) -> None:
    arguments = arguments_of(LLAMA, "16", "unfrozen", tmp_path / "work")
    other = run_build(arguments, tmp_path / "other", tmp_path / "home")
    out = tmp_path / "merged.tar.zst"
    bundles = (unfrozen_build.bundle, other.bundle)
    done = flytune(tmp_path / "home", "merge", *bundles, "-o", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "merged    tiny-llama at 1,8 tokens",
        "          tiny-llama at 16 tokens",
    ]
    files = Bundle.open(out).manifest.files
    for bundle in bundles:
        assert Bundle.open(bundle).manifest.files.keys() <= files.keys()
    row = verified(out, "--strict")
    assert (row["ok"], row["work"], row["failures"]) == (True, {}, [])
    parts = [Bundle.open(one).manifest.verify or {} for one in bundles]
    hits = {name: sum(one["lookups"][name] for one in parts) for name in row["lookups"]}
    assert row["lookups"] == hits
    assert set(hits) == {"aot hit", "fx hit"}
    # Joining it again with one of them adds nothing.
    again = ("merge", out, other.bundle, "-o", tmp_path / "again", "--json")
    row = json.loads(flytune(tmp_path / "home", *again).stdout)
    assert row["parts"] == ["tiny-llama at 1,8 tokens", "tiny-llama at 16 tokens"]
    assert Bundle.open(tmp_path / "again").digest == Bundle.open(out).digest


@pytest.mark.slow
def test_program_that_misses_is_named(tmp_path: Path, unfrozen_build: Build) -> None:
    folder = unpacked(unfrozen_build.bundle, tmp_path / "folder")
    manifest = Bundle.open(folder).manifest
    part = dict(parts_of(manifest)[0])
    other = {**part, "policy": {**part["policy"], "tokens": [2]}}
    merged = replace(manifest, program=program_of([part, other]))
    row = verified(pack(folder, merged, tmp_path / "b.tar.zst", keys=[own_key()]))
    assert not row["ok"]
    assert {line.partition(": ")[0] for line in row["failures"]} == {
        "tiny-llama at 2 tokens"
    }

"""Which part of a bundle each file is."""

import pytest

from flytune.caches.manifest import FileEntry
from flytune.caches.parts import PARTS, part_of, sizes


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("inductor/fxgraph/ab/fabc/0123", "graphs"),
        ("inductor/aotautograd/abc/0123", "graphs"),
        ("inductor/dynamo/abc/guards", "precompiled"),
        ("inductor/triton/0/KEY/mm.cubin", "triton"),
        ("inductor/flydsl_compile_cache/abc.pkl", "flydsl"),
        ("inductor/ab/cab.main.so", "cpp"),
        ("inductor/ab/cab.so.load_ok", "cpp"),
        ("inductor/cache/5e1f", "timings"),
        ("inductor/ab/cab.py", "sources"),
        ("inductor/ab/cab.best_config", "sources"),
        ("inductor/what", "other"),
        ("kernels/ab/x", "kernels"),
        ("megacache.bin", "megacache"),
        ("keys.json", "keys"),
        ("records.parquet", "records"),
        ("notes.txt", "other"),
    ],
)
def test_the_part_of_a_file(path: str, part: str) -> None:
    assert part_of(path) == part
    assert part in PARTS


def test_sizes_by_part() -> None:
    names = ("inductor/fxgraph/a", "inductor/aotautograd/b", "keys.json")
    files = {name: FileEntry("0" * 64, 7) for name in names}
    assert sizes(files) == {"graphs": (2, 14), "keys": (1, 7)}

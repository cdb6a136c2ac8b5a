"""A bundle whose every kind of file is small, and what can be wrong with one."""

import os
from pathlib import Path

from flytune.caches.hook.flytune_files import damaged, read_marker
from flytune.caches.prepare import prepare

GRAPH = "inductor/fxgraph/ab/fabc/0123"
TIMINGS = "inductor/cache/5e1f"
KERNEL = "inductor/triton/0/KEY/mm.cubin"
GROUP = "inductor/triton/0/KEY/__grp__mm.json"
LIBRARY = "inductor/xy/cxyz.main.so"
WHOLE = {
    GRAPH: b"graph",
    TIMINGS: b'{"system": {}, "cache": {"mm": {}}}',
    KERNEL: b"kernel",
    GROUP: b'{"child_paths": {"mm.cubin": "/elsewhere/mm.cubin"}}',
    LIBRARY: b"\x7fELF",
}


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    """Another bit, as a disk that fails has it: size and time are the same."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def rewrite(path: Path) -> None:
    """Another bit that somebody wrote."""
    flip(path)
    os.utime(path, ns=(1, 1))


def fold(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    """Who reads it waits for somebody who writes."""
    path.unlink()
    os.mkfifo(path)


def placed(bundle: Path) -> Path:
    directory = prepare(bundle).directory
    assert directory is not None
    return directory


def found(directory: Path) -> list[str]:
    return damaged(str(directory), read_marker(str(directory))["files"])

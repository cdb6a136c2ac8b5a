"""Small bundles, and archives that break a rule, made by hand."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from flytune.caches.keyring import own_key
from flytune.caches.manifest import FileEntry, Manifest
from flytune.caches.packing import pack
from flytune.caches.target import Target

FILES: Mapping[str, bytes] = {
    "keys.json": b"[]\n",
    "records.parquet": b"PAR1",
    "inductor/cache/5e1f": b'{"cache": {}}',
    "inductor/fxgraph/ab/fabc/0123": b"graph",
    "inductor/empty": b"",
    "inductor/triton/0/" + "K" * 60 + "/" + "triton_poi_fused" * 10: b"kernel",
}
POLICY: Mapping[str, Any] = {
    "name": "unfrozen",
    "env": {"OMP_NUM_THREADS": "1"},
    "inductor": {"max_autotune": True, "triton.cudagraphs": True},
    "dynamo": {"recompile_limit": 17},
    "threads": 1,
}


def manifest(**changes: Any) -> Manifest:
    whole: dict[str, Any] = {
        "created": "2026-01-02T03:04:05Z",
        "flytune": "0.1.0",
        "model": {"name": "tiny", "architecture": "Llama", "config_sha256": "0" * 64},
        "program": {"kind": "model"},
        "policy": {},
        "inductor_config": {"max_autotune": "True"},
        "target": {"hardware": {"kind": "cpu"}, "software": {"torch": "2.15.0"}},
        "software": "serving",
        "timed_on": None,
        "coverage": {"planned": 1, "covered": 1},
        "winners": ({"op": "mm", "m": 1, "n": 2, "k": 3, "backend": "aten"},),
        "bake": {"passes": 2, "settled": True, "remaining": {}},
    }
    return Manifest(**(whole | changes))


def stage(folder: Path, files: Mapping[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def listing(files: Mapping[str, bytes]) -> Manifest:
    entries = {
        name: FileEntry(hashlib.sha256(content).hexdigest(), len(content))
        for name, content in files.items()
    }
    return replace(manifest(), files=entries)


def member(name: str, content: bytes = b"", **fields: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def tar(files: Mapping[str, bytes], extra: Iterable[bytes] = ()) -> bytes:
    """The members in order and then `extra`, without the end of the archive."""
    whole = {"manifest.json": listing(files).to_json(), **files}
    return b"".join([*(member(n, c) for n, c in whole.items()), *extra])


def archive(folder: Path, content: bytes, end: bytes = bytes(1024)) -> Path:
    path = folder / "hostile.tar.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(content + end))
    return path


def signed(staging: Path, whole: Manifest, out: Path) -> Path:
    """Pack as a build does: signed by the key that the tests trust."""
    return pack(staging, whole, out, keys=[own_key()])


def unpack(path: Path) -> dict[str, bytes]:
    """What plain tar sees in an archive."""
    content = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as tarball:
        return {
            info.name: file.read()
            for info in tarball
            if (file := tarball.extractfile(info)) is not None
        }


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def installable(folder: Path, name: str = "b.tar.zst", **changes: Any) -> Path:
    """A small bundle for this very host, unless `target` is another."""
    target = changes.pop("target", None) or Target.here(threads=1).to_json()
    files = changes.pop("files", FILES)
    staged = stage(folder / f"staged-{name}", files)
    whole = manifest(**{"policy": POLICY, "target": target, **changes})
    return signed(staged, whole, folder / name)


def elsewhere() -> dict[str, Any]:
    """This host, with another instruction set."""
    target = Target.here(threads=1).to_json()
    target["hardware"]["isa"] = ["amx_tile"]
    return target


def python(code: str, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own, with more in its environment."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **env},
    )


@contextmanager
def mounted(disk: Path, options: str) -> Iterator[Path]:
    """A file system in memory with these options, which only root may mount."""
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)

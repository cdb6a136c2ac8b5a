"""One hostile archive or directory for each rule of the format."""

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from bundles import (
    FILES,
    archive,
    listing,
    manifest,
    member,
    mounted,
    stage,
    tar,
    tree,
    unpack,
)

from flytune.caches.archive import BundleError, Fault
from flytune.caches.bundle import Bundle
from flytune.caches.manifest import FileEntry
from flytune.caches.packing import pack
from flytune.shapes.errors import FlytuneError

NAMES = ("b.tar.zst", "b")


def refused(path: Path) -> FlytuneError:
    """Place a bundle that must be refused; nothing may be left of it."""
    into = path.parent / "into" / "placed"
    into.parent.mkdir()
    with pytest.raises(FlytuneError) as caught:
        Bundle.open(path).place(into)
    assert list(into.parent.iterdir()) == []
    return caught.value


def fault(path: Path) -> Fault:
    error = refused(path)
    assert isinstance(error, BundleError)
    return error.fault


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(tmp_path: Path, name: str) -> None:
    out = pack(stage(tmp_path / "staged"), manifest(), tmp_path / name)
    bundle = Bundle.open(out)
    assert bundle.manifest == listing(FILES)
    assert bundle.digest == hashlib.sha256(listing(FILES).to_json()).hexdigest()
    bundle.place(tmp_path / "placed")
    assert tree(tmp_path / "placed") == FILES
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [name, "placed", "staged"]
    )


def test_what_is_placed_is_private(tmp_path: Path) -> None:
    Bundle.open(archive(tmp_path, tar(FILES))).place(tmp_path / "placed")
    placed = [tmp_path / "placed", *(tmp_path / "placed").rglob("*")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in placed)


def test_only_some_are_placed(tmp_path: Path) -> None:
    out = pack(stage(tmp_path / "staged"), manifest(), tmp_path / "b.tar.zst")
    Bundle.open(out).place(tmp_path / "placed", only=["keys.json"])
    assert tree(tmp_path / "placed") == {"keys.json": FILES["keys.json"]}


def test_plain_tar_reads_it_in_order(tmp_path: Path) -> None:
    out = pack(stage(tmp_path / "staged"), manifest(), tmp_path / "b.tar.zst")
    names = list(unpack(out))
    assert names[:3] == ["manifest.json", "keys.json", "records.parquet"]
    assert {n: c for n, c in unpack(out).items() if n != "manifest.json"} == FILES


def test_two_packs_are_the_same_bytes(tmp_path: Path) -> None:
    first = stage(tmp_path / "one")
    second = stage(tmp_path / "two", dict(reversed(FILES.items())))
    os.utime(second / "keys.json", (1, 1))
    (second / "keys.json").chmod(0o600)
    a = pack(first, manifest(), tmp_path / "a.tar.zst")
    b = pack(second, manifest(), tmp_path / "b.tar.zst")
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_pack_refuses_an_existing_output(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name)
    with pytest.raises(FlytuneError, match="output exists"):
        pack(stage(tmp_path / "staged"), manifest(), tmp_path / name)


def test_pack_refuses_links_and_pipes(tmp_path: Path) -> None:
    staged = stage(tmp_path / "staged")
    (staged / "link").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="holds a link"):
        pack(staged, manifest(), tmp_path / "b")
    (staged / "link").unlink()
    os.mkfifo(staged / "pipe")
    with pytest.raises(BundleError, match="holds a device or pipe"):
        pack(staged, manifest(), tmp_path / "b")


def test_pack_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match="no directory to pack"):
        pack(tmp_path / "staged", manifest(), tmp_path / "b")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=1m") as disk:
        yield disk


@pytest.mark.parametrize("name", NAMES)
def test_full_disk_leaves_nothing(tmp_path: Path, small_disk: Path, name: str) -> None:
    staged = stage(tmp_path / "staged", {"inductor/big": os.urandom(2**21)})
    with pytest.raises(FlytuneError, match=f"disk is full: {small_disk / name}"):
        pack(staged, manifest(), small_disk / name)
    assert list(small_disk.iterdir()) == []


def test_place_asks_for_room_first(tmp_path: Path, small_disk: Path) -> None:
    staged = stage(tmp_path / "staged", {"inductor/big": bytes(2**21)})
    bundle = Bundle.open(pack(staged, manifest(), tmp_path / "b.tar.zst"))
    with pytest.raises(
        FlytuneError, match=r"disk is too full: .* 2097152 bytes needed"
    ):
        bundle.place(small_disk / "placed")
    assert list(small_disk.iterdir()) == []


def test_file_size_limit_leaves_nothing(tmp_path: Path) -> None:
    stage(tmp_path / "staged", {"inductor/big": os.urandom(2**20)})
    out = tmp_path / "out" / "b.tar.zst"
    out.parent.mkdir()
    code = f"""
import pathlib, resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from bundles import manifest
from flytune.caches.packing import pack
resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
pack(pathlib.Path({str(tmp_path / "staged")!r}), manifest(), pathlib.Path({str(out)!r}))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert run.stderr.strip().endswith(f"FlytuneError: disk is full: {out}")
    assert list(out.parent.iterdir()) == []


def test_absent_bundle(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match=r"cannot read bundle: .*: No such file"):
        Bundle.open(tmp_path / "none.tar.zst")


def test_folder_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match=r"bundle: no manifest\.json in folder: /"):
        Bundle.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"(", b"\x28\xb5\x2f\xfd", b"x" * 5000])
def test_file_that_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "b.tar.zst"
    path.write_bytes(content)
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    assert caught.value.fault in (Fault.TRUNCATED, Fault.NOT_ZSTD)


def test_a_pipe_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.tar.zst")
    with pytest.raises(FlytuneError, match="bundle holds a device or pipe"):
        Bundle.open(tmp_path / "b.tar.zst")


def test_archive_cut_anywhere(tmp_path: Path) -> None:
    whole = archive(tmp_path, tar(FILES)).read_bytes()
    path = tmp_path / "cut.tar.zst"
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(BundleError) as caught:
            Bundle.open(path).place(tmp_path / "placed")
        assert caught.value.fault is Fault.TRUNCATED
    assert not (tmp_path / "placed").exists()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (tarfile.SYMTYPE, Fault.LINK),
        (tarfile.LNKTYPE, Fault.LINK),
        (tarfile.CHRTYPE, Fault.DEVICE),
        (tarfile.BLKTYPE, Fault.DEVICE),
        (tarfile.FIFOTYPE, Fault.DEVICE),
        (tarfile.DIRTYPE, Fault.FOLDER),
        (tarfile.XHDTYPE, Fault.KIND),
        (tarfile.GNUTYPE_SPARSE, Fault.KIND),
        (b"Z", Fault.KIND),
    ],
)
def test_member_that_is_no_plain_file(
    tmp_path: Path, kind: bytes, expected: Fault
) -> None:
    odd = member("inductor/odd", type=kind, linkname="/etc/passwd")
    assert fault(archive(tmp_path, tar(FILES, [odd]))) is expected


@pytest.mark.parametrize(
    ("name", "message"),
    [("/etc/passwd", "absolute path"), ("inductor/../../x", "climbs out")],
)
def test_member_outside(tmp_path: Path, name: str, message: str) -> None:
    error = refused(archive(tmp_path, tar(FILES, [member(name, b"x")])))
    assert message in str(error)


def test_member_twice(tmp_path: Path) -> None:
    twin = member("keys.json", FILES["keys.json"])
    assert fault(archive(tmp_path, tar(FILES, [twin]))) is Fault.TWICE


def test_manifest_twice(tmp_path: Path) -> None:
    twin = member("manifest.json", listing(FILES).to_json())
    assert fault(archive(tmp_path, tar(FILES, [twin]))) is Fault.TWICE


def test_member_that_is_not_listed(tmp_path: Path) -> None:
    odd = member("inductor/odd", b"x")
    assert fault(archive(tmp_path, tar(FILES, [odd]))) is Fault.UNLISTED


def test_member_that_is_missing(tmp_path: Path) -> None:
    text = listing({**FILES, "inductor/more": b"x"}).to_json()
    content = member("manifest.json", text) + b"".join(
        member(name, content) for name, content in FILES.items()
    )
    assert fault(archive(tmp_path, content)) is Fault.MISSING


def test_manifest_is_not_first(tmp_path: Path) -> None:
    content = member("keys.json", b"[]") + tar(FILES)
    assert fault(archive(tmp_path, content)) is Fault.FIRST


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"[]\n\n", Fault.SIZE), (b"[]", Fault.SIZE), (b"{}\n", Fault.DIGEST)],
)
def test_member_that_was_changed(
    tmp_path: Path, content: bytes, expected: Fault
) -> None:
    changed = {"manifest.json": listing(FILES).to_json(), **FILES, "keys.json": content}
    whole = b"".join(member(n, c) for n, c in changed.items())
    assert fault(archive(tmp_path, whole)) is expected


def test_bomb_stops_at_its_header(tmp_path: Path) -> None:
    bomb = tarfile.TarInfo("inductor/bomb")
    bomb.size = 2**40
    header = bomb.tobuf(tarfile.GNU_FORMAT)
    entry = {"inductor/bomb": FileEntry("0" * 64, 10)}
    text = replace(manifest(), files=entry).to_json()
    content = member("manifest.json", text) + header + bytes(2**26)
    assert fault(archive(tmp_path, content)) is Fault.SIZE


def test_huge_manifest_is_not_read(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("manifest.json")
    huge.size = 2**40
    content = huge.tobuf(tarfile.GNU_FORMAT) + bytes(2**20)
    assert "manifest is too large" in str(refused(archive(tmp_path, content)))


def test_huge_long_name_is_not_read(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("././@LongLink")
    huge.type = tarfile.GNUTYPE_LONGNAME
    huge.size = 2**40
    content = tar(FILES, [huge.tobuf(tarfile.GNU_FORMAT)])
    assert fault(archive(tmp_path, content)) is Fault.HEADER


def test_huge_window_is_refused(tmp_path: Path) -> None:
    params = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
    path = tmp_path / "b.tar.zst"
    stream = zstandard.ZstdCompressor(compression_params=params).compressobj()
    path.write_bytes(stream.compress(tar(FILES)) + stream.flush())
    assert fault(path) is Fault.NOT_ZSTD


@pytest.mark.parametrize("rest", [b"x", zstandard.compress(b""), bytes(8)])
def test_bytes_after_the_frame(tmp_path: Path, rest: bytes) -> None:
    path = archive(tmp_path, tar(FILES))
    path.write_bytes(path.read_bytes() + rest)
    assert fault(path) is Fault.TRAILING


@pytest.mark.parametrize("rest", [b"x", bytes(512), member("keys.json", b"[]\n")])
def test_bytes_after_the_last_member(tmp_path: Path, rest: bytes) -> None:
    path = archive(tmp_path, tar(FILES), end=bytes(1024) + rest)
    assert fault(path) is Fault.TRAILING


def test_one_zero_block(tmp_path: Path) -> None:
    path = archive(tmp_path, tar(FILES), end=bytes(512) + b"x" * 512)
    assert fault(path) is Fault.HEADER


def test_bad_header_checksum(tmp_path: Path) -> None:
    odd = bytearray(member("inductor/odd", b"x"))
    odd[0] ^= 1
    assert fault(archive(tmp_path, tar(FILES, [bytes(odd)]))) is Fault.HEADER


def test_padding_that_is_not_zero(tmp_path: Path) -> None:
    content = bytearray(tar(FILES))
    content[-1] = 1
    assert fault(archive(tmp_path, bytes(content))) is Fault.HEADER


def as_folder(tmp_path: Path) -> Path:
    return pack(stage(tmp_path / "staged"), manifest(), tmp_path / "b")


def test_folder_with_a_link(tmp_path: Path) -> None:
    path = as_folder(tmp_path)
    (path / "keys.json").unlink()
    (path / "keys.json").symlink_to(tmp_path / "staged" / "keys.json")
    assert fault(path) is Fault.LINK


def test_folder_with_a_linked_folder(tmp_path: Path) -> None:
    path = as_folder(tmp_path)
    (path / "inductor").rename(tmp_path / "elsewhere")
    (path / "inductor").symlink_to(tmp_path / "elsewhere")
    assert fault(path) is Fault.LINK


def test_folder_with_a_pipe(tmp_path: Path) -> None:
    path = as_folder(tmp_path)
    (path / "keys.json").unlink()
    os.mkfifo(path / "keys.json")
    assert fault(path) is Fault.DEVICE


def test_folder_whose_manifest_is_a_link(tmp_path: Path) -> None:
    path = as_folder(tmp_path)
    (path / "manifest.json").rename(tmp_path / "m")
    (path / "manifest.json").symlink_to(tmp_path / "m")
    assert "cannot read bundle" in str(refused(path))


def test_folder_with_a_file_more(tmp_path: Path) -> None:
    path = as_folder(tmp_path)
    (path / "inductor/odd").write_bytes(b"x")
    assert fault(path) is Fault.UNLISTED


def test_folder_with_a_file_less(tmp_path: Path) -> None:
    path = as_folder(tmp_path)
    (path / "inductor/empty").unlink()
    assert fault(path) is Fault.MISSING


@pytest.mark.parametrize(
    ("content", "expected"), [(b"[]\n\n", Fault.SIZE), (b"{}\n", Fault.DIGEST)]
)
def test_folder_with_a_changed_file(
    tmp_path: Path, content: bytes, expected: Fault
) -> None:
    path = as_folder(tmp_path)
    (path / "keys.json").write_bytes(content)
    assert fault(path) is expected


def test_bundle_replaced_after_it_was_opened(tmp_path: Path) -> None:
    bundle = Bundle.open(archive(tmp_path, tar(FILES)))
    archive(tmp_path, tar({**FILES, "keys.json": b"{}\n"}))
    with pytest.raises(BundleError) as caught:
        bundle.place(tmp_path / "placed")
    assert caught.value.fault is Fault.DIGEST


def test_place_over_something(tmp_path: Path) -> None:
    (tmp_path / "placed").mkdir()
    (tmp_path / "placed" / "mine").touch()
    with pytest.raises(FlytuneError, match="cannot write"):
        Bundle.open(archive(tmp_path, tar(FILES))).place(tmp_path / "placed")
    assert tree(tmp_path / "placed") == {"mine": b""}

"""A `.tar.zst` as bundles use it: plain files only, streamed, never trusted."""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Protocol

from flytune.caches.codes import EXPLAINED, Code
from flytune.shapes.errors import FlytuneError

COPY_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)
# A name that a plain header cannot hold; longer than any path that a manifest allows.
_LONG_NAME_LIMIT_BYTES = 4096
# One zstd block of 4 bytes can hold 128 KiB: a small feed bounds what one step makes.
_FEED_BYTES = 1024
_WINDOW_LIMIT_BYTES = 1 << 24
_LEVEL = 10


class Readable(Protocol):
    """Where an archive is read from."""

    def read(self, size_bytes: int, /) -> bytes:
        """Return at most `size_bytes`, empty at the end."""


class Fault(StrEnum):
    """What is wrong with an archive or a bundle; a closed set, each with a `Code`."""

    NOT_ZSTD = "archive is corrupt"
    TRUNCATED = "archive is truncated"
    TRAILING = "archive has bytes after its end"
    HEADER = "archive has a bad member header"
    LINK = "bundle holds a link"
    DEVICE = "bundle holds a device or pipe"
    FOLDER = "archive holds a folder as a member"
    KIND = "archive holds a member of unknown kind"
    FIRST = "archive does not start with its manifest"
    TWICE = "archive holds a member twice"
    UNLISTED = "bundle holds a file that its manifest does not list"
    MISSING = "bundle lacks a file of its manifest"
    SIZE = "file in bundle has another size than its manifest says"
    DIGEST = "file in bundle has another digest than its manifest says"
    PIN = "bundle has another digest than the one that it is pinned to"
    SECOND = "bundle holds its signature elsewhere than after its manifest"
    SIGNATURE_SIZE = "signature of bundle is too large"
    ENVELOPE = "signature of bundle is malformed"
    PAYLOAD_TYPE = "signature of bundle is over another type of payload"
    BASE64 = "signature of bundle is not in base64"
    SIGNERS = "signature of bundle has too many signers"
    FORGED = "signature of bundle does not verify"
    FOREIGN = "signature of bundle is over another manifest"


class BundleError(FlytuneError):
    """A bundle that breaks a rule of the format; `fault` says which."""

    def __init__(self, fault: Fault, value: object) -> None:
        code = Code[fault.name]
        super().__init__(f"{fault}: {value}", hint=EXPLAINED[code].action, code=code)
        self.fault = fault


_KINDS = {
    tarfile.LNKTYPE: Fault.LINK,
    tarfile.SYMTYPE: Fault.LINK,
    tarfile.CHRTYPE: Fault.DEVICE,
    tarfile.BLKTYPE: Fault.DEVICE,
    tarfile.FIFOTYPE: Fault.DEVICE,
    tarfile.DIRTYPE: Fault.FOLDER,
}


class ArchiveWriter:
    """Writes members in the order given; the same members make the same bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        import zstandard

        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._stream: IO[bytes] = compressor.stream_writer(file, closefd=False)

    def add(self, name: str, size_bytes: int, content: IO[bytes]) -> None:
        """Add one file.

        Raises:
            BundleError: `content` is shorter or longer than `size_bytes`.
        """
        info = tarfile.TarInfo(name)
        info.size = size_bytes
        info.mode = 0o644
        self._stream.write(info.tobuf(tarfile.GNU_FORMAT))
        left = size_bytes
        while chunk := content.read(COPY_BYTES):
            left -= len(chunk)
            if left < 0:
                break
            self._stream.write(chunk)
        if left != 0:
            raise BundleError(Fault.SIZE, name)
        self._stream.write(bytes(-size_bytes % _BLOCK))

    def finish(self) -> None:
        """Write the end; nothing can be added after it."""
        self._stream.write(_END)
        self._stream.close()


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive; `content` is valid until the next is asked for."""

    name: str
    size_bytes: int
    content: "Content"


class Content:
    """What is left of one member."""

    def __init__(self, source: "_Source", size_bytes: int) -> None:
        self._source = source
        self.left_bytes = size_bytes

    def read(self) -> bytes:
        """Return the next part of at most `COPY_BYTES`, empty at the end.

        Raises:
            BundleError: the archive ends early or is corrupt.
        """
        part = self._source.exactly(min(COPY_BYTES, self.left_bytes))
        self.left_bytes -= len(part)
        return part


def members(file: Readable) -> Iterator[Member]:
    """Yield each member; its whole content is to be read before the next.

    Nothing is bounded here but one step's memory: stop reading at a member that is
    not expected or larger than it should be.

    Raises:
        BundleError: corrupt or truncated, bytes after the end, or a member that is
            not a plain file.
    """
    source = _Source(file)
    while (block := source.exactly(_BLOCK)) != bytes(_BLOCK):
        long_name = None
        info = _header(block)
        if info.type == tarfile.GNUTYPE_LONGNAME:
            long_name = _long_name(source, info.size)
            info = _header(source.exactly(_BLOCK))
        name = long_name or info.name
        if info.type != tarfile.REGTYPE:
            raise BundleError(_KINDS.get(info.type, Fault.KIND), repr(name[:99]))
        content = Content(source, info.size)
        yield Member(name, info.size, content)
        if content.left_bytes:
            raise BundleError(Fault.UNLISTED, repr(name[:99]))
        if any(source.exactly(-info.size % _BLOCK)):
            raise BundleError(Fault.HEADER, "padding is not zero")
    if source.exactly(_BLOCK) != bytes(_BLOCK):
        raise BundleError(Fault.HEADER, "one zero block instead of two")
    source.finish()


class _Source:
    """The decompressed bytes, made no faster than they are asked for."""

    def __init__(self, file: Readable) -> None:
        import zstandard

        self._file = file
        self._error = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)
        self._zstd = decompressor.decompressobj()
        self._buffer = io.BytesIO()

    def exactly(self, size_bytes: int) -> bytes:
        parts = [self._buffer.read(size_bytes)]
        left = size_bytes - len(parts[0])
        while left:
            self._feed()
            parts.append(self._buffer.read(left))
            left -= len(parts[-1])
        return b"".join(parts)

    def finish(self) -> None:
        while not self._zstd.eof:
            self._feed()
            if self._buffer.read(1):
                raise BundleError(Fault.TRAILING, "after its last member")
        rest = self._buffer.read(1) or self._zstd.unused_data or self._file.read(1)
        if rest:
            raise BundleError(Fault.TRAILING, "after its last member")

    def _feed(self) -> None:
        compressed = b"" if self._zstd.eof else self._file.read(_FEED_BYTES)
        if not compressed:
            raise BundleError(Fault.TRUNCATED, "no end of archive")
        try:
            self._buffer = io.BytesIO(self._zstd.decompress(compressed))
        except self._error as error:
            raise BundleError(Fault.NOT_ZSTD, error) from error


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise BundleError(Fault.HEADER, error) from error
    if info.size < 0:
        raise BundleError(Fault.HEADER, f"size {info.size}")
    return info


def _long_name(source: _Source, size_bytes: int) -> str:
    if size_bytes > _LONG_NAME_LIMIT_BYTES:
        raise BundleError(Fault.HEADER, f"long name of {size_bytes} bytes")
    padded = source.exactly(size_bytes + -size_bytes % _BLOCK)
    name, _, padding = padded.partition(b"\0")
    if len(name) + 1 != size_bytes or any(padding):
        raise BundleError(Fault.HEADER, "long name is not one name")
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise BundleError(Fault.HEADER, error) from error

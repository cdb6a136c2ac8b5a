"""Where OCI artifacts are kept, and the references that name one.

A store is a registry (`registry`) or an image layout, a folder (`layout`).
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flytune.caches.codes import Code
from flytune.caches.oci import Descriptor, Document, damaged
from flytune.shapes.errors import FlytuneError

LAYOUT_SCHEME = "oci:"
HUB_SCHEME = "hf://"
DEFAULT_TAG = "latest"

_TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_DIGEST = r"sha256:[0-9a-f]{64}"
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
# The host of a registry has a dot or a port, or it is localhost: "org/repo" alone says
# nothing about which registry it is in.
_HOST = (
    r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:)"
    r"|\[[0-9a-f:]+\])"
)
_REFERENCE = re.compile(
    rf"(?P<place>{_HOST}(?::\d+)?)/(?P<name>{_NAME}(?:/{_NAME})*)"
    rf"(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{_DIGEST}))?"
)
_LAYOUT = re.compile(
    rf"(?P<place>.+?)(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{_DIGEST}))?", re.DOTALL
)


class AbsentError(FlytuneError):
    """A store holds nothing under a tag or a digest."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=Code.ABSENT)


@dataclass(frozen=True, slots=True)
class Reference:
    """One artifact: `HOST[:PORT]/NAME[:TAG][@DIGEST]` or `oci:DIR[:TAG][@DIGEST]`."""

    place: str
    """A registry's host with its port, or the folder of a layout."""
    name: str
    """The repository; empty in a layout, which is one."""
    tag: str
    digest: str | None

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Read a reference; the tag is "latest" where it names none.

        Raises:
            FlytuneError: it is none.
        """
        layout = text.startswith(LAYOUT_SCHEME)
        pattern = _LAYOUT if layout else _REFERENCE
        match = pattern.fullmatch(text.removeprefix(LAYOUT_SCHEME) if layout else text)
        if match is None:
            raise FlytuneError(
                f"not a reference: {text!r}",
                hint="REGISTRY/REPOSITORY[:TAG][@sha256:...], oci:DIR[:TAG] or "
                "hf://ORG/REPO[@REVISION]",
                code=Code.REFERENCE,
            )
        found = match.groupdict()
        name = found.get("name") or ""
        tag = found["tag"] or DEFAULT_TAG
        return cls(found["place"], name, tag, found["digest"])

    @property
    def in_layout(self) -> bool:
        """Whether it is in a folder."""
        return not self.name

    @property
    def repository(self) -> str:
        """What it is in, as a reference begins."""
        if self.in_layout:
            return f"{LAYOUT_SCHEME}{self.place}"
        return f"{self.place}/{self.name}"

    @property
    def asked(self) -> str:
        """The digest where it is pinned, else the tag."""
        return self.digest or self.tag

    def pinned(self, digest: str) -> str:
        """Return the reference of one document of its repository."""
        return f"{self.repository}@{digest}"

    def __str__(self) -> str:
        if self.digest:
            return self.pinned(self.digest)
        return f"{self.repository}:{self.tag}"


class Store(Protocol):
    """One repository. What it gives is data until `checked` has seen its digest."""

    def document(self, asked: str) -> Document:
        """Return the manifest or index of a tag or a digest.

        Raises:
            AbsentError: it is not there.
            FlytuneError: the repository cannot be reached.
        """

    def has(self, blob: Descriptor) -> bool:
        """Whether the repository holds a blob.

        Raises:
            FlytuneError: it cannot be reached.
        """

    def read(self, blob: Descriptor) -> Iterator[bytes]:
        """Yield a blob's content in parts, of any length.

        Raises:
            FlytuneError: it is not there, or cannot be reached.
        """

    def write(self, blob: Descriptor, path: Path) -> None:
        """Store a blob that the repository does not hold.

        Raises:
            FlytuneError: it cannot be written.
        """

    def put(self, document: Document, tag: str | None) -> None:
        """Store a document whose blobs are stored, under a tag if one is given.

        Raises:
            FlytuneError: it cannot be written.
        """

    def add(self, entry: Descriptor, tag: str) -> Document:
        """Make an entry part of a tag's index and return the index.

        It takes the place of the one of the same identity. Whoever adds another at the
        same time, none is lost.

        Raises:
            FlytuneError: the tag is of something else, or cannot be written.
        """


def checked(blob: Descriptor, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Pass a blob's content on; fail at the end if it is not the blob.

    Raises:
        FlytuneError: it is longer or shorter than it should be, or has another digest.
    """
    digest, size_bytes = hashlib.sha256(), 0
    for part in parts:
        size_bytes += len(part)
        if size_bytes > blob.size_bytes:
            raise damaged(f"blob is longer than {blob.size_bytes} bytes: {blob.digest}")
        digest.update(part)
        yield part
    if size_bytes < blob.size_bytes:
        raise FlytuneError(
            f"blob is truncated: {size_bytes} of {blob.size_bytes}: {blob.digest}",
            hint="try again: what is whole by then is not fetched again",
            code=Code.REMOTE_DAMAGED,
        )
    found = f"sha256:{digest.hexdigest()}"
    if found != blob.digest:
        raise damaged(f"blob has another digest: {blob.digest}: got {found}")

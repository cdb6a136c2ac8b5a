"""A folder as a store: an OCI image layout, as it travels on a stick.

Source: "image-layout.md" of the OCI image specification 1.1.
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flytune.caches.archive import COPY_BYTES
from flytune.caches.bundle import writing
from flytune.caches.codes import Code
from flytune.caches.manifest import canonical_json
from flytune.caches.oci import (
    DOCUMENT_LIMIT_BYTES,
    INDEX_TYPE,
    REF_NAME,
    Descriptor,
    Document,
    damaged,
    entries,
    joined,
)
from flytune.caches.store import AbsentError, Reference
from flytune.shapes.errors import FlytuneError

_MARKER = "oci-layout"
_INDEX = "index.json"


class LayoutStore:
    """An image layout; the methods are those of `Store`.

    Reading needs no right to write: a folder may be on read-only media.
    """

    def __init__(self, reference: Reference) -> None:
        """Look at nothing yet."""
        self._reference = reference
        self._root = Path(reference.place)

    def document(self, asked: str) -> Document:
        held = self._held()
        if asked.startswith("sha256:"):
            kinds = {one.digest: one.media_type for one in held}
            return self._stored(asked, kinds.get(asked))
        for one in held:
            if one.annotations.get(REF_NAME) == asked:
                return self._stored(one.digest, one.media_type)
        if not held and not (self._root / _INDEX).exists():
            raise AbsentError(f"no image layout: {self._root}")
        raise AbsentError(f"not in the layout: {self._reference.repository}:{asked}")

    def has(self, blob: Descriptor) -> bool:
        try:
            return self._path(blob.digest).stat().st_size == blob.size_bytes
        except OSError:
            return False

    def read(self, blob: Descriptor) -> Iterator[bytes]:
        try:
            with self._path(blob.digest).open("rb") as file:
                while part := file.read(COPY_BYTES):
                    yield part
        except FileNotFoundError as error:
            raise AbsentError(f"not in the layout: {blob.digest}") from error
        except OSError as error:
            raise FlytuneError(
                f"cannot read: {self._path(blob.digest)}: {error.strerror}",
                code=Code.UNREADABLE,
            ) from error

    def write(self, blob: Descriptor, path: Path) -> None:
        with self._written(self._path(blob.digest)) as temporary:
            shutil.copyfile(path, temporary)

    def fill(self, blob: Descriptor, content: Iterator[bytes]) -> None:
        """Store a blob that comes in parts; nothing is left of one that fails.

        Raises:
            FlytuneError: it cannot be written; and what `content` raises.
        """
        with (
            self._written(self._path(blob.digest)) as temporary,
            temporary.open("wb") as file,
        ):
            for part in content:
                file.write(part)

    def put(self, document: Document, tag: str | None) -> None:
        self._put_content(self._path(document.digest), document.content)
        if tag is not None:
            with self._locked():
                self._point(tag, document)

    def add(self, entry: Descriptor, tag: str) -> Document:
        with self._locked():
            try:
                held = entries(self._index_of(tag))
            except AbsentError:
                held = ()
            whole = joined(held, [entry])
            self._put_content(self._path(whole.digest), whole.content)
            self._point(tag, whole)
        return whole

    def _index_of(self, tag: str) -> Document:
        document = self.document(tag)
        if document.media_type != INDEX_TYPE:
            raise FlytuneError(
                f"tag is of something else than an index: {self._reference}",
                hint="push to another tag",
                code=Code.OTHER_TAG,
            )
        return document

    def _stored(self, digest: str, media_type: str | None) -> Document:
        path = self._path(digest)
        try:
            if path.stat().st_size > DOCUMENT_LIMIT_BYTES:
                raise damaged(f"manifest is too large: {path}")
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise AbsentError(f"not in the layout: {digest}") from error
        except OSError as error:
            raise FlytuneError(
                f"cannot read: {path}: {error.strerror}", code=Code.UNREADABLE
            ) from error
        document = Document(media_type or "", content)
        if media_type is None:
            document = Document(str(document.row().get("mediaType")), content)
        return document

    def _held(self) -> tuple[Descriptor, ...]:
        """Return what index.json names, empty where there is no layout yet."""
        try:
            content = (self._root / _INDEX).read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise FlytuneError(
                f"cannot read layout: {self._root}: {error.strerror}",
                code=Code.UNREADABLE,
            ) from error
        return entries(Document(INDEX_TYPE, content))

    def _point(self, tag: str, document: Document) -> None:
        """Let a tag name a document; every other tag stays."""
        held = [e for e in self._held() if e.annotations.get(REF_NAME) != tag]
        named = document.descriptor(annotations={REF_NAME: tag})
        row = {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPE,
            "manifests": [one.to_json() for one in (*held, named)],
        }
        version = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
        self._put_content(self._root / _MARKER, version)
        self._put_content(self._root / _INDEX, canonical_json(row))

    def _path(self, digest: str) -> Path:
        algorithm, _, name = digest.partition(":")
        return self._root / "blobs" / algorithm / name

    def _put_content(self, path: Path, content: bytes) -> None:
        with self._written(path) as temporary:
            temporary.write_bytes(content)

    @contextmanager
    def _written(self, path: Path) -> Iterator[Path]:
        """Give a file to write, which takes the place of `path` when it is whole."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".flytune-", dir=path.parent)
            os.close(descriptor)
            temporary = Path(name)
            try:
                yield temporary
                # A temporary file is private; a layout is for others to read.
                temporary.chmod(0o644)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with writing(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

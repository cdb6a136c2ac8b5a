"""Blobs that were fetched, by digest: what is whole is not fetched again."""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flytune.caches.bundle import make_private, writing
from flytune.caches.home import flytune_home
from flytune.caches.oci import Descriptor
from flytune.caches.scratch import TEMPORARY
from flytune.caches.store import Store, checked

# No pull takes longer with one blob at hand.
_IDLE_S = 3600


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved, of what a bundle is."""

    blobs: int
    of_blobs: int
    size_bytes: int
    of_bytes: int

    @classmethod
    def of(cls, moved: Iterable[Descriptor], whole: Iterable[Descriptor]) -> "Moved":
        """Count blobs and bytes."""
        part = [blob.size_bytes for blob in moved]
        every = [blob.size_bytes for blob in whole]
        return cls(len(part), len(every), sum(part), sum(every))

    def row(self) -> dict[str, int]:
        """Return the fields that `--json` prints."""
        return {
            "moved_blobs": self.blobs,
            "blobs": self.of_blobs,
            "moved_bytes": self.size_bytes,
            "bytes": self.of_bytes,
        }

    def __str__(self) -> str:
        return (
            f"{self.blobs} of {self.of_blobs} blobs, "
            f"{self.size_bytes:,} of {self.of_bytes:,} bytes"
        )


class BlobFolder:
    """The blobs of one store that are needed, and the folder of those at hand."""

    def __init__(self, store: Store) -> None:
        """Fetch nothing yet.

        Raises:
            FlytuneError: there is no home directory.
        """
        self._store = store
        self._root = _root()
        self.fetched: list[Descriptor] = []
        """Those that were not at hand."""

    def get(self, blob: Descriptor) -> Path:
        """Return where a blob is, whole, fetched if need be.

        Raises:
            FlytuneError: it cannot be fetched, or is another.
        """
        path = self._root / blob.digest.removeprefix("sha256:")
        if _is_whole(path, blob):
            # Its time says when it was last of use.
            with writing(path):
                os.utime(path)
            return path
        with writing(path):
            make_private(self._root)
            descriptor, name = tempfile.mkstemp(prefix=TEMPORARY, dir=self._root)
            temporary = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for part in checked(blob, self._store.read(blob)):
                        file.write(part)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        self.fetched.append(blob)
        return path


def idle_blobs() -> tuple[Path, ...]:
    """Return the blobs, and parts of such, that no pull can be at work on."""
    before = time.time() - _IDLE_S
    if not _root().is_dir():
        return ()
    found = sorted(_root().iterdir())
    return tuple(path for path in found if path.stat().st_mtime < before)


def _root() -> Path:
    return flytune_home() / "blobs" / "sha256"


def _is_whole(path: Path, blob: Descriptor) -> bool:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return False
    return f"sha256:{digest}" == blob.digest

"""What is compiled, on disk: neither a driver's memory nor its death matters to it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, Candidate

BUILT_NAME = "built.json"
"""Last of a candidate's files: it is there when all are."""
FILES = "files"
"""The folder of the others, beside it."""


class StoredFiles(Mapping[str, bytes]):
    """A candidate's files, which a build of many could not hold in memory.

    They travel to other processes as they are.
    """

    __slots__ = ("_folder", "_names")

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._folder, self._names = folder, names

    def __getitem__(self, name: str) -> bytes:
        if name not in self._names:
            raise KeyError(name)
        try:
            return (self._folder / FILES / name).read_bytes()
        except OSError as error:
            raise FlytuneError(
                f"cannot read what was built: {self._folder}: {error.strerror}",
                hint="the same command builds it anew",
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> tuple[type, tuple[dict[str, bytes]]]:
        return dict, (dict(self),)


class BuiltKernels:
    """Built candidates on disk, so that a build that goes on compiles none twice.

    What candidates of one build key share is there once.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, result: BuildResult, build_key: str = "") -> BuildResult:
        """Store what was built; a failure is not stored, and tried again.

        Args:
            build_key: The candidate's, if it has one.

        Returns:
            The result, whose files are read when they are asked for.

        Raises:
            FlytuneError: the disk is full or gone.
        """
        if result.status is not Status.OK:
            return result
        folder = self._folder(build_key or result.choice_hash)
        try:
            for name, content in result.files.items():
                path = folder / FILES / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            folder.mkdir(parents=True, exist_ok=True)
            digests = {name: _digest(data) for name, data in result.files.items()}
            row = {"seconds": result.compile_s, "files": digests}
            part = folder / "built.part"
            part.write_text(json.dumps(row))
            part.replace(folder / BUILT_NAME)
        except OSError as error:
            raise FlytuneError(
                f"cannot keep what was built: {folder}: {error.strerror}"
            ) from error
        return replace(result, files=StoredFiles(folder, tuple(result.files)))

    def find(self, choice_hash: str, build_key: str = "") -> BuildResult | None:
        """Return what was built for a candidate, if all of it is there and whole.

        Args:
            build_key: The candidate's, if it has one: what another of that key has
                left is the candidate's too.
        """
        names = (build_key, choice_hash) if build_key else (choice_hash,)
        found = (self._read(choice_hash, self._folder(name)) for name in names)
        return next((result for result in found if result is not None), None)

    def has(self, candidate: Candidate) -> bool:
        """Whether something was built for a candidate, read or not."""
        names = (candidate.build_key, candidate.choice_hash)
        folders = (self._folder(name) for name in names if name)
        return any((folder / BUILT_NAME).exists() for folder in folders)

    def _read(self, choice_hash: str, folder: Path) -> BuildResult | None:
        try:
            row = json.loads((folder / BUILT_NAME).read_text())
            seconds, digests = float(row["seconds"]), dict(row["files"])
            files = {n: (folder / FILES / n).read_bytes() for n in digests}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if {name: _digest(data) for name, data in files.items()} != digests:
            return None
        stored = StoredFiles(folder, tuple(files))
        return BuildResult(choice_hash, Status.OK, compile_s=seconds, files=stored)

    def _folder(self, choice_hash: str) -> Path:
        return self._root / hashlib.sha256(choice_hash.encode()).hexdigest()[:32]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

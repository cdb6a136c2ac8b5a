"""An older bundle, whose times or kernels a build takes instead of making them.

It may be of another environment, of whose software `survival` says what is kept.
"""

import functools
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.held import records_of
from flytune.caches.lists import TunedList, lists_of
from flytune.caches.records import RECORDS_NAME, TuningRecord
from flytune.caches.target import Target
from flytune.caches.trust import HERE, Trust, admit
from flytune.shapes.errors import FlytuneError
from flytune.tuner.built_kernels import BUILT_NAME
from flytune.tuner.candidate import CPP, FLYDSL, TRITON
from flytune.tuner.progress import Progress
from flytune.tuner.publish import KERNELS, PACKING
from flytune.tuner.survival import changes
from flytune.tuner.upgrade import Upgrade
from flytune.tuner.upgrade_words import plan_lines, survival_lines

_ENDINGS = {".pkl": FLYDSL, ".so": CPP}
"""By what each backend's compiled file ends with, where it is not Triton's."""


class OlderBundle:
    """A bundle for the hardware of a build.

    Raises:
        UntrustedError: nobody vouches for it here; its kernels are run.
        FlytuneError: it is no bundle, has no records, or is for other hardware.
    """

    def __init__(self, path: Path, target: Target, trust: Trust = HERE) -> None:
        self.bundle = Bundle.open(path)
        admit(self.bundle, trust)
        self._built = Target.from_json(self.bundle.manifest.target)
        self.changed = changes(self._built, target)
        """In what this environment is another."""
        if RECORDS_NAME not in self.bundle.manifest.files:
            raise FlytuneError(f"older bundle has no records: {path}")

    def check(self, target: Target) -> bool:
        """Compare a target of which more is known; return whether more differs.

        Raises:
            FlytuneError: the hardware does.
        """
        before, self.changed = self.changed, changes(self._built, target)
        return self.changed != before

    @functools.cached_property
    def records(self) -> tuple[TuningRecord, ...]:
        """Its records.

        Raises:
            FlytuneError: they are corrupt.
        """
        return records_of(self.bundle)

    @functools.cached_property
    def lists(self) -> tuple[TunedList, ...]:
        """The lists of its records.

        Raises:
            FlytuneError: they are corrupt.
        """
        return lists_of(self.records)

    @property
    def same(self) -> tuple[TuningRecord, ...]:
        """Its records, where they are of this very environment; else none."""
        return () if self.changed else self.records

    @property
    def ceilings(self) -> Mapping[str, Any]:
        """What the device reaches at most, as was measured where it was built."""
        return dict(self.bundle.manifest.provenance.get("ceilings") or {})

    @property
    def upgrade(self) -> Upgrade | None:
        """Its lists as those of another environment; None where it is the same."""
        return Upgrade(self.lists, self.changed) if self.changed else None

    def say(self, progress: Progress) -> None:
        """Say what of it survives here, what is made again and what that takes."""
        for line in survival_lines(self.bundle.manifest, self.lists, self.changed):
            progress.say(f"from: {line}")
        for line in plan_lines(self.lists, self.changed) if self.changed else ():
            progress.say(f"from: {line}")

    def take_kernels(self, built: Path) -> int:
        """Copy its compiled candidates to those of a build; return how many.

        Those of a backend that compiles to other kernels here are left.

        Raises:
            FlytuneError: they are corrupt.
        """
        names = self._kernels()
        if not names:
            return 0
        with tempfile.TemporaryDirectory(
            prefix=f"{PACKING}from-", dir=built.parent
        ) as directory:
            placed = Path(directory) / "bundle"
            self.bundle.place(placed, only=names)
            taken = 0
            for folder in (placed / KERNELS).iterdir():
                own = built / folder.name
                if not (own / BUILT_NAME).exists():
                    shutil.rmtree(own, ignore_errors=True)
                    built.mkdir(exist_ok=True)
                    shutil.move(folder, own)
                    taken += 1
        return taken

    def _kernels(self) -> list[str]:
        """Return the files of the compiled candidates that serve here too."""
        folders: dict[str, list[str]] = {}
        for name in self.bundle.manifest.files:
            if name.startswith(f"{KERNELS}/"):
                folders.setdefault(name.split("/")[1], []).append(name)
        return [
            name
            for names in folders.values()
            if not self.changed.kernels(_backend_of(names))
            for name in names
        ]


def _backend_of(names: Iterable[str]) -> str:
    """Return whose compiled candidate these files are."""
    endings = {Path(name).suffix for name in names}
    return next((b for e, b in _ENDINGS.items() if e in endings), TRITON)

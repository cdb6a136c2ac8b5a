"""An older bundle, whose times or kernels a build takes instead of making them."""

import shutil
import tempfile
from pathlib import Path

from flytune.caches.bundle import Bundle
from flytune.caches.held import records_of
from flytune.caches.records import RECORDS_NAME, TuningRecord
from flytune.caches.target import PartStatus, Target, compare
from flytune.caches.trust import HERE, Trust, admit
from flytune.shapes.errors import FlytuneError
from flytune.tuner.publish import KERNELS, PACKING
from flytune.tuner.recall import BUILT_NAME


class OlderBundle:
    """A bundle for the very target of a build.

    Raises:
        UntrustedError: nobody vouches for it here; its kernels are run.
        FlytuneError: it is no bundle, has no records, or is for another target.
    """

    def __init__(self, path: Path, target: Target, trust: Trust = HERE) -> None:
        self._bundle = Bundle.open(path)
        admit(self._bundle, trust)
        self._built = Target.from_json(self._bundle.manifest.target)
        self.check(target)
        if RECORDS_NAME not in self._bundle.manifest.files:
            raise FlytuneError(f"older bundle has no records: {path}")

    def check(self, target: Target) -> None:
        """Refuse a target that is another; a part that is not known is none.

        Raises:
            FlytuneError: it differs, and in what.
        """
        parts = compare(self._built, target)
        wrong = [str(part) for part in parts if part.status is PartStatus.MISS]
        if wrong:
            raise FlytuneError(f"older bundle is for another target: {wrong[0]}")

    def records(self) -> tuple[TuningRecord, ...]:
        """Return its records.

        Raises:
            FlytuneError: they are corrupt.
        """
        return records_of(self._bundle)

    def take_kernels(self, built: Path) -> int:
        """Copy its compiled candidates to those of a build; return how many.

        Raises:
            FlytuneError: they are corrupt.
        """
        files = self._bundle.manifest.files
        names = [name for name in files if name.startswith(f"{KERNELS}/")]
        if not names:
            return 0
        with tempfile.TemporaryDirectory(
            prefix=f"{PACKING}from-", dir=built.parent
        ) as directory:
            placed = Path(directory) / "bundle"
            self._bundle.place(placed, only=names)
            taken = 0
            for folder in (placed / KERNELS).iterdir():
                own = built / folder.name
                if not (own / BUILT_NAME).exists():
                    shutil.rmtree(own, ignore_errors=True)
                    built.mkdir(exist_ok=True)
                    shutil.move(folder, own)
                    taken += 1
        return taken

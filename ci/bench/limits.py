"""What becomes of a bundle where the disk is full, or may not be written."""

import os
import shutil
from typing import Any

from corrupt import NOBODY, Corruption
from damages import one_of_each

from flytune.caches.install import attempt


class Limits(Corruption):
    """Installs and mends where it cannot be done."""

    def limits(self) -> None:
        """Install and mend on a disk that is full, or that may not be written."""
        where = "the disk"
        for limit in sorted({0, *(len(text) // 2 for text in self._whole.values())}):
            self._installed_anew(where, "full, new", self._bundle, full=limit)
            self._restored()
            for name in one_of_each(self._whole):
                (self._place / name).unlink()
            self._again(where, "full, mended", lambda: attempt(self._bundle), limit)
        self._restored()
        self._again(where, "full, installed", lambda: attempt(self._bundle), 0)
        for kind in ("read-only, new", "read-only, installed"):
            self._restored()
            home = self._folder / "home"
            if kind.endswith("new"):
                shutil.rmtree(home / "installed")
            below = [home, *home.rglob("*")]
            for path in below:
                path.chmod(0o555 if path.is_dir() else 0o444)
                if os.geteuid() == 0:
                    os.chown(path, NOBODY, NOBODY)
            self._again(where, kind, self._by_another)
            for path in below:
                path.chmod(0o700)

    def _by_another(self) -> Any:
        """Install as a user whom modes keep from writing, as they do not keep root."""
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        # Keys are this user's own, who vouches for the bundle so.
        return attempt(f"{self._bundle}@sha256:{self._digest}")

"""What becomes of damaged bundles, and of damaged files of installed ones.

Each is looked at as an installation does it, as a process that serves already does it,
and as an installation without the bundle does it; the import hook is the real one, with
what it asks of torch in torch's place.
"""

import json
import os
import random
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
from damages import (
    FILE_DAMAGES,
    FOLDER_DAMAGES,
    ROOT,
    archives,
    is_sound,
    one_of_each,
    what_of,
)
from kills import tree

from flytune.caches.bundle import Bundle
from flytune.caches.home import default_directory
from flytune.caches.hook.flytune_files import ACTIVATION_NAME, MARKER_NAME, may_change
from flytune.caches.hook.flytune_hook import Hook
from flytune.caches.hook.flytune_sources import KNOWN_NAME
from flytune.caches.hook.flytune_status import SERVING, Status
from flytune.caches.install import attempt
from flytune.caches.locks import lock_of
from flytune.caches.manifest import MANIFEST_NAME, SIGNATURE_NAME
from flytune.caches.prepare import prepare

REFUSED, MENDED, WITHOUT, SERVED, LOST, WRONG = OUTCOMES = (
    *("refused", "mended", "served without", "served whole", "lost", "wrong"),
)
"""Without: what is damaged is set aside, or absent, and compiled anew."""
_OWN = (MARKER_NAME, ACTIVATION_NAME, MANIFEST_NAME, SIGNATURE_NAME, KNOWN_NAME)
# No look takes so long that does not wait for ever.
_PATIENCE_S = 60
NOBODY = 12345
"""A user that no table lists."""


class Corruption:
    """Damages copies of one bundle, in an empty folder, and looks what comes of it.

    Args:
        bundle: a directory, for this host.
        archive: the same as one file.
        other: another bundle's archive.
        few: how many of each kind that has no end of them.
        thorough: look at each damaged file in each of the three ways, and not in the
            next one alone.
    """

    def __init__(
        self,
        folder: Path,
        bundle: Path,
        archive: Path,
        other: Path,
        few: int,
        seed: int,
        thorough: bool,
    ) -> None:
        self._folder = folder
        self._bundle, self._archive, self._other = bundle, archive, other
        self._few, self._chance = few, random.Random(seed)
        self._thorough, self._turn = thorough, 0
        self.rows: dict[tuple[str, str], Counter[str]] = {}
        self.codes: dict[tuple[str, str], set[str]] = {}
        (folder / ROOT).touch()
        os.environ["FLYTUNE_HOME"] = str(folder / "home")
        os.environ["FLYTUNE_STATUS_DIR"] = ""
        opened = Bundle.open(bundle)
        self._place = default_directory(opened.digest)
        self._digest, self._software = opened.digest, opened.manifest.target["software"]
        # Here, and not in a process of its own: these begin with what this imports.
        prepare(bundle)
        # Of no torch that is here: it is to be computed anew.
        (self._place / KNOWN_NAME).write_text('{"torch": ["looks", "key", "digest"]}')
        self._whole = tree(self._place)
        shutil.copytree(folder / "home", folder / "kept")

    def before(self) -> None:
        """Damage the bundle, and install it into a new place."""
        for kind, content in archives(
            self._archive.read_bytes(),
            self._other.read_bytes(),
            self._chance,
            self._few,
        ):
            path = self._folder / "b.tar.zst"
            path.write_bytes(content)
            self._installed_anew("an archive", kind, path)
        for kind, damage in FILE_DAMAGES.items():
            for name in tree(self._bundle):
                path = self._folder / "b"
                shutil.rmtree(path, ignore_errors=True)
                shutil.copytree(self._bundle, path)
                damage(path / name, self._chance)
                self._installed_anew("a directory", kind, path)
        os.mkfifo(self._folder / "pipe")
        self._installed_anew("an archive", "a pipe instead", self._folder / "pipe")

    def after(self) -> None:
        """Damage what is installed, and serve from it, mend it, and do without."""
        files = [*one_of_each(self._whole), *_OWN]
        for kind, damage in FILE_DAMAGES.items():
            for name in files:
                self._looked_at(what_of(name), kind, self._of(name, damage))
        folders = {"inductor", *(name.rpartition("/")[0] for name in files)} - {""}
        for kind, damage in FOLDER_DAMAGES.items():
            for name in sorted(folders):
                self._looked_at("a folder", kind, self._of(name, damage))
        for kind, spoil in self._places():
            self._looked_at("the place", kind, spoil)

    def _of(
        self, name: str, damage: Callable[[Path, random.Random], None]
    ) -> Callable[[], None]:
        return lambda: damage(self._place / name, self._chance)

    def _places(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield what may be wrong with a place as a whole."""
        place, lock = self._place, lock_of(self._place)
        inner = place / next(iter(one_of_each(self._whole)))
        yield "a stale lock", lambda: lock.write_text("1")
        yield "a folder for a lock", lambda: (lock.unlink(), lock.mkdir())
        yield "a link for a lock", lambda: (lock.unlink(), lock.symlink_to(inner))
        yield "others can write it", lambda: place.chmod(0o777)
        yield "others can write above", lambda: place.parent.chmod(0o777)
        yield (
            "others can write in it",
            lambda: (place.chmod(0o755), inner.chmod(0o666)),
        )
        if os.geteuid() == 0:
            yield "another's", lambda: os.chown(place, NOBODY, -1)
            yield (
                "another's within",
                lambda: (place.chmod(0o755), os.chown(inner, NOBODY, -1)),
            )

    def _restored(self) -> None:
        for name in ("home", "elsewhere"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        for path in self._folder.glob("*.elsewhere"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._folder / "kept", self._folder / "home")

    def _installed_anew(
        self, where: str, kind: str, bundle: Path, full: int | None = None
    ) -> None:
        shutil.rmtree(self._folder / "home", ignore_errors=True)
        row = self._seen(lambda: attempt(bundle), full)
        if row is None:
            self._count(where, kind, WRONG)
        elif row["status"] == "error":
            hidden = self._place.parent.glob(".*.flytune-*")
            clean = not self._place.exists() and not list(hidden)
            clean = clean and _named(row["code"])
            self._count(where, kind, REFUSED if clean else WRONG, row["code"])
        else:
            right = row["status"] == "hit" and not self._bad()
            self._count(where, kind, SERVED if right else WRONG)

    def _looked_at(self, where: str, kind: str, spoil: Callable[[], Any]) -> None:
        """Spoil an installed place and look at it in each of the three ways."""
        ways: dict[str, Callable[[], Any]] = {
            "": lambda: attempt(self._bundle),
            ", seen by a child": self._served,
            ", without the bundle": lambda: attempt(f"sha256:{self._digest}"),
        }
        self._turn += 1
        found = list(ways.items())
        for way, look in found if self._thorough else [found[self._turn % 3]]:
            self._restored()
            spoil()
            self._again(where + way, kind, look)

    def _again(
        self, where: str, kind: str, look: Callable[[], Any], full: int | None = None
    ) -> None:
        row = self._seen(look, full)
        if row is None:
            self._count(where, kind, WRONG)
            return
        if row["status"] == "error":
            self._count(
                where, kind, REFUSED if _named(row["code"]) else WRONG, row["code"]
            )
            return
        # Of what was set aside there is nothing; what is there is the bundle's.
        lacks = self._bad() and not self._bad(absent=True)
        outcome = WITHOUT if lacks else MENDED if row["mended"] else SERVED
        bad = self._bad(absent=bool(row["set_aside"]) or not row["mended"])
        self._count(where, kind, WRONG if bad else outcome, row["code"])

    def _bad(self, *, absent: bool = False) -> list[str]:
        """Return the installed files that are not the bundle's."""
        there = tree(self._place)
        return [
            name
            for name, content in self._whole.items()
            if name.startswith("inductor/")
            and there.get(name, content if absent else None) != content
            and not (may_change(name) and is_sound(there.get(name)))
        ]

    def _seen(
        self, look: Callable[[], Any], full: int | None = None
    ) -> dict[str, Any] | None:
        """Look in a process; return what it found, None if that did not end well."""
        path = self._folder / "seen.json"
        path.unlink(missing_ok=True)

        def told() -> None:
            signal.alarm(_PATIENCE_S)
            with open(path, "w") as file:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                if full is not None:
                    limits = (full, resource.RLIM_INFINITY)
                    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
                found = look()
                if full is not None:
                    limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
                row = found if isinstance(found, dict) else _row(found)
                json.dump(row, file)

        if forked.run(told) != forked.ENDED:
            return None
        row: dict[str, Any] = json.loads(path.read_text())
        return row

    def _served(self) -> dict[str, Any]:
        """Be a process that was started with the variables of an installation."""
        status = Status("", installed=str(self._place))
        version = SimpleNamespace(git_version=self._software["torch_git"])
        torch = SimpleNamespace(
            __name__="torch", __version__=self._software["torch"], version=version
        )
        hook = Hook(str(self._place), {}, status, checked=False)
        hook.loaded(torch)
        return {
            "status": "hit" if status.state in SERVING else "error",
            "code": status.code,
            "mended": 0,
            "set_aside": status.files.get("set_aside", 0),
        }

    def _count(self, where: str, kind: str, outcome: str, code: str = "") -> None:
        key = (where, kind)
        self.rows.setdefault(key, Counter())[outcome] += 1
        if code:
            self.codes.setdefault(key, set()).add(code)


def _row(installed: Any) -> dict[str, Any]:
    return {
        "status": str(installed.status),
        "code": str(installed.code or ""),
        "mended": len(installed.mended),
        "set_aside": len(installed.set_aside),
    }


def _named(code: str) -> bool:
    """Whether a refusal says what it is."""
    return bool(code) and code != "FT901"

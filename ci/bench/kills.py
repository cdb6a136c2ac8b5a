"""Kills at random moments of all that changes what is installed or published.

After each one the state is looked at, and again after the same work was done anew.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import forked

from flytune.caches.bundle import Bundle
from flytune.caches.home import default_directory
from flytune.caches.hook.flytune_files import damaged, read_marker
from flytune.caches.installed import clear
from flytune.caches.key_files import key_id
from flytune.caches.keyring import own_key
from flytune.caches.packing import pack, sign
from flytune.caches.prepare import prepare
from flytune.shapes.errors import FlytuneError

OLD, NEW, PARTLY, LOST, WRONG = "old", "new", "partly mended", "lost", "wrong"
ADDED = "inductor/added"
"""A file that serving added, which nothing may lose."""


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file under a folder, by its relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Scene:
    """One kind of work, on files of its own in an empty folder."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self) -> None:
        """Put the state that the work finds."""

    def act(self) -> None:
        """Do the work."""

    def state(self) -> str:
        """Look at what is there after a kill."""
        raise NotImplementedError

    def left(self) -> list[str]:
        """Return what is there after the work was done again and does not belong."""
        raise NotImplementedError


class Install(Scene):
    """A bundle is installed into a new place, or mended in one with damaged files."""

    def __init__(self, folder: Path, bundle: Path, *, mends: bool) -> None:
        super().__init__(folder)
        kind = "a directory" if bundle.is_dir() else "an archive"
        where = "a damaged place" if mends else "a new place"
        self.name = f"install {kind} into {where}"
        self._bundle, self._mends = bundle, mends
        os.environ["FLYTUNE_HOME"] = str(folder / "home")
        self._place = default_directory(Bundle.open(bundle).digest)
        assert forked.run(self.act) == forked.ENDED
        self._whole = tree(self._place)
        shutil.copytree(self._place, folder / "kept")
        self._broken: dict[str, bytes | None] = {}
        if mends:
            self._broken = dict(_break(folder / "kept"))
            (folder / "kept" / ADDED).write_bytes(b"added")

    def before(self) -> None:
        shutil.rmtree(self.folder / "home")
        if self._mends:
            self._place.parent.mkdir(parents=True, mode=0o700)
            shutil.copytree(self.folder / "kept", self._place)

    def act(self) -> None:
        prepare(self._bundle)

    def state(self) -> str:
        if not self._place.exists():
            return LOST if self._mends else OLD
        there = tree(self._place)
        if self._mends and there.get(ADDED) != b"added":
            return LOST
        ours = [name for name in self._whole if name.startswith("inductor/")]
        bad = {name for name in ours if there.get(name) != self._whole[name]}
        # What is bad is what was put there, and what a serving process would find.
        if any(there.get(name) != self._broken.get(name, b"?") for name in bad):
            return WRONG
        marker = read_marker(str(self._place))
        seen = set(damaged(str(self._place), marker.get("files", {})))
        if seen != {name for name in bad if name in there}:
            return WRONG
        if not bad:
            return NEW if "bundle" in marker else WRONG
        return OLD if bad == self._broken.keys() else PARTLY

    def left(self) -> list[str]:
        lock = f".{self._place.name}.lock"
        names = set(os.listdir(self._place.parent)) - {self._place.name, lock}
        return sorted(
            {*names, *(tree(self._place).keys() - self._whole.keys())} - {ADDED}
        )


def _break(place: Path) -> Iterator[tuple[str, bytes | None]]:
    """Damage every third of the installed files; yield what is left of each."""
    ours = sorted(path for path in (place / "inductor").rglob("*") if path.is_file())
    for number, path in enumerate(ours[::3]):
        content: bytes | None = path.read_bytes() + b"?"
        if number % 3 == 2:
            content = None
            path.unlink()
        elif content is not None:
            content = (content[1::2] or b"?") if number % 3 else content
            path.write_bytes(content)
        yield path.relative_to(place).as_posix(), content


class Pack(Scene):
    """A build's last step: what it made becomes a bundle."""

    def __init__(self, folder: Path, bundle: Path, name: str) -> None:
        super().__init__(folder)
        self.name = f"publish {'an archive' if '.' in name else 'a directory'}"
        opened = Bundle.open(bundle)
        self._staging = folder / "staging"
        opened.place(self._staging)
        self._manifest, self._key = opened.manifest, own_key()
        self._files = tree(self._staging)
        self._out = folder / "out" / name

    def before(self) -> None:
        shutil.rmtree(self._out.parent, ignore_errors=True)
        self._out.parent.mkdir()

    def act(self) -> None:
        there = self._out.exists()
        try:
            pack(self._staging, self._manifest, self._out, keys=[self._key])
        except FlytuneError:
            # What a killed run has published already is not written over.
            if not there:
                raise

    def state(self) -> str:
        if tree(self._staging) != self._files:
            return LOST
        if not os.path.lexists(self._out):
            return OLD
        return NEW if _holds(self._out, self._files, self.folder) else WRONG

    def left(self) -> list[str]:
        return sorted(set(os.listdir(self._out.parent)) - {self._out.name})


class Sign(Scene):
    """A second signature is added to a bundle."""

    def __init__(self, folder: Path, bundle: Path, key: Any) -> None:
        super().__init__(folder)
        self.name = f"sign {'a directory' if bundle.is_dir() else 'an archive'}"
        self._bundle, self._key = bundle, key
        self._out = folder / "out" / bundle.name
        opened = Bundle.open(bundle)
        opened.place(folder / "placed")
        self._files = tree(folder / "placed")
        assert opened.envelope is not None
        self._signers = [one.keyid for one in opened.envelope.signatures]

    def before(self) -> None:
        shutil.rmtree(self._out.parent, ignore_errors=True)
        self._out.parent.mkdir()
        copy = shutil.copytree if self._bundle.is_dir() else shutil.copyfile
        copy(self._bundle, self._out)

    def act(self) -> None:
        sign(Bundle.open(self._out), self._key)

    def state(self) -> str:
        if not _holds(self._out, self._files, self.folder):
            return LOST
        envelope = Bundle.open(self._out).envelope
        signers = [one.keyid for one in envelope.signatures] if envelope else []
        more = [*self._signers, key_id(self._key.public_key())]
        return {tuple(self._signers): OLD, tuple(more): NEW}.get(tuple(signers), WRONG)

    def left(self) -> list[str]:
        return sorted(set(os.listdir(self._out.parent)) - {self._out.name})


class Clear(Scene):
    """`flytune gc` removes what is installed."""

    name = "gc"

    def __init__(self, folder: Path, bundles: Sequence[Path]) -> None:
        super().__init__(folder)
        os.environ["FLYTUNE_HOME"] = str(folder / "home")
        for bundle in bundles:
            assert forked.run(lambda bundle=bundle: prepare(bundle) and None) == 0
        self._root = folder / "home" / "installed"
        shutil.copytree(self._root, folder / "kept")
        self._trees = {path.name: tree(path) for path in self._places()}

    def _places(self) -> list[Path]:
        return [path for path in self._root.iterdir() if path.name[0] != "."]

    def before(self) -> None:
        shutil.rmtree(self.folder / "home")
        shutil.copytree(self.folder / "kept", self._root)

    def act(self) -> None:
        clear(0)

    def state(self) -> str:
        there = self._places()
        if any(tree(path) != self._trees.get(path.name) for path in there):
            return WRONG
        return NEW if not there else OLD

    def left(self) -> list[str]:
        return sorted(os.listdir(self._root))


def _holds(bundle: Path, files: Mapping[str, bytes], scratch: Path) -> bool:
    """Whether a bundle is whole and holds these files and no others."""
    into = scratch / "held"
    shutil.rmtree(into, ignore_errors=True)
    try:
        Bundle.open(bundle).place(into)
    except FlytuneError:
        return False
    return tree(into) == files


def scenes(
    folder: Path, bundle: Path, archive: Path, others: Sequence[Path], key: Any
) -> Iterator[Scene]:
    """Yield each kind of work, in a folder of its own.

    Args:
        bundle: a directory, for this host.
        archive: another, as one file.
        others: more bundles for this host, to be cleared away.
        key: to sign with, and not one that signed them.
    """

    def own(name: str) -> Path:
        (folder / name).mkdir(parents=True)
        return folder / name

    for number, (source, mends) in enumerate(
        [(bundle, False), (archive, False), (bundle, True), (archive, True)]
    ):
        yield Install(own(f"install-{number}"), source, mends=mends)
    yield Pack(own("pack-directory"), bundle, "b")
    yield Pack(own("pack-archive"), bundle, "b.tar.zst")
    yield Sign(own("sign-directory"), bundle, key)
    yield Sign(own("sign-archive"), archive, key)
    yield Clear(own("gc"), others)


def killed(scene: Scene, kills: int, moments: random.Random) -> dict[str, Any]:
    """Kill a scene's work so many times; return what became of it.

    A process that ended before its kill came is no kill.
    """
    seconds = []
    for _ in range(3):
        scene.before()
        seconds.append(forked.took_s(scene.act))
    scene.before()
    touches = forked.steps(scene.act)
    states: Counter[str] = Counter()
    left: set[str] = set()
    done = 0
    while done < kills:
        scene.before()
        if forked.kill(scene.act, max(seconds), touches, moments) != forked.KILLED:
            continue
        done += 1
        found = scene.state()
        states[found] += 1
        if found in (LOST, WRONG):
            continue
        if forked.run(scene.act) != forked.ENDED or scene.state() != NEW:
            states[LOST if scene.state() == LOST else WRONG] += 1
        left.update(scene.left())
    return {
        "kind": scene.name,
        "inputs": done,
        "took_ms": round(1e3 * max(seconds), 1),
        "touches": touches,
        **{name: states[name] for name in (OLD, NEW, PARTLY, LOST, WRONG)},
        "left": sorted(left),
    }

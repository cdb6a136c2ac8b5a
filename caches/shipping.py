"""Bundles to an OCI registry or an image layout, from one, and from one to another."""

import hashlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from flytune.caches.blobs import BlobFolder, Moved
from flytune.caches.bundle import ARCHIVE_SUFFIX, Bundle, writing
from flytune.caches.choice import NoBundleError, Wanted, choose, read_manifest
from flytune.caches.codes import Code
from flytune.caches.layers import by_part, read_part, write_part
from flytune.caches.layout import LayoutStore
from flytune.caches.manifest import (
    MANIFEST_LIMIT_BYTES,
    MANIFEST_NAME,
    SIGNATURE_NAME,
    Manifest,
)
from flytune.caches.oci import (
    ARTIFACT_TYPE,
    CONFIG_TYPE,
    INDEX_TYPE,
    PART_TYPE,
    PREFIX,
    SIGNATURE_TYPE,
    TITLE,
    Descriptor,
    Document,
    Image,
    annotations,
    damaged,
    described,
    entries,
)
from flytune.caches.packing import check_absent, publish
from flytune.caches.registry import RegistryStore
from flytune.caches.scratch import beside
from flytune.caches.store import AbsentError, Reference, Store, checked
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError

_PART = PREFIX + "part"
_OVERHEAD_BYTES = 4096
"""More than what an archive says of one file."""
_HEADS = {MANIFEST_NAME: CONFIG_TYPE, SIGNATURE_NAME: SIGNATURE_TYPE}


@dataclass(frozen=True, slots=True)
class Shipped:
    """A bundle that was pushed or pulled."""

    bundle: str
    """The pinned reference of this very bundle."""
    index: str | None = None
    """The pinned reference of what the tag names: all bundles of the model."""
    moved: Moved | None = None
    """None where the library that moved it does not say."""
    out: Path | None = None
    """Where it was pulled to."""


def store_of(
    reference: Reference, *, insecure: bool = False, ca: Path | None = None
) -> Store:
    """Return where a reference leads.

    Args:
        insecure: as for `RegistryClient`.
        ca: as for `RegistryClient`.

    Raises:
        FlytuneError: the file of certificates is absent.
    """
    if reference.in_layout:
        return LayoutStore(reference)
    return RegistryStore(reference, insecure=insecure, ca=ca)


def push(bundle: Path, reference: Reference, store: Store) -> Shipped:
    """Make a bundle part of a tag's index, in the place of the one for its target.

    What the repository holds already is not sent.

    Raises:
        FlytuneError: the bundle is corrupt, the reference is pinned, or the repository
            cannot be reached or refuses.
    """
    if reference.digest is not None:
        raise FlytuneError(
            f"a push cannot be pinned: {reference}",
            hint="name a tag",
            code=Code.REFERENCE,
        )
    opened = Bundle.open(bundle)
    notes = annotations(opened.manifest)
    with tempfile.TemporaryDirectory(prefix="flytune-push-") as directory:
        blobs = _staged(opened, Path(directory))
        sent = [(blob, path) for blob, path in blobs if not store.has(blob)]
        for blob, path in sent:
            store.write(blob, path)
    config, *layers = (blob for blob, _ in blobs)
    image = Image(config, tuple(layers), notes).document()
    store.put(image, None)
    whole = store.add(described(image), reference.tag)
    return Shipped(
        reference.pinned(image.digest),
        reference.pinned(whole.digest),
        Moved.of((blob for blob, _ in sent), (config, *layers)),
    )


def _staged(bundle: Bundle, directory: Path) -> list[tuple[Descriptor, Path]]:
    """Write a bundle's blobs into a directory, the config first; all is checked."""
    placed = directory / "bundle"
    bundle.place(placed)
    blobs = []
    for name, content in bundle.heads().items():
        path = directory / name
        path.write_bytes(content)
        blobs.append((_blob(_HEADS[name], path, {TITLE: name}), path))
    for name, paths in by_part(bundle.manifest.files).items():
        path = directory / f"{name}{ARCHIVE_SUFFIX}"
        write_part(placed, paths, path)
        notes = {TITLE: path.name, _PART: name}
        blobs.append((_blob(PART_TYPE, path, notes), path))
    return blobs


def _blob(media_type: str, path: Path, notes: dict[str, str]) -> Descriptor:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Descriptor(media_type, f"sha256:{digest}", file.tell(), notes)


def pull(
    reference: Reference, store: Store, wanted: Wanted, out: Path | None = None
) -> Shipped:
    """Fetch the bundle that is wanted, check all of it, and publish it by rename.

    Args:
        out: as for `pack`; named after the model and the target, here, where None.

    Raises:
        NoBundleError: there is no such tag, or no bundle of it is what is wanted.
        FlytuneError: `out` exists, more than one bundle is what is wanted, what came is
            not what was named, or the repository cannot be reached.
    """
    if out is not None:
        check_absent(out)
    remote = _Remote(store)
    try:
        document = remote.document(reference.asked)
    except AbsentError as error:
        raise NoBundleError(str(error), code=Code.ABSENT) from error
    if document.media_type == INDEX_TYPE:
        offered = tuple(
            e for e in entries(document) if e.artifact_type == ARTIFACT_TYPE
        )
        chosen = choose(offered, wanted, remote.manifest)
    else:
        chosen = choose([described(document)], wanted, remote.manifest)
    image = remote.image(chosen)
    target = out or Path(file_name(Manifest.from_json(remote.config(image))))
    check_absent(target)
    with writing(target, output=True), beside(target) as staging:
        _assemble(image, remote, staging)
        publish(staging, target)
    return Shipped(
        reference.pinned(chosen.digest),
        reference.pinned(document.digest),
        Moved.of(remote.blobs.fetched, image.blobs),
        target,
    )


def _assemble(image: Image, remote: "_Remote", staging: Path) -> None:
    """Put a bundle's files together; that they are its files is still to be checked."""
    text = remote.config(image)
    files = Manifest.from_json(text).files
    (staging / MANIFEST_NAME).write_bytes(text)
    # Nothing packs to twice its size: what is larger is not what the manifest lists.
    unpacked = sum(entry.size_bytes for entry in files.values())
    limit_bytes = 2 * unpacked + _OVERHEAD_BYTES * (len(files) + 1)
    for layer in image.layers:
        if layer.size_bytes > limit_bytes:
            raise damaged(
                f"layer is larger than the bundle: {layer.digest}: "
                f"{layer.size_bytes} bytes"
            )
        if layer.media_type == SIGNATURE_TYPE:
            shutil.copyfile(remote.blobs.get(layer), staging / SIGNATURE_NAME)
        elif layer.media_type == PART_TYPE:
            read_part(remote.blobs.get(layer), files, staging)
        else:
            raise damaged(f"layer is of an unknown kind: `{layer.media_type}`")


class _Remote:
    """A repository that is read: each document and blob is what its digest says."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.blobs = BlobFolder(store)

    def document(self, asked: str) -> Document:
        document = self._store.document(asked)
        if asked.startswith("sha256:") and document.digest != asked:
            raise damaged(f"manifest has another digest: {asked}")
        return document

    def image(self, entry: Descriptor) -> Image:
        return Image.read(self.document(entry.digest))

    def manifest(self, entry: Descriptor) -> Manifest | str:
        return read_manifest(self.config(self.image(entry)))

    def config(self, image: Image) -> bytes:
        if image.config.size_bytes > MANIFEST_LIMIT_BYTES:
            raise damaged(f"manifest is too large: {image.config.digest}")
        return self.blobs.get(image.config).read_bytes()


def file_name(manifest: Manifest) -> str:
    """Return the name of a bundle that was given none, as a build's."""
    slug = Target.from_json(manifest.target).slug
    return f"{model_word(manifest)}.{slug}{ARCHIVE_SUFFIX}"


def model_word(manifest: Manifest) -> str:
    """Return a model's name as part of a file's."""
    word = re.sub(r"[^a-z0-9._-]+", "-", str(manifest.model.get("name")).lower())
    return word.strip(".-") or "bundle"


def mirror(
    reference: Reference, store: Store, layout: LayoutStore
) -> tuple[str, Moved]:
    """Copy what a reference names, all of it, into an image layout under its tag.

    Returns:
        The digest, and what was copied.

    Raises:
        FlytuneError: the repository cannot be reached, something of it is damaged, or
            the folder cannot be written.
    """
    remote = _Remote(store)
    document = remote.document(reference.asked)
    images = [document]
    if document.media_type == INDEX_TYPE:
        images = [remote.document(entry.digest) for entry in entries(document)]
    blobs = {b.digest: b for image in images for b in Image.read(image).blobs}.values()
    copied = [blob for blob in blobs if not layout.has(blob)]
    for blob in copied:
        layout.fill(blob, checked(blob, store.read(blob)))
    for image in images:
        layout.put(image, None)
    layout.put(document, reference.tag)
    return document.digest, Moved.of(copied, blobs)

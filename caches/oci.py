"""A bundle as an OCI artifact: the JSON of manifests and indexes, and nothing else.

Source: the OCI image specification 1.1, "manifest.md" (guidelines for artifacts),
"image-index.md", "descriptor.md" and "annotations.md".

An image manifest is one bundle: its config is the bundle's own manifest.json, its
layers are the parts. An image index is all bundles of one model under a tag, one for
each target, rank and engine.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from flytune.caches.codes import Code
from flytune.caches.manifest import Manifest, canonical_json, sha256_hex
from flytune.caches.target import Target, deciding_parts
from flytune.shapes.errors import FlytuneError

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
IMAGE_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.flytune.bundle.v1"
CONFIG_TYPE = "application/vnd.flytune.manifest.v1+json"
PART_TYPE = "application/vnd.flytune.part.v1.tar+zstd"
SIGNATURE_TYPE = "application/vnd.flytune.signature.v1+json"

DOCUMENT_LIMIT_BYTES = 4 * 2**20
"""What the distribution specification lets a registry refuse a manifest for."""

TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
REF_NAME = "org.opencontainers.image.ref.name"
PREFIX = "vnd.flytune."
MODEL, TARGET, IDENTITY = PREFIX + "model", PREFIX + "target", PREFIX + "identity"
TP, EP, ENGINE = PREFIX + "tp", PREFIX + "ep", PREFIX + "engine"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def damaged(what: str) -> FlytuneError:
    """Return the error of what is kept somewhere and is not what it should be."""
    return FlytuneError(what, code=Code.REMOTE_DAMAGED)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What one document says of another blob."""

    media_type: str
    digest: str
    """"sha256:" and 64 hexadecimal digits."""
    size_bytes: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    artifact_type: str | None = None

    @classmethod
    def of(cls, media_type: str, content: bytes, **more: Any) -> Self:
        """Return the descriptor of a blob."""
        return cls(media_type, f"sha256:{sha256_hex(content)}", len(content), **more)

    @classmethod
    def from_json(cls, row: Any) -> Self:
        """Read a descriptor; fields that flytune does not use are left out.

        Raises:
            FlytuneError: it is malformed.
        """
        if not isinstance(row, Mapping):
            raise damaged(f"descriptor is not an object: {row!r}")
        size_bytes = row.get("size")
        plain = (
            isinstance(row.get("mediaType"), str)
            and isinstance(row.get("digest"), str)
            and _DIGEST.fullmatch(row["digest"])
            and type(size_bytes) is int
            and size_bytes >= 0
            and isinstance(row.get("artifactType"), str | None)
        )
        if not plain:
            raise damaged(f"descriptor is malformed: {str(row)[:200]}")
        return cls(
            *(row["mediaType"], row["digest"], row["size"]),
            annotations=_texts(row.get("annotations") or {}),
            artifact_type=row.get("artifactType"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the descriptor as a document holds it."""
        row: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size_bytes,
        }
        if self.artifact_type is not None:
            row["artifactType"] = self.artifact_type
        if self.annotations:
            row["annotations"] = dict(self.annotations)
        return row


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest or an index as it was read, byte for byte."""

    media_type: str
    content: bytes

    @property
    def digest(self) -> str:
        """What names it."""
        return f"sha256:{sha256_hex(self.content)}"

    def descriptor(self, **more: Any) -> Descriptor:
        """Return what another document says of it."""
        return Descriptor.of(self.media_type, self.content, **more)

    def row(self) -> Mapping[str, Any]:
        """Return its JSON.

        Raises:
            FlytuneError: it is no JSON object.
        """
        try:
            row = json.loads(self.content)
        except (ValueError, RecursionError) as error:
            raise damaged(f"not JSON: {self.digest}") from error
        if not isinstance(row, Mapping):
            raise damaged(f"not a JSON object: {self.digest}")
        return row


@dataclass(frozen=True, slots=True)
class Image:
    """One bundle: its config and its layers."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str]

    @classmethod
    def read(cls, document: Document) -> Self:
        """Read an image manifest.

        Raises:
            FlytuneError: it is malformed, or no bundle of flytune's.
        """
        row = document.row()
        kind = row.get("artifactType") or _config_type(row)
        if kind not in (ARTIFACT_TYPE, CONFIG_TYPE):
            raise damaged(f"not a bundle of flytune's: `{kind}`")
        layers = row.get("layers")
        if not isinstance(layers, list):
            raise damaged(f"image manifest has no layers: {document.digest}")
        return cls(
            Descriptor.from_json(row.get("config")),
            tuple(Descriptor.from_json(layer) for layer in layers),
            _texts(row.get("annotations") or {}),
        )

    def document(self) -> Document:
        """Return the image manifest."""
        row = {
            "schemaVersion": 2,
            "mediaType": IMAGE_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": self.config.to_json(),
            "layers": [layer.to_json() for layer in self.layers],
            "annotations": dict(self.annotations),
        }
        return Document(IMAGE_TYPE, canonical_json(row))

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Everything that it names, each once."""
        every = (self.config, *self.layers)
        return tuple({one.digest: one for one in every}.values())


def entries(document: Document) -> tuple[Descriptor, ...]:
    """Return what an index names.

    Raises:
        FlytuneError: it is malformed.
    """
    rows = document.row().get("manifests")
    if not isinstance(rows, list):
        raise damaged(f"index has no manifests: {document.digest}")
    return tuple(Descriptor.from_json(row) for row in rows)


def index(found: Iterable[Descriptor]) -> Document:
    """Return an index of bundles, in an order that does not depend on who pushed."""
    ordered = sorted(found, key=lambda one: (entry_identity(one), one.digest))
    row = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "manifests": [one.to_json() for one in ordered],
    }
    return Document(INDEX_TYPE, canonical_json(row))


def described(document: Document) -> Descriptor:
    """Return what an index says of a bundle's image manifest.

    Raises:
        FlytuneError: it is no bundle's.
    """
    notes = Image.read(document).annotations
    return document.descriptor(annotations=notes, artifact_type=ARTIFACT_TYPE)


def joined(held: Iterable[Descriptor], added: Iterable[Descriptor]) -> Document:
    """Return the index of what a tag holds and what is added, which goes first.

    Raises:
        FlytuneError: they are not all bundles of one model.
    """
    every = (*held, *added)
    if any(one.artifact_type != ARTIFACT_TYPE for one in every):
        raise FlytuneError(
            "a tag holds something else than bundles",
            hint="push to another tag",
            code=Code.OTHER_TAG,
        )
    models = {one.annotations.get(MODEL, "") for one in every}
    if len(models) > 1:
        raise FlytuneError(
            f"a tag holds the bundles of one model: {', '.join(sorted(models))}",
            hint="push to a tag or a repository of its own",
            code=Code.OTHER_TAG,
        )
    return index({entry_identity(one): one for one in every}.values())


def entry_identity(entry: Descriptor) -> str:
    """Return what no two entries of one index share; its digest where it says none."""
    return entry.annotations.get(IDENTITY, entry.digest)


def annotations(manifest: Manifest) -> dict[str, str]:
    """Return what an index and an image manifest say of a bundle, for a choice."""
    target = Target.from_json(manifest.target)
    hardware, software = manifest.target["hardware"], manifest.target["software"]
    known = {
        CREATED: manifest.created,
        MODEL: manifest.model.get("name"),
        TARGET: target.slug,
        PREFIX + "product": hardware.get("product"),
        PREFIX + "arch": hardware.get("arch"),
        **{
            PREFIX + name.replace("_", "-"): software.get(name)
            for name in ("torch", "triton", "python_abi")
        },
        TP: ",".join(ranks_of(manifest, "tp")),
        EP: ",".join(ranks_of(manifest, "ep")),
        ENGINE: ",".join(engines_of(manifest)),
        PREFIX + "version": manifest.flytune,
        IDENTITY: _identity(manifest, target),
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def ranks_of(manifest: Manifest, kind: Literal["tp", "ep"]) -> tuple[str, ...]:
    """Return the tensor- or expert-parallel ranks that a bundle serves: one, unless
    merged."""
    return tuple(sorted({str(row.get(kind, 1)) for row in _models(manifest)}))


def engines_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the engines that a bundle serves: one, unless merged."""
    engines = {str(row.get("engine", "transformers")) for row in _models(manifest)}
    return tuple(sorted(engines))


def rank_words(manifest: Manifest) -> tuple[str, ...]:
    """Name the ranks that a bundle serves, such as "8", or "8-ep4" with experts."""
    rows = _models(manifest)
    pairs = ((str(row.get("tp", 1)), str(row.get("ep", 1))) for row in rows)
    return tuple(sorted({tp if ep == "1" else f"{tp}-ep{ep}" for tp, ep in pairs}))


def _models(manifest: Manifest) -> list[Mapping[str, Any]]:
    several = manifest.model.get("models")
    models = several if isinstance(several, list) else [manifest.model]
    return [model for model in models if isinstance(model, Mapping)]


def _identity(manifest: Manifest, target: Target) -> str:
    """Name target, ranks and engines in a form that a tag may hold."""
    digest = sha256_hex(canonical_json(deciding_parts(target)))[:12]
    ranks, engines = (
        re.sub(r"[^a-z0-9]+", "-", " ".join(names).lower())
        for names in (rank_words(manifest), engines_of(manifest))
    )
    # An AMD arch may have features, such as "gfx942:sramecc+".
    slug = re.sub(r"[^a-z0-9_]+", "-", target.slug.lower()).strip("-")
    return f"{slug}.{digest}.tp{ranks}.{engines}"


def _texts(notes: Any) -> Mapping[str, str]:
    if not isinstance(notes, Mapping) or not all(
        isinstance(text, str) for text in notes.values()
    ):
        raise damaged(f"annotations are malformed: {str(notes)[:200]}")
    return dict(notes)


def _config_type(row: Mapping[str, Any]) -> Any:
    config = row.get("config")
    return config.get("mediaType") if isinstance(config, Mapping) else None

"""A repository of an OCI registry as a store.

Source: the OCI distribution specification 1.1.
"""

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from flytune.caches.codes import Code
from flytune.caches.manifest import sha256_hex
from flytune.caches.oci import (
    DOCUMENT_LIMIT_BYTES,
    IMAGE_TYPE,
    INDEX_TYPE,
    Descriptor,
    Document,
    damaged,
    described,
    entries,
    entry_identity,
    joined,
)
from flytune.caches.registry_client import Body, RegistryClient
from flytune.caches.store import AbsentError, Reference
from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    import requests

_ACCEPT = {"Accept": f"{INDEX_TYPE}, {IMAGE_TYPE}"}
# How often an index is written anew because another push changed it meanwhile.
_ADD_ATTEMPTS = 50
_TAG_LIMIT = 128
# What follows the tag's own name: an identity, or its digest where it is too long.
_IDENTITY = re.compile(
    r"[a-z0-9_]+(?:-[a-z0-9_]+)*\.[0-9a-f]{12}\.tp[a-z0-9-]+\.[a-z0-9-]+|[0-9a-f]{32}"
)


class RegistryStore:
    """A repository of a registry; the methods are those of `Store`."""

    def __init__(
        self, reference: Reference, *, insecure: bool = False, ca: Path | None = None
    ) -> None:
        """Connect to nothing yet; the arguments are those of `RegistryClient`."""
        self._client = RegistryClient(reference, insecure=insecure, ca=ca)
        self._reference = reference

    def document(self, asked: str) -> Document:
        response = self._client.request(
            "GET", f"manifests/{asked}", headers=_ACCEPT, stream=True
        )
        if response.status_code == 404:
            raise AbsentError(f"not in the registry: {self._name(asked)}")
        content = b""
        for part in self._client.content(response):
            content += part
            if len(content) > DOCUMENT_LIMIT_BYTES:
                raise damaged(f"manifest is too large: {self._name(asked)}")
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        return Document(kind, content)

    def has(self, blob: Descriptor) -> bool:
        response = self._client.request("HEAD", f"blobs/{blob.digest}")
        return bool(response.status_code != 404)

    def read(self, blob: Descriptor) -> Iterator[bytes]:
        response = self._client.request("GET", f"blobs/{blob.digest}", stream=True)
        if response.status_code == 404:
            raise AbsentError(f"not in the registry: {self._name(blob.digest)}")
        yield from self._client.content(response)

    def write(self, blob: Descriptor, path: Path) -> None:
        begun = self._found(self._client.request("POST", "blobs/uploads/"))
        place = urljoin(begun.url, begun.headers.get("Location", ""))
        joint = "&" if urlsplit(place).query else "?"
        self._found(
            self._client.request(
                *("PUT", f"{place}{joint}digest={blob.digest}"),
                headers={"Content-Type": "application/octet-stream"},
                data=Body(path),
            )
        )

    def put(self, document: Document, tag: str | None) -> None:
        self._found(
            self._client.request(
                *("PUT", f"manifests/{tag or document.digest}"),
                headers={"Content-Type": document.media_type},
                data=document.content,
            )
        )

    def add(self, entry: Descriptor, tag: str) -> Document:
        """Make an entry part of a tag's index, as `Store` says.

        A registry cannot compare and swap a tag. So each entry has a tag of its own,
        which no push of another target writes, and the index is written until it holds
        all of them: whoever writes it last has read the others' tags after they were
        written. That needs a registry where a tag that was written is read at once.
        """
        # Before anything is written: a tag of another model or kind is refused.
        joined(self._held(tag), [entry])
        self.put(self.document(entry.digest), _entry_tag(tag, entry))
        for _ in range(_ADD_ATTEMPTS):
            # Its own is asked for by name: a registry may list it late.
            own = self._tagged(_entry_tag(tag, entry)) or entry
            whole = joined(self._held(tag), [own, *self._tagged_entries(tag)])
            if self._is(tag, whole):
                return whole
            self.put(whole, tag)
            # Pushes that meet go on at different times.
            time.sleep(random.uniform(0, 0.05))
        raise FlytuneError(
            f"other pushes change the tag all the time: {self._name(tag)}",
            hint="push again",
            code=Code.CONTENDED,
        )

    def _held(self, tag: str) -> tuple[Descriptor, ...]:
        try:
            document = self.document(tag)
        except AbsentError:
            return ()
        if document.media_type != INDEX_TYPE:
            raise FlytuneError(
                f"tag is of something else than an index: {self._name(tag)}",
                hint="push to another tag",
                code=Code.OTHER_TAG,
            )
        return entries(document)

    def _tagged_entries(self, tag: str) -> Iterator[Descriptor]:
        prefix = _prefix(tag)
        for name in self._tags():
            if name.startswith(prefix) and _IDENTITY.fullmatch(name[len(prefix) :]):
                found = self._tagged(name)
                if found is not None:
                    yield found

    def _tagged(self, name: str) -> Descriptor | None:
        """Return a tag's entry; None while another push writes it."""
        try:
            return described(self.document(name))
        except AbsentError:
            return None

    def _is(self, tag: str, document: Document) -> bool:
        try:
            return self.document(tag) == document
        except AbsentError:
            return False

    def _tags(self) -> Iterator[str]:
        url = "tags/list"
        while url:
            response = self._found(self._client.request("GET", url))
            yield from response.json().get("tags") or ()
            following = response.links.get("next", {}).get("url")
            url = urljoin(response.url, following) if following else ""

    def _found(self, response: "requests.Response") -> "requests.Response":
        if response.status_code == 404:
            raise AbsentError(f"not in the registry: {self._reference.repository}")
        return response

    def _name(self, asked: str) -> str:
        joint = "@" if asked.startswith("sha256:") else ":"
        return f"{self._reference.repository}{joint}{asked}"


def _prefix(tag: str) -> str:
    """Return how the tags of a tag's entries begin; none is that of another tag's."""
    # Half of a tag's length is the identity's.
    short = tag if len(tag) < _TAG_LIMIT // 2 else sha256_hex(tag.encode())[:32]
    return f"{short}--"


def _entry_tag(tag: str, entry: Descriptor) -> str:
    name = f"{_prefix(tag)}{entry_identity(entry)}"
    if len(name) <= _TAG_LIMIT:
        return name
    return f"{_prefix(tag)}{sha256_hex(entry_identity(entry).encode())[:32]}"

"""Bundles on the Hugging Face Hub: a folder `TARGET/MODEL` of a model's repository.

The folder is the bundle as a directory, file by file. `$HF_ENDPOINT` and the token are
huggingface_hub's own affair.
"""

import glob
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle, writing
from flytune.caches.choice import NoBundleError, Wanted, choose, read_manifest
from flytune.caches.codes import Code
from flytune.caches.manifest import MANIFEST_NAME, Manifest, check_path
from flytune.caches.oci import (
    TARGET,
    Descriptor,
    annotations,
    engines_of,
    rank_words,
)
from flytune.caches.packing import check_absent, publish
from flytune.caches.registry_client import certificates
from flytune.caches.scratch import beside
from flytune.caches.shipping import Shipped, file_name, model_word
from flytune.caches.store import HUB_SCHEME
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError

_REFERENCE = re.compile(
    rf"{HUB_SCHEME}(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?"
)
_FOLDER = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository of the hub and one of its revisions."""

    repo: str
    """"ORG/REPO"."""
    revision: str
    """A branch, a tag or a commit."""

    @classmethod
    def parse(cls, text: str) -> "HubReference":
        """Read `hf://ORG/REPO[@REVISION]`; the revision is "main" where none is named.

        Raises:
            FlytuneError: it is none.
        """
        found = _REFERENCE.fullmatch(text)
        if found is None:
            raise FlytuneError(
                f"not a reference: {text!r}",
                hint="hf://ORG/REPO[@REVISION]",
                code=Code.REFERENCE,
            )
        return cls(found["repo"], found["revision"] or "main")

    def at(self, commit: str) -> str:
        """Return the reference of one commit."""
        return f"{HUB_SCHEME}{self.repo}@{commit}"

    def __str__(self) -> str:
        return self.at(self.revision)


def push_to_hub(bundle: Path, reference: str, ca: Path | None = None) -> Shipped:
    """Commit a bundle to its folder of a repository, in place of what is there.

    Args:
        ca: as for `RegistryClient`.

    Raises:
        FlytuneError: the bundle is corrupt, the repository is not there, or the hub
            cannot be reached or refuses.
    """
    place, opened = HubReference.parse(reference), Bundle.open(bundle)
    folder = _folder(opened.manifest)
    with (
        _hub(place, ca) as api,
        tempfile.TemporaryDirectory(prefix="flytune-push-") as directory,
    ):
        # It says at once what is wrong with the repository; an upload tries again.
        api.repo_info(place.repo, revision=place.revision)
        placed = Path(directory) / "bundle"
        opened.place(placed)
        for name, content in opened.heads().items():
            (placed / name).write_bytes(content)
        commit = api.upload_folder(
            repo_id=place.repo,
            revision=place.revision,
            folder_path=placed,
            path_in_repo=folder,
            commit_message=f"Put flytune's bundle {opened.digest[:12]} into {folder}",
            delete_patterns="*",
        )
    return Shipped(place.at(commit.oid))


def pull_from_hub(
    reference: str, wanted: Wanted, out: Path | None = None, ca: Path | None = None
) -> Shipped:
    """Fetch the bundle of a repository that is wanted, all of it at one commit.

    Args:
        out: as for `pull`.
        ca: as for `RegistryClient`.

    Raises:
        FlytuneError: as `pull`.
    """
    place = HubReference.parse(reference)
    if out is not None:
        check_absent(out)
    parent = Path() if out is None else out.parent
    with (
        writing(parent),
        _hub(place, ca) as api,
        beside(parent / "pull") as fetched,
    ):
        info = api.repo_info(place.repo, revision=place.revision)
        folders = _folders([one.rfilename for one in info.siblings or ()])

        def fetch(patterns: Sequence[str]) -> None:
            api.snapshot_download(
                place.repo,
                revision=info.sha,
                allow_patterns=list(patterns),
                local_dir=fetched,
            )

        fetch([f"{glob.escape(folder)}/{MANIFEST_NAME}" for folder in folders])
        manifests: dict[str, Manifest | str] = {}
        offered = []
        for folder in folders:
            found = read_manifest((fetched / folder / MANIFEST_NAME).read_bytes())
            notes = {TARGET: folder} if isinstance(found, str) else annotations(found)
            manifests[folder] = found
            offered.append(Descriptor("", folder, 0, notes))
        folder = choose(offered, wanted, lambda entry: manifests[entry.digest]).digest
        fetch([f"{glob.escape(folder)}/*"])
        manifest = Bundle.open(fetched / folder).manifest
        target = out or Path(file_name(manifest))
        publish(fetched / folder, target)
    return Shipped(place.at(str(info.sha)), out=target)


def _folder(manifest: Manifest) -> str:
    """Return the folder of a bundle: one target, model, rank and engine."""
    ranks, engines = rank_words(manifest), engines_of(manifest)
    plain = (ranks, engines) == (("1",), ("transformers",))
    rank = "" if plain else f".tp{'-'.join(ranks)}.{'-'.join(engines)}"
    word = re.sub(r"[^\w.-]+", "-", f"{model_word(manifest)}{rank}")
    return f"{Target.from_json(manifest.target).slug}/{word}"


def _folders(names: Sequence[str]) -> tuple[str, ...]:
    """Return the folders of a repository that are bundles.

    Raises:
        FlytuneError: there is none, or a file of one climbs out of it.
    """
    found = []
    for name in names:
        folder, _, last = name.rpartition("/")
        if last == MANIFEST_NAME and _FOLDER.fullmatch(folder):
            found.append(folder)
    for name in names:
        if name.startswith(tuple(f"{folder}/" for folder in found)):
            check_path(name)
    if not found:
        raise FlytuneError("no bundle is in the repository", code=Code.ABSENT)
    return tuple(sorted(found))


@contextmanager
def _hub(place: HubReference, ca: Path | None) -> Iterator[Any]:
    """Give the hub's API; its errors become one line.

    Raises:
        FlytuneError: in place of them.
    """
    if named := certificates(ca):
        # What OpenSSL itself reads, whatever HTTP library is used.
        os.environ["SSL_CERT_FILE"] = str(named)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import HfApi, errors

    try:
        yield HfApi()
    except errors.RevisionNotFoundError as error:
        raise NoBundleError(
            f"the hub has no such revision: {place}", code=Code.ABSENT
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FlytuneError(
            f"the hub has no such repository, or none for you: {place}",
            hint="make it with `hf repo create`, or log in with `hf auth login`",
            code=Code.REFUSED,
        ) from error
    except errors.HfHubHTTPError as error:
        reason = str(error).partition("\n")[0]
        raise FlytuneError(
            f"the hub refuses: {place}: {reason}", code=Code.REFUSED
        ) from error
    except Exception as error:
        # Its library raises what its HTTP library does, which is another in each of
        # its major releases.
        if not type(error).__module__.startswith("httpx"):
            raise
        reason = str(error) or type(error).__name__
        raise FlytuneError(
            f"the hub cannot be reached: {place}: {reason}", code=Code.UNREACHABLE
        ) from error

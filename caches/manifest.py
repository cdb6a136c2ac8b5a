"""The manifest: what a bundle holds, for which target, and each file's digest."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, NoReturn, Self

from flytune.caches.codes import Code
from flytune.shapes.errors import FlytuneError

MANIFEST_SCHEMA = 2
MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "signature.json"
"""The one file besides that no manifest lists: it signs the manifest."""
MANIFEST_LIMIT_BYTES = 64 * 2**20
PATH_LIMIT_BYTES = 1024

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_SOFTWARE = ("serving", "stand-in")


class FileEntry(NamedTuple):
    """One file of a bundle."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a bundle holds; parts that others own are plain JSON mappings.

    Raises:
        FlytuneError: a field has the wrong type or a value outside its set.
    """

    created: str
    """UTC, ISO 8601, ending in "Z" or "+00:00"."""
    flytune: str
    """The version that packed it."""
    model: Mapping[str, Any]
    """`name`, `architecture`, `config_sha256`, and `tp` and `engine` since there are
    merged bundles, whose `models` has these of each; `ep` since it may be given."""
    program: Mapping[str, Any]
    """What verify runs."""
    policy: Mapping[str, Any]
    """The serving policy: what install sets."""
    inductor_config: Mapping[str, str]
    """Inductor's whole portable config, a name to the repr of its value."""
    target: Mapping[str, Mapping[str, Any]]
    """`hardware` and `software`, the parts of the target that it was built for."""
    software: Literal["serving", "stand-in"]
    """Whether the serving environment's own torch and Triton built it."""
    timed_on: str | None
    """The device that the times come from; None where none was timed."""
    coverage: Mapping[str, Any]
    winners: tuple[Mapping[str, Any], ...]
    bake: Mapping[str, Any]
    """`passes`, `settled` and `remaining`."""
    verify: Mapping[str, Any] | None = None
    """What verify found; None where it was not run."""
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    """A path in the bundle to its digest and size; `pack` fills it."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How it was built: `command`, `commit`, `image` and `host`; since schema 2."""
    schema: int = MANIFEST_SCHEMA

    def __post_init__(self) -> None:
        _check_schema(self.schema)
        for name in ("created", "flytune", "software"):
            _check(name, isinstance(getattr(self, name), str), "a string")
        for name in _MAPPINGS:
            _check(name, isinstance(getattr(self, name), Mapping), "an object")
        _check("created", bool(_CREATED.fullmatch(self.created)), "a UTC time")
        _check("software", self.software in _SOFTWARE, " or ".join(_SOFTWARE))
        _check("timed_on", isinstance(self.timed_on, str | None), "a string or null")
        _check("verify", isinstance(self.verify, Mapping | None), "an object or null")
        texts = all(isinstance(text, str) for text in self.inductor_config.values())
        _check("inductor_config", texts, "an object of strings")
        _check_each("winners", self.winners, tuple)
        for part in ("hardware", "software"):
            _require(part in self.target, f"manifest field missing: `target.{part}`")
        _check("target", _all_mappings(self.target.values()), "an object of objects")
        stray = self.provenance and "provenance" not in _names(self.schema)
        _require(not stray, "manifest field unknown: `provenance`")
        _check_files(self.files)

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Return the manifest of canonical or other JSON.

        Raises:
            FlytuneError: not JSON, a field is missing, unknown or of the wrong
                type, or the schema is newer.
        """
        row = parse_object(text, "manifest")
        # A newer schema may lack or add fields: say so before naming one of them.
        _require("schema" in row, "manifest field missing: `schema`")
        _check_schema(row["schema"])
        names = _names(row["schema"])
        if missing := sorted(names - row.keys()):
            raise _broken(f"manifest field missing: `{missing[0]}`")
        if unknown := sorted(row.keys() - names):
            raise _broken(f"manifest field unknown: `{unknown[0]}`")
        _check_each("winners", row["winners"], list)
        row["winners"] = tuple(row["winners"])
        row["files"] = _files_from_row(row["files"])
        return cls(**row)

    @property
    def compiled_only(self) -> bool:
        """Whether it holds kernels for another build, and nothing to serve from."""
        return self.bake.get("passes") == []

    def to_json(self) -> bytes:
        """Return canonical JSON: sorted keys, no spaces, one closing newline.

        Raises:
            FlytuneError: a mapping holds what JSON cannot.
        """
        row = {name: getattr(self, name) for name in _names(self.schema)}
        row["files"] = {
            path: {"sha256": entry.sha256, "size": entry.size_bytes}
            for path, entry in self.files.items()
        }
        return canonical_json(row)


_MAPPINGS = (
    *("model", "program", "policy", "inductor_config", "target", "coverage"),
    *("bake", "files", "provenance"),
)
# What a newer schema added, which an older one must not have.
_SINCE = {"provenance": 2}


def canonical_json(value: Any) -> bytes:
    """Return sorted, compact JSON with one closing newline.

    Raises:
        FlytuneError: the value holds what JSON cannot, such as NaN.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _broken(f"not JSON: {error}") from error
    return text.encode() + b"\n"


def parse_object(text: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object in which no key appears twice and no number is NaN.

    Args:
        what: what the text is, for the error.

    Raises:
        FlytuneError: it is not UTF-8, not JSON, or not an object.
    """
    try:
        row = json.loads(
            text.decode(), parse_constant=_no_constant, object_pairs_hook=_no_twins
        )
    except UnicodeDecodeError as error:
        raise _broken(f"{what} is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise _broken(f"{what} is not JSON: {error}") from error
    _require(isinstance(row, dict), f"{what} is not a JSON object")
    return dict(row)


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 in lower-case hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def is_digest(text: object) -> bool:
    """Return whether a text has the form of `sha256_hex`'s."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_path(path: str) -> None:
    """Check that a member's path is plain, relative and stays in the bundle.

    Raises:
        FlytuneError: it is absolute, climbs with `..`, or cannot be a file name.
    """
    if path.startswith("/"):
        raise FlytuneError(f"absolute path in bundle: {path!r}", code=Code.ABSOLUTE)
    parts = path.split("/")
    if ".." in parts:
        raise FlytuneError(f"path climbs out of the bundle: {path!r}", code=Code.CLIMBS)
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError as error:
        raise FlytuneError(
            f"path in bundle is not UTF-8: {path!r}", code=Code.NAME
        ) from error
    plain = "\0" not in path and "\\" not in path and "." not in parts
    short = max(sizes) <= 255 and sum(sizes) + len(sizes) <= PATH_LIMIT_BYTES
    if not (plain and short and all(sizes)):
        raise FlytuneError(
            f"path in bundle is not a plain file name: {path[:99]!r}", code=Code.NAME
        )


def _names(schema: int) -> frozenset[str]:
    """Return the fields of a schema."""
    names = (f.name for f in fields(Manifest))
    return frozenset(name for name in names if _SINCE.get(name, 1) <= schema)


def _check_schema(schema: object) -> None:
    _check("schema", type(schema) is int and schema >= 1, "a number from 1 up")
    if isinstance(schema, int) and schema > MANIFEST_SCHEMA:
        raise FlytuneError(
            f"manifest schema {str(schema)[:9]} is newer than this flytune reads: "
            f"{MANIFEST_SCHEMA}",
            hint="upgrade flytune, or build the bundle again with this one",
            code=Code.NEWER,
        )


def _check_files(files: Mapping[str, FileEntry]) -> None:
    for path, entry in files.items():
        check_path(path)
        _require(path != MANIFEST_NAME, f"manifest lists itself: {path}")
        _require(path != SIGNATURE_NAME, f"manifest lists its signature: {path}")
        size_ok = type(entry.size_bytes) is int and 0 <= entry.size_bytes < 2**63
        _require(size_ok, f"manifest size of a file is wrong: {path}")
        _require(is_digest(entry.sha256), f"manifest digest of a file is wrong: {path}")
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            parent = "/".join(parents[:depth])
            is_file = parent in files or parent in (MANIFEST_NAME, SIGNATURE_NAME)
            _require(not is_file, f"path in bundle is file and folder: {parent}")


def _files_from_row(row: object) -> dict[str, FileEntry]:
    if not isinstance(row, dict):
        raise _broken("manifest field `files` is not an object")
    entries = {}
    for path, entry in row.items():
        if not isinstance(entry, dict) or entry.keys() != {"sha256", "size"}:
            raise _broken(f"manifest entry of a file is wrong: {path[:99]!r}")
        entries[path] = FileEntry(entry["sha256"], entry["size"])
    return entries


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"not a number: {name}")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key appears twice")
    return row


def _check_each(
    name: str, value: object, kind: type[tuple[Any]] | type[list[Any]]
) -> None:
    whole = isinstance(value, kind) and _all_mappings(value)
    _check(name, whole, "a list of objects")


def _all_mappings(values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def _check(name: str, holds: bool, kind: str) -> None:
    _require(holds, f"manifest field `{name}` is not {kind}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise _broken(message)


def _broken(message: str) -> FlytuneError:
    return FlytuneError(message, code=Code.MANIFEST)

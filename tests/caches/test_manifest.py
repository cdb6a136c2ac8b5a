import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from bundles import FILES, listing, manifest

from flytune.caches.manifest import FileEntry, Manifest, check_path
from flytune.shapes.errors import FlytuneError


def row() -> dict[str, Any]:
    return dict(json.loads(listing(FILES).to_json()))


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_round_trip_is_canonical() -> None:
    text = listing(FILES).to_json()
    assert Manifest.from_json(text) == listing(FILES)
    assert Manifest.from_json(text).to_json() == text
    assert text.endswith(b"}\n")
    assert list(json.loads(text)) == sorted(json.loads(text))


@pytest.mark.parametrize("name", sorted(row()))
def test_missing_field(name: str) -> None:
    rest = {key: value for key, value in row().items() if key != name}
    with pytest.raises(FlytuneError, match=f"manifest field missing: `{name}`"):
        Manifest.from_json(dump(rest))


def test_missing_half_of_the_target() -> None:
    with pytest.raises(FlytuneError, match=r"missing: `target\.software`"):
        Manifest.from_json(dump(row() | {"target": {"hardware": {}}}))


def test_unknown_field() -> None:
    with pytest.raises(FlytuneError, match="manifest field unknown: `colour`"):
        Manifest.from_json(dump(row() | {"colour": 1}))


def test_schema_1_has_no_provenance() -> None:
    older = row() | {"schema": 1}
    with pytest.raises(FlytuneError, match="manifest field unknown: `provenance`"):
        Manifest.from_json(dump(older))
    del older["provenance"]
    read = Manifest.from_json(dump(older))
    assert (read.schema, read.provenance) == (1, {})
    assert "provenance" not in json.loads(read.to_json())
    with pytest.raises(FlytuneError, match="manifest field unknown: `provenance`"):
        replace(read, provenance={"host": "builder"})


def test_newer_schema_is_named_before_its_unknown_fields() -> None:
    newer = row() | {"schema": 7, "colour": 1}
    with pytest.raises(FlytuneError, match="schema 7 is newer than this flytune reads"):
        Manifest.from_json(dump(newer))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", 0),
        ("schema", True),
        ("schema", "1"),
        ("created", "yesterday"),
        ("created", 5),
        ("flytune", None),
        ("model", []),
        ("policy", "default"),
        ("inductor_config", {"max_autotune": True}),
        ("target", {"hardware": [], "software": {}}),
        ("software", "other"),
        ("software", []),
        ("timed_on", 3),
        ("winners", {}),
        ("winners", [1]),
        ("verify", []),
        ("bake", None),
        ("files", []),
        ("provenance", []),
        ("provenance", None),
    ],
)
def test_wrong_type(name: str, value: object) -> None:
    with pytest.raises(FlytuneError, match=f"manifest field `{name}` is not"):
        Manifest.from_json(dump(row() | {name: value}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"schema": NaN}', "not JSON"),
        (b'{"schema": 1, "schema": 1}', "a key appears twice"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b'{"schema": ' + b"9" * 10_000 + b"}", "not JSON"),
    ],
)
def test_text_that_is_no_manifest(text: bytes, message: str) -> None:
    with pytest.raises(FlytuneError, match=message):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    "entry",
    [
        {"sha256": "0" * 64},
        {"sha256": "0" * 64, "size": 1, "mode": 1},
        {"sha256": "0" * 63, "size": 1},
        {"sha256": "A" * 64, "size": 1},
        {"sha256": None, "size": 1},
        {"sha256": "0" * 64, "size": -1},
        {"sha256": "0" * 64, "size": 1.5},
        {"sha256": "0" * 64, "size": 2**63},
        [],
    ],
)
def test_bad_entry(entry: object) -> None:
    with pytest.raises(FlytuneError, match="of a file is wrong"):
        Manifest.from_json(dump(row() | {"files": {"inductor/a": entry}}))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/passwd", "absolute path"),
        ("inductor/../../x", "climbs out"),
        ("..", "climbs out"),
        ("", "not a plain"),
        (".", "not a plain"),
        ("a//b", "not a plain"),
        ("a/", "not a plain"),
        ("a/./b", "not a plain"),
        ("a\\b", "not a plain"),
        ("a\0b", "not a plain"),
        ("a" * 256, "not a plain"),
        ("a/" * 600 + "a", "not a plain"),
        ("\ud800", "not UTF-8"),
    ],
)
def test_bad_path(path: str, message: str) -> None:
    with pytest.raises(FlytuneError, match=message):
        check_path(path)
    with pytest.raises(FlytuneError, match=message):
        replace(manifest(), files={path: FileEntry("0" * 64, 0)})


@pytest.mark.parametrize(
    "files",
    [
        {"a": b"", "a/b": b""},
        {"a/b/c": b"", "a": b""},
        {"manifest.json/x": b""},
        {"signature.json/x": b""},
    ],
)
def test_path_that_is_file_and_folder(files: Mapping[str, bytes]) -> None:
    with pytest.raises(FlytuneError, match="file and folder"):
        listing(files)


def test_manifest_that_lists_itself() -> None:
    with pytest.raises(FlytuneError, match="lists itself"):
        listing({"manifest.json": b""})
    with pytest.raises(FlytuneError, match="lists its signature"):
        listing({"signature.json": b""})


def test_value_that_json_cannot_hold() -> None:
    with pytest.raises(FlytuneError, match="not JSON"):
        manifest(bake={"ratio": float("nan")}).to_json()

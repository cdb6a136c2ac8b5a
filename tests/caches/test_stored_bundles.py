"""A stored bundle of each schema is read as it was written."""

from pathlib import Path

import pytest
from bundles import tree

from flytune.caches.bundle import Bundle
from flytune.caches.key_files import load_public
from flytune.caches.keyring import Keyring
from flytune.caches.manifest import MANIFEST_SCHEMA
from flytune.caches.records import read_records
from flytune.caches.trust import HERE, Standing, Trust, UntrustedError, admit, signers

STORED = Path(__file__).parents[1] / "data" / "bundles"
DIGESTS = {
    1: "f42ae387519f95647ca546f4e656001375c7bd13753894923e88f10a542fb568",
    2: "130e8890ae0f570efa38bd9bf7ffc0fc895ef5a397e667dbcba3f186cd49a6b0",
}


def stored(schema: int) -> Path:
    return STORED / f"schema-{schema}.tar.zst"


def test_there_is_one_of_each_schema() -> None:
    assert sorted(DIGESTS) == list(range(1, MANIFEST_SCHEMA + 1))
    assert {stored(schema) for schema in DIGESTS} == set(STORED.glob("*.tar.zst"))


@pytest.mark.parametrize("schema", DIGESTS)
def test_it_is_read_whole(tmp_path: Path, schema: int) -> None:
    bundle = Bundle.open(stored(schema))
    assert (bundle.digest, bundle.manifest.schema) == (DIGESTS[schema], schema)
    assert bundle.manifest.to_json() == bundle.text
    assert bundle.manifest.model["name"] == "tiny-llama"
    assert bundle.manifest.program["kind"] == "transformers"
    assert bundle.manifest.verify is not None
    assert len(bundle.manifest.winners) == 7
    bundle.place(tmp_path / "placed")
    assert tree(tmp_path / "placed").keys() == bundle.manifest.files.keys()
    records = read_records(tmp_path / "placed" / "records.parquet")
    assert [(record.ep, record.reach) for record in records] == [(1, None)] * 7


def test_schema_1_has_no_provenance_and_no_signature(tmp_path: Path) -> None:
    bundle = Bundle.open(stored(1))
    assert (bundle.manifest.provenance, bundle.envelope) == ({}, None)
    with pytest.raises(UntrustedError):
        admit(bundle, HERE)
    admit(Bundle.open(f"{stored(1)}@sha256:{DIGESTS[1]}"), HERE)


def test_schema_2_has_both() -> None:
    bundle = Bundle.open(stored(2))
    assert bundle.manifest.provenance.keys() == {"command", "commit", "host", "image"}
    keys = {key.keyid: key for key in map(load_public, STORED.glob("*.pub"))}
    found = signers(bundle, Keyring(keys, frozenset()))
    assert [one.standing for one in found] == [Standing.TRUSTED] * 2
    assert {one.keyid for one in found} == keys.keys()
    admit(bundle, Trust((STORED / "second.pub",)))
    with pytest.raises(UntrustedError):
        admit(bundle, HERE)

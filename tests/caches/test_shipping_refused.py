"""What a pull refuses: hostile layers, wrong references, and who has no right to it."""

import io
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from bundles import elsewhere, installable
from registry import (
    authority,
    htpasswd,
    log_in,
    registry,
    token_server,
)
from shipped import fetch, isolate, send

from flytune.caches.archive import ArchiveWriter
from flytune.caches.choice import Wanted
from flytune.caches.layout import LayoutStore
from flytune.caches.oci import (
    PART_TYPE,
    TARGET,
    Descriptor,
    Document,
    described,
    entries,
)
from flytune.caches.shipping import pull, push, store_of
from flytune.caches.store import Reference
from flytune.shapes.errors import FlytuneError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return isolate(tmp_path, monkeypatch)


def hostile(folder: Path, layers: Any) -> str:
    """A layout with a bundle's image whose layers were changed; its reference."""
    reference = f"oci:{folder / 'layout'}"
    pushed = send(installable(folder), reference)
    store = LayoutStore(Reference.parse(reference))
    image = store.document(pushed.bundle.partition("@")[2])
    row = {**image.row(), "layers": layers(store, list(image.row()["layers"]))}
    document = Document(image.media_type, json.dumps(row).encode())
    store.put(document, "hostile")
    return f"{reference}:hostile"


def part_with(*files: tuple[str, bytes]) -> Any:
    """Put a part with these members in the place of that with the timings."""

    def change(store: LayoutStore, layers: list[Any]) -> list[Any]:
        content = io.BytesIO()
        archive = ArchiveWriter(content)
        for name, text in files:
            archive.add(name, len(text), io.BytesIO(text))
        archive.finish()
        blob = Descriptor.of(PART_TYPE, content.getvalue())
        store.fill(blob, iter([content.getvalue()]))
        kept = [one for one in layers if "timings" not in str(one)]
        return [*kept, blob.to_json()]

    return change


def larger(store: LayoutStore, layers: list[Any]) -> list[Any]:
    return [{**one, "size": 2**40} for one in layers]


def unknown(store: LayoutStore, layers: list[Any]) -> list[Any]:
    return [{**one, "mediaType": "application/octet-stream"} for one in layers]


TIMINGS = "inductor/cache/5e1f"


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (part_with(("inductor/other", b"")), "a file that its manifest does not list"),
        (part_with(("../../x", b"")), "path climbs out"),
        (part_with((TIMINGS, b"")), "another size than its manifest"),
        (part_with((TIMINGS, b"x" * 13)), "another digest than its manifest"),
        (part_with(*[(TIMINGS, b"x" * 13)] * 2), "holds a member twice"),
        (part_with(("keys.json", b"[]\n")), "holds a member twice"),
        (part_with(), "lacks a file of its manifest"),
        (larger, "layer is larger than the bundle"),
        (unknown, "layer is of an unknown kind"),
        (lambda store, layers: [{}], "descriptor is malformed"),
        (lambda store, layers: {}, "image manifest has no layers"),
    ],
)
def test_hostile_layers_leave_nothing(tmp_path: Path, layers: Any, words: str) -> None:
    reference = hostile(tmp_path, layers)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(FlytuneError, match=words):
        fetch(reference, tmp_path / "out")
    after = sorted(path.name for path in tmp_path.iterdir() if path.name != "home")
    assert after == before


@pytest.mark.parametrize(
    ("text", "place", "name", "tag"),
    [
        ("ghcr.io/org/repo", "ghcr.io", "org/repo", "latest"),
        ("localhost/repo:v1", "localhost", "repo", "v1"),
        ("host:5000/a/b-c:v1.2", "host:5000", "a/b-c", "v1.2"),
        ("[::1]:5000/a", "[::1]:5000", "a", "latest"),
        ("oci:/mnt/stick", "/mnt/stick", "", "latest"),
        ("oci:stick:v1", "stick", "", "v1"),
        ("oci:a:b/c", "a:b/c", "", "latest"),
    ],
)
def test_references(text: str, place: str, name: str, tag: str) -> None:
    found = Reference.parse(text)
    assert found == Reference(place, name, tag, None)
    digest = "sha256:" + "a" * 64
    pinned = Reference.parse(f"{text}@{digest}")
    assert pinned == replace(found, digest=digest)
    assert Reference.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "repo", "org/repo", "host:5000/A", "ghcr.io/a@sha256:1", "oci:", "a b.c/d"],
)
def test_no_references(text: str) -> None:
    with pytest.raises(FlytuneError, match="not a reference"):
        Reference.parse(text)


def test_folder_without_a_layout(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match=r"no image layout: .*"):
        fetch(f"oci:{tmp_path}", tmp_path / "out")


def test_newer_schema_in_a_fleet_is_no_obstacle(tmp_path: Path) -> None:
    reference = f"oci:{tmp_path / 'layout'}"
    send(installable(tmp_path, "far.tar.zst", target=elsewhere()), reference)
    store = LayoutStore(Reference.parse(reference))
    (entry,) = entries(store.document("latest"))
    image = store.document(entry.digest)
    text = json.dumps({"schema": 99}).encode()
    config = Descriptor.of("application/vnd.flytune.manifest.v1+json", text)
    store.fill(config, iter([text]))
    row = {**image.row(), "config": config.to_json()}
    newer = Document(image.media_type, json.dumps(row).encode())
    store.put(newer, None)
    store.add(described(newer), "latest")
    with pytest.raises(FlytuneError, match="manifest schema 99 is newer"):
        fetch(reference, tmp_path / "out", for_host=True)
    send(installable(tmp_path), reference)
    assert fetch(reference, tmp_path / "out", for_host=True).out == tmp_path / "out"
    with pytest.raises(FlytuneError, match="manifest schema 99 is newer"):
        fetch(reference, tmp_path / "other", target=entry.annotations[TARGET])


def test_own_ca_and_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, pair = authority(tmp_path / "ca")
    bundle = installable(tmp_path)
    with registry(tmp_path / "r", tls=pair, auth=htpasswd(tmp_path / "r")) as running:
        reference = Reference.parse(f"{running.place}/team/tiny")
        with pytest.raises(FlytuneError, match=r"TLS failure: .*verify failed"):
            push(bundle, reference, store_of(reference))
        with pytest.raises(FlytuneError, match=r"registry refuses: .*: 401") as caught:
            push(bundle, reference, store_of(reference, ca=ca))
        assert caught.value.code == "FT805"
        assert caught.value.hint == f"docker login {running.place}"
        docker = log_in(tmp_path / "docker", running.place)
        monkeypatch.setenv("DOCKER_CONFIG", str(docker))
        pushed = push(bundle, reference, store_of(reference, ca=ca))
        for name in ("FLYTUNE_CA", "REQUESTS_CA_BUNDLE"):
            with monkeypatch.context() as patch:
                patch.setenv(name, str(ca))
                out = tmp_path / name
                pulled = pull(reference, store_of(reference), Wanted(), out)
                assert pulled.bundle == pushed.bundle
        with pytest.raises(FlytuneError, match="no such file of cert") as caught:
            store_of(reference, ca=tmp_path / "none")
        assert caught.value.code == "FT811"
        with pytest.raises(FlytuneError, match=r"--insecure|400 Bad Request"):
            pull(reference, store_of(reference, insecure=True), Wanted())


def test_a_registry_that_fails(tmp_path: Path) -> None:
    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500)

    server = HTTPServer(("127.0.0.1", 0), Failing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(FlytuneError, match=r"registry failed: .*: 500") as caught:
            fetch(f"127.0.0.1:{server.server_port}/team/tiny", tmp_path / "out")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert caught.value.code == "FT807"


def test_a_token_for_each_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, pair = authority(tmp_path / "ca")
    bundle = installable(tmp_path)
    with (
        token_server(pair, ca) as auth,
        registry(tmp_path / "r", auth=auth) as running,
    ):
        reference = Reference.parse(f"{running.place}/team/tiny")
        with pytest.raises(FlytuneError, match="registry refuses"):
            push(bundle, reference, store_of(reference, insecure=True))
        docker = log_in(tmp_path / "docker", running.place)
        monkeypatch.setenv("DOCKER_CONFIG", str(docker))
        # It looks with the right to read, and then writes.
        pushed = push(bundle, reference, store_of(reference, insecure=True))
        pulled = pull(reference, store_of(reference, insecure=True), Wanted())
        assert pulled.bundle == pushed.bundle

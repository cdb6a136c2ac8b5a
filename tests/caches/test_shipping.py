"""Push, pull and mirror against a real registry, with small bundles."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundles import FILES, elsewhere, installable, tree
from registry import (
    Registry,
    registry,
)
from shipped import fetch, held, isolate, other, send

from flytune.caches.bundle import Bundle
from flytune.caches.installed import clear
from flytune.caches.layers import by_part, write_part
from flytune.caches.layout import LayoutStore
from flytune.caches.oci import (
    INDEX_TYPE,
    Document,
)
from flytune.caches.parts import part_of
from flytune.caches.registry import RegistryStore
from flytune.caches.shipping import mirror, store_of
from flytune.caches.store import Reference
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError


@pytest.fixture(scope="module")
def shared_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return isolate(tmp_path, monkeypatch)


@pytest.fixture
def repo(shared_registry: Registry, tmp_path: Path) -> str:
    """A repository of the test's own."""
    name = tmp_path.name.lower().replace("_", "-").strip("-")
    return f"{shared_registry.place}/team/{name}"


@pytest.mark.parametrize("packed", ["b", "b.tar.zst"])
@pytest.mark.parametrize("out", ["out", "out.tar.zst"])
def test_what_was_pushed_is_pulled(
    tmp_path: Path, repo: str, packed: str, out: str
) -> None:
    bundle = installable(tmp_path, packed)
    pushed = send(bundle, f"{repo}:v1")
    assert pushed.moved.blobs == pushed.moved.of_blobs > 5
    pulled = fetch(f"{repo}:v1", tmp_path / out)
    assert (pulled.bundle, pulled.index) == (pushed.bundle, pushed.index)
    heads = Bundle.open(bundle).heads()
    assert Bundle.open(tmp_path / out).heads() == heads
    assert heads.keys() == {"manifest.json", "signature.json"}
    unpacked = tmp_path / "unpacked"
    Bundle.open(tmp_path / out).place(unpacked)
    assert tree(unpacked) == dict(FILES)


def test_archive_of_a_pulled_bundle_is_the_pushed_one(
    tmp_path: Path, repo: str
) -> None:
    bundle = installable(tmp_path, "b.tar.zst")
    send(bundle, repo)
    fetch(repo, tmp_path / "out.tar.zst")
    assert (tmp_path / "out.tar.zst").read_bytes() == bundle.read_bytes()
    assert (tmp_path / "out.tar.zst").stat().st_mode & 0o777 == 0o644


def test_what_is_there_is_not_sent_again(tmp_path: Path, repo: str) -> None:
    bundle = installable(tmp_path)
    first = send(bundle, repo)
    again = send(bundle, repo)
    assert (again.moved.blobs, again.moved.size_bytes) == (0, 0)
    assert (again.bundle, again.index) == (first.bundle, first.index)
    files = {**FILES, "inductor/cache/5e1f": b'{"cache": {"mm": {}}}'}
    changed = installable(tmp_path, "changed.tar.zst", files=files)
    # The manifest, its signature and the timings.
    assert send(changed, repo).moved.blobs == 3


def test_parts_are_the_same_bytes_wherever_they_lie(tmp_path: Path) -> None:
    made = []
    for name in ("first", "second"):
        placed = tmp_path / name
        Bundle.open(installable(tmp_path, f"{name}.tar.zst")).place(placed)
        for part, paths in by_part(FILES).items():
            write_part(placed, paths, tmp_path / f"{name}-{part}")
            made.append((part, (tmp_path / f"{name}-{part}").read_bytes()))
    half = len(made) // 2
    assert made[:half] == made[half:]
    assert {part_of(path) for path in FILES} == {
        *("keys", "records", "timings", "graphs", "triton", "other")
    }


def test_fleet_is_one_index(tmp_path: Path, repo: str) -> None:
    send(installable(tmp_path), f"{repo}:fleet")
    send(installable(tmp_path, "far.tar.zst", target=elsewhere()), f"{repo}:fleet")
    ranks = {"name": "tiny", "tp": 2, "engine": "vllm"}
    send(installable(tmp_path, "tp.tar.zst", model=ranks), f"{repo}:fleet")
    whole = held(f"{repo}:fleet")
    assert len(whole) == 3
    assert sum("amx" in name for name in whole) == 1
    assert sum(name.endswith(" 2 vllm") for name in whole) == 1
    # Expert-parallel ranks hold other experts: it takes nobody's place.
    experts = installable(tmp_path, "ep.tar.zst", model={**ranks, "ep": 2})
    send(experts, f"{repo}:fleet")
    assert len(held(f"{repo}:fleet")) == 4
    whole = held(f"{repo}:fleet")
    # The same target again takes the place of the first.
    newer = installable(tmp_path, "newer.tar.zst", timed_on="cpu")
    pushed = send(newer, f"{repo}:fleet")
    assert held(f"{repo}:fleet") == whole
    pulled = fetch(f"{repo}:fleet", tmp_path / "out", for_host=True, tp=1)
    assert pulled.bundle == pushed.bundle
    # Another driver is no other target.
    target = Target.here(threads=1).to_json()
    target["software"]["driver"] = "999"
    send(installable(tmp_path, "driver.tar.zst", target=target), f"{repo}:fleet")
    assert held(f"{repo}:fleet") == whole


@pytest.mark.parametrize(
    ("vendor", "product", "arch"),
    [
        ("nvidia", "NVIDIA H200", "sm_90"),
        ("amd", "AMD Instinct MI355X", "gfx950"),
        ("amd", "AMD Instinct MI300X", "gfx942:sramecc+:xnack-"),
    ],
)
def test_an_accelerators_bundle_is_in_the_index(
    tmp_path: Path, repo: str, vendor: str, product: str, arch: str
) -> None:
    target = Target.here(threads=1).to_json()
    names = {"vendor": vendor, "product": product, "arch": arch}
    target["hardware"] = {"kind": "cuda", **names}
    send(installable(tmp_path), f"{repo}:mixed")
    send(installable(tmp_path, "gpu.tar.zst", target=target), f"{repo}:mixed")
    (found,) = (name for name in held(f"{repo}:mixed") if name.startswith("cuda"))
    # Of what is kept by its own tag another push makes the same index.
    send(installable(tmp_path, "far.tar.zst", target=elsewhere()), f"{repo}:mixed")
    assert found in held(f"{repo}:mixed")
    assert len(held(f"{repo}:mixed")) == 3
    slug = found.partition(" ")[0]
    pulled = fetch(f"{repo}:mixed", tmp_path / "out", target=slug)
    assert Bundle.open(tmp_path / "out").manifest.target == target
    assert pulled.out == tmp_path / "out"


def test_tag_is_of_one_model(tmp_path: Path, repo: str) -> None:
    send(installable(tmp_path), repo)
    big = installable(tmp_path, "big.tar.zst", model={"name": "big"})
    with pytest.raises(FlytuneError, match="bundles of one model: big, tiny") as caught:
        send(big, repo)
    assert caught.value.code == "FT809"
    assert len(held(repo)) == 1
    # Tags do not mix, though one's name begins with the other's.
    send(big, f"{repo}:latest--big")
    send(installable(tmp_path, "far.tar.zst", target=elsewhere()), repo)
    assert len(held(repo)) == 2


def test_pushes_at_once_lose_nothing(tmp_path: Path, repo: str) -> None:
    count = 8
    bundles = [
        installable(tmp_path, f"{n}.tar.zst", target=other(isa=[f"isa{n}"]))
        for n in range(count)
    ]
    begin, failures = threading.Barrier(count), []

    def run(bundle: Path) -> None:
        begin.wait()
        try:
            send(bundle, f"{repo}:at-once")
        except FlytuneError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run, args=(bundle,)) for bundle in bundles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(held(f"{repo}:at-once")) == count


def test_a_tag_that_others_change_all_the_time(
    tmp_path: Path, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RegistryStore, "_is", lambda *_: False)
    monkeypatch.setattr("flytune.caches.registry._ADD_ATTEMPTS", 2)
    with pytest.raises(FlytuneError, match="other pushes change the tag") as caught:
        send(installable(tmp_path), f"{repo}:contended")
    assert caught.value.code == "FT810"


def test_host_without_a_bundle_is_told_the_nearest(tmp_path: Path, repo: str) -> None:
    send(installable(tmp_path, "far.tar.zst", target=elsewhere()), repo)
    farther = other(isa=["amx_tile"], l2_bytes=1, arch="riscv64")
    send(installable(tmp_path, "farther.tar.zst", target=farther), repo)
    with pytest.raises(FlytuneError) as caught:
        fetch(repo, tmp_path / "out", for_host=True)
    message = str(caught.value)
    assert message.startswith("no bundle for this host: nearest is cpu-")
    assert "hardware.isa: built for `amx_tile`, here `" in message
    assert "l2_bytes" not in message
    assert not (tmp_path / "out").exists()


def test_bundle_of_bare_kernels_is_for_no_host(tmp_path: Path, repo: str) -> None:
    bare = {"passes": [], "settled": False, "remaining": {}}
    send(installable(tmp_path, bake=bare), repo)
    with pytest.raises(FlytuneError, match="nothing to serve from"):
        fetch(repo, tmp_path / "out", for_host=True)
    assert fetch(repo, tmp_path / "out").out == tmp_path / "out"


def test_one_of_several_must_be_chosen(tmp_path: Path, repo: str) -> None:
    for rank in (1, 2):
        model = {"name": "tiny", "tp": rank}
        send(installable(tmp_path, f"{rank}.tar.zst", model=model), repo)
    with pytest.raises(FlytuneError, match=r"several bundles for this host: .* tp2"):
        fetch(repo, tmp_path / "out", for_host=True)
    with pytest.raises(FlytuneError, match="several bundles: cpu-") as caught:
        fetch(repo, tmp_path / "out")
    assert caught.value.code == "FT804"
    with pytest.raises(FlytuneError, match=r"no bundle for tp4: .* tp1") as caught:
        fetch(repo, tmp_path / "out", tp=4)
    assert caught.value.code == "FT803"
    with pytest.raises(FlytuneError, match="no bundle for gpu-x"):
        fetch(repo, tmp_path / "out", target="gpu-x")
    slug = Target.here(threads=1).slug
    fetch(repo, tmp_path / "out", target=slug, tp=2, engine="transformers")
    assert Bundle.open(tmp_path / "out").manifest.model["tp"] == 2


def test_one_is_chosen_by_expert_parallel_ranks(tmp_path: Path, repo: str) -> None:
    for experts in (1, 4):
        model = {"name": "tiny", "tp": 4, "ep": experts}
        send(installable(tmp_path, f"{experts}.tar.zst", model=model), repo)
    with pytest.raises(
        FlytuneError, match=r"several bundles for tp4: .* tp4 ep4 "
    ) as e:
        fetch(repo, tmp_path / "out", tp=4)
    assert e.value.hint == ("choose by --for-host, --target, --tp, --ep or --engine")
    with pytest.raises(FlytuneError, match=r"no bundle for tp4 ep2: there is "):
        fetch(repo, tmp_path / "out", tp=4, ep=2)
    for experts in (1, 4):
        fetch(repo, tmp_path / f"{experts}", ep=experts)
        assert Bundle.open(tmp_path / f"{experts}").manifest.model["ep"] == experts


def test_pinned_pull_gets_what_was_pinned(tmp_path: Path, repo: str) -> None:
    first = send(installable(tmp_path), repo)
    send(installable(tmp_path, "newer.tar.zst", timed_on="cpu"), repo)
    for pinned, name in ((first.bundle, "bundle"), (first.index, "index")):
        assert fetch(pinned, tmp_path / name).bundle == first.bundle
        assert Bundle.open(tmp_path / name).manifest.timed_on is None
    wrong = first.bundle[:-8] + "00000000"
    with pytest.raises(FlytuneError, match="not in the registry"):
        fetch(wrong, tmp_path / "wrong")
    with pytest.raises(FlytuneError, match="a push cannot be pinned") as caught:
        send(tmp_path / "b.tar.zst", first.bundle)
    assert caught.value.code == "FT801"


def test_pull_goes_on_where_it_was_cut(tmp_path: Path, repo: str, home: Path) -> None:
    send(installable(tmp_path), repo)
    first = fetch(repo, tmp_path / "first")
    assert first.moved.blobs == first.moved.of_blobs
    assert fetch(repo, tmp_path / "second").moved.blobs == 0
    lost, damaged, *_ = sorted((home / "blobs" / "sha256").iterdir())
    lost.unlink()
    damaged.write_bytes(b"x")
    assert fetch(repo, tmp_path / "third").moved.blobs == 2
    assert tree(tmp_path / "third") == tree(tmp_path / "first")


def test_fetched_blobs_are_cleared_when_idle(
    tmp_path: Path, repo: str, home: Path
) -> None:
    pushed = send(installable(tmp_path), repo)
    fetch(repo, tmp_path / "first")
    assert clear(0).blobs == ()
    blobs = sorted((home / "blobs" / "sha256").iterdir())
    assert pushed.moved is not None
    assert len(blobs) == pushed.moved.of_blobs
    for path in blobs[1:]:
        os.utime(path, (0, 0))
    assert len(clear(0, dry_run=True).blobs) == len(blobs) - 1
    assert clear(0).blobs == tuple(path.name for path in blobs[1:])
    assert sorted((home / "blobs" / "sha256").iterdir()) == blobs[:1]


@pytest.mark.parametrize("out", ["out", "out.tar.zst"])
def test_nothing_is_overwritten(tmp_path: Path, repo: str, out: str) -> None:
    send(installable(tmp_path), repo)
    (tmp_path / out).write_text("mine")
    with pytest.raises(FlytuneError, match="output exists"):
        fetch(repo, tmp_path / out)
    assert (tmp_path / out).read_text() == "mine"


def test_pull_names_the_bundle_as_a_build_does(tmp_path: Path, repo: str) -> None:
    send(installable(tmp_path), repo)
    slug = Target.here(threads=1).slug
    assert fetch(repo).out == Path(f"tiny.{slug}.tar.zst")
    with pytest.raises(FlytuneError, match="output exists"):
        fetch(repo)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: b"x" + content[1:], "another digest"),
        (lambda content: content[:-1], "is truncated"),
        (lambda content: content + b"x", "is longer than"),
    ],
)
def test_damaged_blob_is_refused(
    tmp_path: Path, repo: str, shared_registry: Registry, damage: Any, words: str
) -> None:
    files = {**FILES, "inductor/fxgraph/ab/own": tmp_path.name.encode()}
    pushed = send(installable(tmp_path, files=files), repo)
    parsed = Reference.parse(pushed.bundle)
    image = store_of(parsed, insecure=True).document(parsed.asked).row()
    (layer,) = (
        one
        for one in image["layers"]
        if one["annotations"].get("vnd.flytune.part") == "graphs"
    )
    path = shared_registry.blob(layer["digest"])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FlytuneError, match=words) as caught:
        fetch(repo, tmp_path / "out")
    assert caught.value.code == "FT808"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("b.tar.zst", "home", "staged-b.tar.zst")
    ]


def test_what_is_not_there(tmp_path: Path, repo: str) -> None:
    bundle = installable(tmp_path)
    with pytest.raises(FlytuneError, match=r"not in the registry: .*:v9") as caught:
        fetch(f"{repo}:v9", tmp_path / "out")
    assert caught.value.code == "FT802"
    closed = "127.0.0.1:1/team/x"
    for run in (lambda: send(bundle, closed), lambda: fetch(closed, tmp_path / "out")):
        with pytest.raises(FlytuneError, match=r"reached: 127.0.0.1:1: Fail") as caught:
            run()
        assert caught.value.code == "FT806"
    with pytest.raises(FlytuneError, match="cannot read bundle"):
        send(tmp_path / "none", repo)


def test_corrupt_bundle_is_not_sent(tmp_path: Path, repo: str) -> None:
    bundle = installable(tmp_path, "b")
    (bundle / "inductor/cache/5e1f").write_bytes(b'{"cache": []}')
    with pytest.raises(FlytuneError, match="another digest"):
        send(bundle, repo)
    with pytest.raises(FlytuneError, match="not in the registry"):
        held(repo)


def test_tag_of_something_else(tmp_path: Path, repo: str) -> None:
    parsed = Reference.parse(f"{repo}:theirs")
    store = store_of(parsed, insecure=True)
    pushed = send(installable(tmp_path), repo)
    image = store.document(pushed.bundle.partition("@")[2])
    row = {**image.row(), "artifactType": "application/vnd.other"}
    theirs = Document(image.media_type, json.dumps(row).encode())
    store.put(theirs, "theirs")
    with pytest.raises(FlytuneError, match="not a bundle of flytune's"):
        fetch(f"{repo}:theirs", tmp_path / "out")
    with pytest.raises(FlytuneError, match="something else than an index"):
        send(tmp_path / "b.tar.zst", f"{repo}:theirs")
    entry = {"mediaType": theirs.media_type, "digest": theirs.digest}
    entry["size"] = len(theirs.content)  # type: ignore[assignment]
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}
    store.put(Document(INDEX_TYPE, json.dumps(index).encode()), "index")
    with pytest.raises(FlytuneError, match="no bundle: there is none"):
        fetch(f"{repo}:index", tmp_path / "out")
    with pytest.raises(FlytuneError, match="something else than bundles"):
        send(tmp_path / "b.tar.zst", f"{repo}:index")
    # A single manifest under a tag is a bundle too.
    store.put(image, "single")
    assert fetch(f"{repo}:single", tmp_path / "out").bundle == pushed.bundle


def test_folder_serves_as_the_registry_does(tmp_path: Path, repo: str) -> None:
    send(installable(tmp_path), f"{repo}:v1")
    far = installable(tmp_path, "far.tar.zst", target=elsewhere())
    pushed = send(far, f"{repo}:v1")
    source = Reference.parse(f"{repo}:v1")
    layout = Reference.parse(f"oci:{tmp_path / 'stick'}:v1")
    digest, moved = mirror(source, store_of(source, insecure=True), LayoutStore(layout))
    assert pushed.index.endswith(digest)
    assert moved.blobs == moved.of_blobs
    again = mirror(source, store_of(source, insecure=True), LayoutStore(layout))
    assert (again[0], again[1].blobs) == (digest, 0)
    assert held(f"{repo}:v1") == held(str(layout))
    fetch(str(layout), tmp_path / "out", for_host=True)
    assert tree(tmp_path / "out").items() >= dict(FILES).items()
    # A third target is added there as to a registry.
    rank = installable(tmp_path, "tp.tar.zst", model={"name": "tiny", "tp": 2})
    added = send(rank, str(layout))
    assert added.moved.blobs == 2
    assert len(held(str(layout))) == 3
    assert fetch(added.bundle, tmp_path / "tp").bundle == added.bundle
    assert (tmp_path / "stick" / "oci-layout").read_text() == (
        '{"imageLayoutVersion": "1.0.0"}'
    )


def test_mirror_of_a_damaged_blob_leaves_no_tag(
    tmp_path: Path, repo: str, shared_registry: Registry
) -> None:
    pushed = send(installable(tmp_path, timed_on=tmp_path.name), f"{repo}:v1")
    source = Reference.parse(pushed.bundle)
    image = store_of(source, insecure=True).document(source.asked).row()
    path = shared_registry.blob(image["config"]["digest"])
    path.write_bytes(b"x" + path.read_bytes()[1:])
    layout = Reference.parse(f"oci:{tmp_path / 'stick'}:v1")
    with pytest.raises(FlytuneError, match="another digest"):
        mirror(source, store_of(source, insecure=True), LayoutStore(layout))
    with pytest.raises(FlytuneError, match="no image layout"):
        held(str(layout))

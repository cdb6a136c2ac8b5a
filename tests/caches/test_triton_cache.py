"""Triton's own cache manager finds what was moved, installed or mended."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bundles import manifest, signed, stage

from flytune.caches.directories import TRITON_DIR
from flytune.caches.prepare import prepare
from flytune.caches.target import Target
from flytune.caches.triton_cache import is_group, relocate

KERNEL = "triton_mm"
KEYS = ("A" * 52, "B" * 52)
FILES: Mapping[str, bytes] = {
    f"{KERNEL}.cubin": b"\x7fELF machine code",
    f"{KERNEL}.json": b'{"num_warps": 4}',
}
GROUP = f"__grp__{KERNEL}.json"


def manager(cache_dir: Path, key: str, patch: pytest.MonkeyPatch) -> Any:
    from triton.runtime.cache import FileCacheManager

    patch.setenv("TRITON_CACHE_DIR", str(cache_dir))
    return FileCacheManager(key)


def compiled(cache_dir: Path, patch: pytest.MonkeyPatch) -> Path:
    """A cache directory of two kernels, as Triton writes it."""
    for key in KEYS:
        made = manager(cache_dir, key, patch)
        paths = {name: made.put(text, name) for name, text in FILES.items()}
        made.put_group(f"{KERNEL}.json", paths)
    return cache_dir


def found(cache_dir: Path, key: str, patch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of a kernel, as Triton finds them; nothing where it would compile."""
    group = manager(cache_dir, key, patch).get_group(f"{KERNEL}.json")
    for path in (group or {}).values():
        assert Path(path).is_relative_to(cache_dir)
    return {name: Path(path).read_bytes() for name, path in (group or {}).items()}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    staging = stage(tmp_path / "staging", {"inductor/cache/5e1f": b"{}"})
    compiled(staging / "inductor" / TRITON_DIR / "0", monkeypatch)
    target = Target.here(threads=1).to_json()
    made = signed(
        staging,
        manifest(target=target, policy={"threads": 1}),
        tmp_path / "b.tar.zst",
    )
    # What its lists name is gone, as on another host.
    shutil.rmtree(staging)
    return made


def test_moved_kernels_are_lost_until_they_are_relocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(tmp_path / "old", monkeypatch).rename(tmp_path / "new")
    new = tmp_path / "new"
    assert [found(new, key, monkeypatch) for key in KEYS] == [{}, {}]
    relocate(new)
    assert [found(new, key, monkeypatch) for key in KEYS] == [FILES, FILES]
    names = sorted(path.name for path in (new / KEYS[0]).iterdir())
    assert names == sorted([*FILES, GROUP])
    before = (new / KEYS[0] / GROUP).read_bytes()
    relocate(new)
    assert (new / KEYS[0] / GROUP).read_bytes() == before


def test_only_what_is_there_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = compiled(tmp_path / "old", monkeypatch).rename(tmp_path / "new")
    (new / KEYS[1] / f"{KERNEL}.ptx").write_text("left out of bundles")
    (new / KEYS[0] / f"{KERNEL}.json").unlink()
    relocate(new)
    assert set(found(new, KEYS[0], monkeypatch)) == {f"{KERNEL}.cubin"}
    assert set(found(new, KEYS[1], monkeypatch)) == {*FILES, f"{KERNEL}.ptx"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (GROUP, True),
        (f"{KERNEL}.json", False),
        (f"{KERNEL}.cubin", False),
        ("__grp__launcher.so", False),
    ],
)
def test_what_is_a_list_of_files(name: str, expected: bool) -> None:
    assert is_group(Path("/x") / name) is expected


def test_a_directory_without_kernels_stays(tmp_path: Path) -> None:
    relocate(tmp_path / "none")
    relocate(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_installed_kernels_are_found(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for into in (None, tmp_path / "a place", tmp_path / "another"):
        directory = prepare(bundle, into).directory
        assert directory is not None
        installed = directory / "inductor" / TRITON_DIR / "0"
        assert [found(installed, key, monkeypatch) for key in KEYS] == [FILES, FILES]
        # The list is another than the bundle's, and not taken for damaged.
        assert prepare(bundle, into).mended == ()


@pytest.mark.parametrize("name", [GROUP, f"{KERNEL}.cubin"])
@pytest.mark.parametrize("content", [None, b"", b'{"child_paths": {}}', b"[" * 100])
def test_damaged_kernels_are_mended(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes | None,
) -> None:
    into = tmp_path / "x"
    prepare(bundle, into)
    installed = into / "inductor" / TRITON_DIR / "0"
    path = installed / KEYS[0] / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert prepare(bundle, into).mended == (str(path.relative_to(into)),)
    assert [found(installed, key, monkeypatch) for key in KEYS] == [FILES, FILES]
    assert prepare(bundle, into).mended == ()


def test_an_installation_that_was_moved_is_mended(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(bundle, tmp_path / "x")
    moved = (tmp_path / "x").rename(tmp_path / "y")
    installed = moved / "inductor" / TRITON_DIR / "0"
    assert found(installed, KEYS[0], monkeypatch) == {}
    mended = prepare(bundle, moved).mended
    assert mended == tuple(f"inductor/{TRITON_DIR}/0/{key}/{GROUP}" for key in KEYS)
    assert [found(installed, key, monkeypatch) for key in KEYS] == [FILES, FILES]


def test_an_installation_can_be_reached_by_another_path(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    directory = prepare(bundle, tmp_path / "link" / "x").directory
    assert directory is not None
    installed = directory / "inductor" / TRITON_DIR / "0"
    assert found(installed, KEYS[0], monkeypatch) == FILES


def test_kernels_that_were_added_since_are_kept(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(bundle, tmp_path / "x")
    installed = tmp_path / "x" / "inductor" / TRITON_DIR / "0"
    added = manager(installed, "C" * 52, monkeypatch)
    added.put_group("new.json", {"new.cubin": added.put(b"code", "new.cubin")})
    (installed / KEYS[0] / f"{KERNEL}.cubin").unlink()
    assert len(prepare(bundle, tmp_path / "x").mended) == 1
    assert set(added.get_group("new.json")) == {"new.cubin"}
    row = json.loads((installed / ("C" * 52) / "__grp__new.json").read_text())
    assert set(row["child_paths"]) == {"new.cubin"}

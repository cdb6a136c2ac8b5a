"""`flytune verify` as its user meets it, on real bundles."""

import json
from pathlib import Path
from typing import Any

import pytest
from builds import copied, flytune, repacked, unpacked, verified
from click.testing import CliRunner

from flytune.caches import verify as verification
from flytune.caches.bundle import Bundle
from flytune.caches.verdict import Verdict
from flytune.caches.verify import verify
from flytune.tuner.cli import main
from flytune.tuner.summary import verdict_lines

REASON = "mkldnn tensors unpickleable"


def verify_json(tmp_path: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    """Verify with --json, which prints one object and nothing else."""
    done = flytune(tmp_path / "home", "verify", *arguments, "--json")
    assert done.stdout.count("\n") == 1
    row: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, row


def test_unfrozen_passes_strict(unfrozen_bundle: Path, tmp_path: Path) -> None:
    code, row = verify_json(tmp_path, unfrozen_bundle, "--strict")
    assert (code, row["ok"], row["strict"]) == (0, True, True)
    assert (row["failures"], row["uncacheable"], row["work"]) == ([], [], {})
    # Two pieces at two sizes: first, with gradients, and after Dynamo forgot all.
    assert row["lookups"] == {"aot hit": 12, "fx hit": 12}
    assert row["aside"].keys() <= {"traced", "listed", "header", "compiler_query"}
    assert 0 < row["worst_error"] < 0.03


@pytest.fixture(scope="module")
def frozen_verdict(frozen_bundle: Path) -> Verdict:
    return verify(Bundle.open(frozen_bundle))


def test_frozen_fails_strict_with_torchs_reason(
    frozen_bundle: Path, frozen_verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "verify", lambda *_: frozen_verdict)
    row = verified(frozen_bundle, "--strict")
    assert (row["ok"], row["failures"]) == (False, [])
    assert row["uncacheable"] == [f"2 graphs lowered again: {REASON}"]
    assert row["work"] == {"lowered": 2}
    assert row["lookups"] == {"aot bypass": 2, "fx bypass": 2}


def test_frozen_passes_and_says_what_is_lowered_again(
    frozen_bundle: Path, frozen_verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "verify", lambda *_: frozen_verdict)
    result = CliRunner().invoke(main, ["verify", str(frozen_bundle)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("verify  hit: 2 lowered, 0 tuned, 0 compiled; ")
    assert f"uncacheable: 2 graphs lowered again: {REASON}" in result.stdout


def refused(bundle: Path) -> str:
    """Return the one line with which a bundle is refused before anything runs."""
    result = CliRunner().invoke(main, ["verify", str(bundle)])
    assert (result.exit_code, result.stdout) == (1, "")
    line, _, hint = result.stderr.partition("\n")
    assert hint.count("\n") <= 1
    return line


def test_a_deleted_file_is_refused(unfrozen_bundle: Path, tmp_path: Path) -> None:
    folder = copied(unfrozen_bundle, tmp_path / "b")
    kernel = next(folder.rglob("*.main.so"))
    kernel.unlink()
    assert refused(folder) == (
        "error: bundle lacks a file of its manifest: "
        f"'{kernel.relative_to(folder).as_posix()}' (FT215)"
    )


def test_a_changed_file_is_refused(unfrozen_bundle: Path, tmp_path: Path) -> None:
    folder = copied(unfrozen_bundle, tmp_path / "b")
    kernel = next(folder.rglob("*.main.so"))
    content = bytearray(kernel.read_bytes())
    content[len(content) // 2] ^= 1
    kernel.write_bytes(content)
    assert "another digest than its manifest says" in refused(folder)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_truncated_archive_is_refused(
    frozen_bundle: Path, tmp_path: Path, share: float
) -> None:
    whole = frozen_bundle.read_bytes()
    cut = tmp_path / "cut.tar.zst"
    cut.write_bytes(whole[: int(len(whole) * share)])
    assert refused(cut).startswith("error: archive is truncated")


def test_a_corrupt_archive_is_refused(frozen_bundle: Path, tmp_path: Path) -> None:
    content = bytearray(frozen_bundle.read_bytes())
    for at in range(len(content) // 2, len(content) // 2 + 64):
        content[at] ^= 0x55
    corrupt = tmp_path / "corrupt.tar.zst"
    corrupt.write_bytes(content)
    assert refused(corrupt).startswith("error: ")


def test_no_bundle_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "none").startswith("error: ")
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty").startswith("error: ")


def test_a_malformed_policy_is_refused(frozen_bundle: Path, tmp_path: Path) -> None:
    folder = unpacked(frozen_bundle, tmp_path / "b")
    changed = repacked(folder, tmp_path / "changed", env={"OMP_NUM_THREADS": 1})
    assert refused(changed) == "error: serving policy is malformed: `env` (FT221)"


def test_dynamic_hits_are_said_to_be_that() -> None:
    hit = Verdict((), (), {}, {"dynamic": 3}, {"fx hit": 4}, 1.0, 0.0, 1.0)
    assert verdict_lines(hit)[1:] == [
        "        graph lookups: 4 fx hit",
        "        largest difference from eager 0.0000",
        "        3 of the graphs that hit have dynamic sizes",
    ]

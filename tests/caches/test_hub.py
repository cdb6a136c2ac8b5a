"""Push and pull by way of the hub's own library, against a small hub on loopback.

The library reads its address when it is imported, hence processes of their own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from bundles import FILES, elsewhere, installable, tree
from hub_server import REPO, serve
from registry import authority

from flytune.caches.bundle import Bundle
from flytune.caches.target import Target

FLYTUNE = "from flytune.tuner.cli import main; main(prog_name='flytune')"
# Several commands, one after another: a line of JSON each.
MANY = """
import json, sys
from click.testing import CliRunner
from flytune.tuner.cli import main
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, words)
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""
SLUG = Target.here(threads=1).slug


def flytune(
    endpoint: str, home: Path, *words: object, program: str = FLYTUNE, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        env={
            **os.environ,
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(home / "hf"),
            "HF_TOKEN": "hf_test",
            "NO_PROXY": "127.0.0.1",
            **env,
        },
    )


def test_what_was_pushed_is_pulled(tmp_path: Path) -> None:
    bundle = installable(tmp_path, "b.tar.zst")
    with serve() as hub:
        done = flytune(hub.address, tmp_path, "push", bundle, f"hf://{REPO}")
        assert (done.returncode, done.stderr) == (0, "")
        pinned = f"hf://{REPO}@{hub.head}"
        assert done.stdout == f"bundle  {pinned}\n"
        stored = hub.commits[hub.head]
        folder = f"{SLUG}/tiny/"
        assert stored.pop("README.md") == b"# bundles\n"
        assert stored == {
            **{f"{folder}{name}": content for name, content in FILES.items()},
            **{
                f"{folder}{name}": content
                for name, content in Bundle.open(bundle).heads().items()
            },
        }
        stored["README.md"] = b"# bundles\n"
        names = ("out", "out.tar.zst")
        pull = ("pull", f"hf://{REPO}", "--for-host", "--out")
        rows = many(hub.address, tmp_path, *((*pull, tmp_path / n) for n in names))
        for name, row in zip(names, rows, strict=True):
            said = f"bundle  {pinned}\nout     {tmp_path / name}\n"
            assert row == (0, said, "")
            assert Bundle.open(tmp_path / name).heads() == Bundle.open(bundle).heads()
        assert (tmp_path / "out.tar.zst").read_bytes() == bundle.read_bytes()
        # A smaller bundle in its place leaves nothing of it, and it stays pinned.
        files = {"inductor/cache/5e1f": b"{}"}
        newer = installable(tmp_path, "newer.tar.zst", files=files)
        old = tmp_path / "old"
        push, pull = (
            ("push", newer, f"hf://{REPO}@main"),
            ("pull", pinned, "--out", old),
        )
        rows = many(hub.address, tmp_path, push, pull)
        assert [row[0] for row in rows] == [0, 0]
        assert len(hub.commits[hub.head]) == 4
        assert tree(old) == tree(tmp_path / "out")


def many(
    endpoint: str, home: Path, *commands: tuple[object, ...]
) -> list[tuple[int, str, str]]:
    """Run commands in one process: exit code, stdout and stderr of each."""
    text = json.dumps([list(map(str, words)) for words in commands])
    done = flytune(endpoint, home, text, program=MANY)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_fleet_in_one_repository(tmp_path: Path) -> None:
    far = installable(tmp_path, "far.tar.zst", target=elsewhere())
    ranks = {"name": "tiny", "tp": 2, "ep": 4}
    rank = installable(tmp_path, "rank.tar.zst", model=ranks)
    pull = ("pull", f"hf://{REPO}", "--for-host")
    with serve() as hub:
        *pushed, found, missed = many(
            *(hub.address, tmp_path),
            *(("push", bundle, f"hf://{REPO}") for bundle in (far, rank)),
            (*pull, "--ep", 4),
            (*pull, "--tp", 1),
        )
        names = hub.commits[hub.head]
        assert f"{SLUG}/tiny.tp2-ep4.transformers/manifest.json" in names
    assert [code for code, _, _ in pushed] == [0, 0]
    assert found[1].endswith(f"out     tiny.{SLUG}.tar.zst\n"), found
    assert Bundle.open(tmp_path / f"tiny.{SLUG}.tar.zst").manifest.model["tp"] == 2
    assert "no bundle for tp1 this host: nearest is cpu-" in missed[2]
    assert "hardware.isa: built for `amx_tile`" in missed[2]


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    with serve() as hub:
        bundle = installable(tmp_path)
        flytune(hub.address, tmp_path, "push", bundle, f"hf://{REPO}")
        files = dict(hub.commits[hub.head])
        files[f"{SLUG}/tiny/inductor/cache/5e1f"] = b'{"cache": []}'
        hub.commit(files)
        done = flytune(hub.address, tmp_path, "pull", f"hf://{REPO}", "--out", "out")
        assert done.returncode == 1
        assert "another digest" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("b.tar.zst", "hf", "staged-b.tar.zst")
    ]


def test_own_ca(tmp_path: Path) -> None:
    ca, pair = authority(tmp_path / "ca")
    bundle = installable(tmp_path)
    with serve(pair) as hub:
        push, pull = ("push", bundle, f"hf://{REPO}"), ("pull", f"hf://{REPO}")
        done = flytune(hub.address, tmp_path, *push)
        assert done.stderr.startswith("error: the hub cannot be reached: hf://org/bun")
        done = flytune(hub.address, tmp_path, *push, "--ca", ca)
        assert done.returncode == 0, done.stderr
        done = flytune(hub.address, tmp_path, *pull, FLYTUNE_CA=str(ca))
        assert done.returncode == 0, done.stderr


def test_what_is_not_there(tmp_path: Path) -> None:
    installable(tmp_path)
    said = {
        ("pull", f"hf://{REPO}"): "no bundle is in the repository",
        ("pull", f"hf://{REPO}@v9"): f"the hub has no such revision: hf://{REPO}@v9",
        ("pull", "hf://no/repo"): "the hub has no such repository, or none for you",
        ("push", "b.tar.zst", "hf://no/repo"): "the hub has no such repository",
        ("pull", "hf://repo"): "not a reference: 'hf://repo'",
        ("push", "none", f"hf://{REPO}"): "cannot read bundle: none",
    }
    with serve() as hub:
        rows = many(hub.address, tmp_path, *said)
    assert [row[:2] for row in rows] == [(1, "")] * len(said)
    for (_, _, stderr), message in zip(rows, said.values(), strict=True):
        assert stderr.startswith(f"error: {message}")


def test_hub_that_is_down(tmp_path: Path) -> None:
    done = flytune("http://127.0.0.1:1", tmp_path, "pull", f"hf://{REPO}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: the hub cannot be reached: hf://{REPO}@main")

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
        for name in ("out", "out.tar.zst"):
            words = ("pull", f"hf://{REPO}", "--for-host", "--out", tmp_path / name)
            done = flytune(hub.address, tmp_path, *words)
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"bundle  {pinned}\nout     {tmp_path / name}\n"
            assert Bundle.open(tmp_path / name).heads() == Bundle.open(bundle).heads()
        assert (tmp_path / "out.tar.zst").read_bytes() == bundle.read_bytes()
        # A smaller bundle in its place leaves nothing of it, and it stays pinned.
        files = {"inductor/cache/5e1f": b"{}"}
        newer = installable(tmp_path, "newer.tar.zst", files=files)
        done = flytune(hub.address, tmp_path, "push", newer, f"hf://{REPO}@main")
        assert done.returncode == 0, done.stderr
        assert len(hub.commits[hub.head]) == 4
        old = tmp_path / "old"
        done = flytune(hub.address, tmp_path, "pull", pinned, "--out", old)
        assert done.returncode == 0, done.stderr
        assert tree(old) == tree(tmp_path / "out")


def test_fleet_in_one_repository(tmp_path: Path) -> None:
    with serve() as hub:
        for name, changes in (
            ("far", {"target": elsewhere()}),
            ("rank", {"model": {"name": "tiny", "tp": 2}}),
        ):
            bundle = installable(tmp_path, f"{name}.tar.zst", **changes)
            done = flytune(hub.address, tmp_path, "push", bundle, f"hf://{REPO}")
            assert done.returncode == 0, done.stderr
        assert f"{SLUG}/tiny.tp2.transformers/manifest.json" in hub.commits[hub.head]
        words = ("pull", f"hf://{REPO}")
        done = flytune(hub.address, tmp_path, *words, "--for-host")
        assert done.stdout.endswith(f"out     tiny.{SLUG}.tar.zst\n"), done.stderr
        assert Bundle.open(tmp_path / f"tiny.{SLUG}.tar.zst").manifest.model["tp"] == 2
        done = flytune(hub.address, tmp_path, *words, "--for-host", "--tp", 1)
        assert "no bundle for tp1 this host: nearest is cpu-" in done.stderr
        assert "hardware.isa: built for `amx_tile`" in done.stderr


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
        done = flytune(hub.address, tmp_path, json.dumps(list(said)), program=MANY)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [[1, ""]] * len(said), done.stderr
    for (_, _, stderr), message in zip(rows, said.values(), strict=True):
        assert stderr.startswith(f"error: {message}")


def test_hub_that_is_down(tmp_path: Path) -> None:
    done = flytune("http://127.0.0.1:1", tmp_path, "pull", f"hf://{REPO}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: the hub cannot be reached: hf://{REPO}@main")

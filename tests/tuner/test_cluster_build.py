"""A build beside its actor, and how what it makes comes home; without Ray."""

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from builds import environment
from small_bundles import bare_manifest, small_bundle

from flytune.caches.bundle import Bundle
from flytune.caches.keyring import own_key
from flytune.caches.merge import merge
from flytune.caches.merge_manifest import merged_from
from flytune.caches.packing import pack
from flytune.caches.trust import HERE, admit
from flytune.shapes.errors import FlytuneError
from flytune.tuner import cluster_build
from flytune.tuner.bring_home import bring_home
from flytune.tuner.build_place import Wish, _running
from flytune.tuner.cluster_build import ClusterBuild, Line, Request, place_of
from flytune.tuner.remote_build import RemoteBuild, _bring_all_home, _follow

# What stands for `flytune build`: it copies the bundles that it is given.
MADE = """
import os, shutil, sys, time
print("a result", flush=True)
print("bundle  there.tar.zst", flush=True)
print("[00:01] plan", file=sys.stderr, flush=True)
words = sys.argv[1:]
if "--hang" in words:
    time.sleep(60)
for number, path in enumerate(w for w in words if w.endswith(".tar.zst")):
    shutil.copy(path, f"model-{number}.tar.zst")
print(*words, os.getcwd(), file=sys.stderr)
sys.exit(3 if "--miss" in words else 0)
"""


class Direct:
    """What stands for Ray and for an actor's handle: calls are made at once."""

    def __init__(self, actor: ClusterBuild) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._actor, name))

    @staticmethod
    def get(result: Any) -> Any:
        return result

    @staticmethod
    def kill(_: Any) -> None:
        """Its process is this one."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = environment(tmp_path / "home")["FLYTUNE_HOME"]
    monkeypatch.setenv("FLYTUNE_HOME", home)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster_build, "_COMMAND", MADE)
    sent = {"py_modules": ["gcs://flytune.whl"]}
    context = SimpleNamespace(gcs_address="h:1", runtime_env=sent)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)


def asked(
    *words: Path | str, out: Path, digest: str = "d", **changes: Any
) -> RemoteBuild:
    request = Request(digest, tuple(map(str, words)), **changes)
    build = RemoteBuild(request, Wish(), lambda _: out)
    build.actor = Direct(ClusterBuild(request))
    return build


def follow(build: RemoteBuild) -> None:
    _follow(build.actor, [build])


def test_its_lines_and_its_bundle_come_home_and_are_signed_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, out = small_bundle(tmp_path, signed=False), tmp_path / "out.tar.zst"
    build = asked(made, out=out)
    follow(build)
    bring_home(build.actor, build, [own_key()])
    said = capsys.readouterr()
    assert said.out == f"a result\nbundle  {out}\n"
    place = place_of("d") / "made"
    words = f"build {made} --ray h:1 --no-sign"
    assert sorted(said.err.splitlines()) == ["[00:01] plan", f"{words} {place}"]
    brought = Bundle.open(out)
    assert brought.digest == Bundle.open(made).digest
    admit(brought, HERE)
    assert not place_of("d").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_folder_at_home_gets_the_same_bundle(tmp_path: Path) -> None:
    made, out = small_bundle(tmp_path), tmp_path / "folder"
    build = asked(made, out=out)
    follow(build)
    bring_home(build.actor, build, [])
    assert (out / "manifest.json").read_bytes() == Bundle.open(made).text
    Bundle.open(out).check()


def test_a_spoiled_journey_leaves_nothing_here_and_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, out = small_bundle(tmp_path), tmp_path / "out.tar.zst"
    build = asked(made, out=out)
    follow(build)
    with monkeypatch.context() as patch:
        patch.setattr(ClusterBuild, "read", lambda *_: b"spoiled")
        with pytest.raises(FlytuneError, match="is not what was made there"):
            bring_home(build.actor, build, [])
    assert not out.exists()
    # Its actor is gone since: the next command's finds what was made.
    again = asked(made, out=out)
    follow(again)
    bring_home(again.actor, again, [])
    assert out.read_bytes() == made.read_bytes()


def test_what_appeared_at_home_meanwhile_is_kept(tmp_path: Path) -> None:
    made, out = small_bundle(tmp_path), tmp_path / "out.tar.zst"
    build = asked(made, out=out)
    follow(build)
    (tmp_path / "other").mkdir()
    small_bundle(tmp_path / "other", provenance={"other": 1}).rename(out)
    before = out.read_bytes()
    with pytest.raises(FlytuneError, match="output exists"):
        bring_home(build.actor, build, [])
    assert out.read_bytes() == before
    assert place_of("d").exists()


def of_build(folder: Path, build: str, **coverage: object) -> Path:
    """A bundle of the build, whose time was cut short if its coverage says so."""
    staged = folder / "staged"
    (staged / "inductor").mkdir(parents=True)
    (staged / "inductor" / folder.name).write_text(folder.name)
    manifest = bare_manifest(
        model={"name": build}, coverage=coverage, provenance={"build": build}
    )
    return pack(staged, manifest, folder / f"{build}.tar.zst")


@pytest.mark.parametrize("name", ["out.tar.zst", "out"])
def test_what_a_budget_cut_short_gives_way_to_the_same_build(
    tmp_path: Path, name: str
) -> None:
    out = tmp_path / name
    short = of_build(tmp_path / "short", "a", over_budget=["bmm"])
    whole = of_build(tmp_path / "whole", "a")
    for made in (short, whole):
        build = asked(made, out=out)
        follow(build)
        bring_home(build.actor, build, [own_key()])
        assert Bundle.open(out).digest == Bundle.open(made).digest
        Bundle.open(out).check()
        admit(Bundle.open(out), HERE)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_whole_bundle_of_the_same_build_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = of_build(tmp_path / "first", "a")
    before = out.read_bytes()
    build = asked(of_build(tmp_path / "second", "a"), out=out)
    follow(build)
    bring_home(build.actor, build, [])
    assert out.read_bytes() == before
    said = capsys.readouterr()
    assert f"kept: {out} is of this very build\n" in said.err
    assert said.out.endswith(f"bundle  {out}\n")


def test_what_was_merged_of_the_same_builds_gives_way(tmp_path: Path) -> None:
    short = of_build(tmp_path / "short", "a", over_budget=["bmm"])
    other = of_build(tmp_path / "other", "b")
    out = tmp_path / "all.tar.zst"
    merge([pinned(short), pinned(other)], out)
    whole = of_build(tmp_path / "whole", "a")
    merge([pinned(whole), pinned(other)], tmp_path / "made.tar.zst")
    build = asked(tmp_path / "made.tar.zst", out=out)
    follow(build)
    bring_home(build.actor, build, [])
    assert Bundle.open(whole).digest in merged_from(Bundle.open(out))
    # Of fewer builds it is not the same.
    build = asked(other, out=out)
    follow(build)
    with pytest.raises(FlytuneError, match="output exists"):
        bring_home(build.actor, build, [])


def pinned(bundle: Path) -> Path:
    return Path(f"{bundle}@sha256:{Bundle.open(bundle).digest}")


def test_a_build_comes_home_though_another_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken, out = tmp_path / "taken.tar.zst", tmp_path / "out.tar.zst"
    taken.touch()
    builds = []
    for digest, where in (("d", taken), ("e", out), ("f", taken)):
        made = of_build(tmp_path / digest, digest)
        build = asked(made, out=where, digest=digest)
        build.prefix = f"{digest}: "
        follow(build)
        builds.append(build)
    capsys.readouterr()
    with pytest.raises(FlytuneError):
        _bring_all_home(builds[0].actor, builds, "ray://head:10001", [])
    assert capsys.readouterr().err.startswith("d: error: ")
    assert out.exists()
    # Theirs wait there until there is room for them.
    assert [place_of(d).exists() for d in "def"] == [True, False, True]


def test_a_fleets_bundles_come_together_and_those_at_home_stay(tmp_path: Path) -> None:
    out = tmp_path / "bundles"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = small_bundle(tmp_path / "one")
    two = small_bundle(tmp_path / "two", provenance={"other": 1})
    build = asked("--miss", one, two, out=out, several=True)
    follow(build)
    assert build.code == 3
    bring_home(build.actor, build, [])
    assert [p.name for p in sorted(out.iterdir())] == [
        "model-0.tar.zst",
        "model-1.tar.zst",
    ]
    before = (out / "model-0.tar.zst").stat()
    # One failed: what is there goes on, and what is here is not written again.
    assert place_of("d").exists()
    again = asked(one, two, out=out, several=True)
    follow(again)
    bring_home(again.actor, again, [])
    assert (out / "model-0.tar.zst").stat() == before
    assert not place_of("d").exists()


def test_a_build_that_is_asked_to_stop_ends(tmp_path: Path) -> None:
    build = asked("--hang", out=tmp_path / "out.tar.zst")
    actor = build.actor._actor
    until = time.monotonic() + 30
    while Line(False, "[00:01] plan") not in actor.said(0, 1.0)[0]:
        assert time.monotonic() < until
    assert actor.parcel() is None
    actor.stop()
    follow(build)
    assert build.code == -15
    assert actor.parcel() is None
    assert list(tmp_path.glob("out*")) == []
    # It goes on, where it was.
    assert place_of("d").is_dir()


def test_its_process_has_what_was_sent_and_no_trace_of_the_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "files" / "0").mkdir(parents=True)
    (tmp_path / "files" / "0" / "m.json").write_text("{}")
    tells = (
        "import os; print(os.environ['FLYTUNE_RAY_MODULES'], "
        "'OMP_NUM_THREADS' in os.environ, open('../files/0/m.json').read())"
    )
    monkeypatch.setattr(cluster_build, "_COMMAND", tells)
    build = asked(out=tmp_path / "out.tar.zst")
    follow(build)
    assert build.results == ["gcs://flytune.whl False {}"]
    assert not (place_of("d") / "files").exists()


def test_what_has_passed_already_is_not_in_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tells = (
        "import sys; from flytune.tuner.build_command import build_command; "
        "words = sys.argv[2:sys.argv.index('--ray')]; "
        "budget = build_command.options_of(words).budget; "
        "print(budget.text, budget.amount)"
    )
    monkeypatch.setattr(cluster_build, "_COMMAND", tells)
    words = ("--model", "Qwen3-4B", "--budget", "30m")
    build = asked(*words, out=tmp_path / "out.tar.zst", passed_s=100.0)
    follow(build)
    assert build.results == ["30m 1700.0"]


def test_who_follows_a_build_hears_of_any_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(cluster_build.subprocess, "Popen", no_process)
    build = asked(out=tmp_path / "out.tar.zst")
    follow(build)
    assert build.code == 1
    assert capsys.readouterr().err == "error: OSError: no more processes\n"


def test_what_was_brought_home_already_is_no_fault(tmp_path: Path) -> None:
    made, out = small_bundle(tmp_path, signed=False), tmp_path / "out.tar.zst"
    build = asked(made, out=out)
    follow(build)
    bring_home(build.actor, build, [own_key()])
    assert build.actor._actor.parcel() is None


@pytest.mark.parametrize(
    ("words", "fresh", "goes_on"),
    [
        (("--hang",), False, True),
        # Its hours are nobody's to throw away.
        (("--hang",), True, True),
        ((), False, False),
        (("b.tar.zst",), False, True),
        (("b.tar.zst",), True, False),
    ],
)
def test_what_has_ended_and_made_nothing_begins_again(
    words: tuple[str, ...],
    fresh: bool,
    goes_on: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = small_bundle(tmp_path, signed=False)
    given = [made if word == made.name else word for word in words]
    build = asked(*given, out=tmp_path / "out.tar.zst")
    if "--hang" in words:
        assert build.actor._actor.said(0, 30.0)[0]
    else:
        follow(build)
    actors = {build.request.actor: build.actor}

    def get_actor(name: str, _: str) -> Any:
        if name not in actors:
            raise ValueError(name)
        return actors[name]

    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get", Direct.get)
    monkeypatch.setattr(ray, "kill", lambda _: actors.clear())
    request = replace(build.request, fresh=fresh)
    assert _running(request) == goes_on
    assert bool(actors) == goes_on
    build.actor._actor.stop()
    follow(build)


def test_its_place_is_nobody_elses(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        build = asked(out=tmp_path / "out.tar.zst")
        follow(build)
    finally:
        os.umask(before)
    assert place_of("d").stat().st_mode & 0o077 == 0

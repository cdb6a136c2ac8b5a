"""`flytune build --ray ray://HEAD:PORT`: what is asked of the cluster, and what not."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from flytune.caches.bundle import Bundle
from flytune.caches.device_profile import find_profile
from flytune.shapes.errors import FlytuneError
from flytune.tuner.budget import Meter
from flytune.tuner.build import signing_keys
from flytune.tuner.build_place import Wish
from flytune.tuner.cluster_build import Request
from flytune.tuner.fleet_file import FleetFile, Words
from flytune.tuner.fleet_plan import Asked, asked_targets, target_word
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import check_output
from flytune.tuner.progress import Progress
from flytune.tuner.remote_build import RemoteBuild, build_remotely
from flytune.tuner.sent_words import Luggage, build_digest
from flytune.tuner.unreached import is_cut_short

Place = Callable[[Path], Path]
"""From the name of what a build makes, where that belongs here."""


def build_one_remotely(
    each: Sequence[BuildOptions], typed: Words, arguments: Sequence[str]
) -> bool:
    """Build one model on a cluster for each target; return whether all went well.

    Args:
        each: What is asked for, for each target.
        typed: The options of the command line, each with its words.
        arguments: Those of `vllm serve`.

    Raises:
        FlytuneError: it cannot be asked for, or `build_remotely` fails.
    """
    meter, several = Meter(), len(each) > 1
    outs = [each[0].out]
    if several:
        folder, asked = asked_targets(each)
        outs = [one.options.out for one in asked]
        if not folder.is_dir():
            check_output(folder)
    for out in outs:
        if out is not None and not _may_go_on(out, several):
            check_output(out)
    luggage, builds = Luggage(each[0].trust), []
    for options, out in zip(each, outs, strict=True):
        own = dict(typed)
        if options.target is not None:
            own["target"] = ("--target", options.target)
        words = luggage.words(own)
        place = _in_folder(folder, out) if several else _at(out)
        prefix = f"{target_word(options)}: " if several else ""
        builds.append(_build(words, options, place, prefix, arguments=arguments))
    return _run(each[0], builds, luggage, meter)


def build_fleet_remotely(
    command: click.Command,
    file: FleetFile,
    asked: Sequence[Asked],
    given: Words,
    folder: Path,
) -> bool:
    """Build the models of a file on a cluster; return whether all went well.

    Models of one target are built together, where that is.

    Args:
        asked: What the tables ask for, in their order.
        given: The options beside --models.

    Raises:
        FlytuneError: it cannot be asked for, or `build_remotely` fails.
    """
    meter = Meter()
    if not folder.is_dir():
        check_output(folder)
    luggage, builds = Luggage(asked[0].options.trust), []
    targets = dict.fromkeys(one.options.target for one in asked)
    for number, target in enumerate(targets):
        own = [one for one in asked if one.options.target == target]
        wheres = {one.where for one in own}
        # A table that names several is there for this one alone.
        only = () if target is None else ("--target", target)
        tables = tuple(
            replace(t, words={**t.words, **({"target": only} if only else {})})
            for t in file.models
            if t.where in wheres
        )
        there = luggage.fleet(replace(file, models=tables), command, number)
        words = {**luggage.words(given), "models": ("--models", there)}
        prefix = f"{target_word(own[0].options)}: " if len(targets) > 1 else ""
        place = _at(folder)
        builds.append(_build(words, own[0].options, place, prefix, several=True))
    return _run(asked[0].options, builds, luggage, meter)


def _run(
    options: BuildOptions,
    builds: Sequence[RemoteBuild],
    luggage: Luggage,
    meter: Meter,
) -> bool:
    if len(builds) > 1 and options.budget is not None and options.budget.kind != "time":
        # Each would spend all of it: nobody counts for several builds at once.
        raise FlytuneError(
            f"a budget of GPUs for several builds on a cluster: {options.budget.text}",
            hint="give a time, such as --budget 30m, or build for one target at a time",
        )
    keys = signing_keys(options, Progress())
    assert options.ray is not None
    with _packed(luggage) as sent:
        for build in builds:
            words = (*build.request.options, *build.request.rest)
            digest = build_digest(words, sent)
            build.request = replace(build.request, digest=digest)
        return build_remotely(builds, options.ray, sent, keys, meter)


@contextmanager
def _packed(luggage: Luggage) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="flytune-sent-") as directory:
        luggage.pack(Path(directory))
        yield Path(directory)


def _build(
    words: Words,
    options: BuildOptions,
    place: Place,
    prefix: str,
    *,
    several: bool = False,
    arguments: Sequence[str] = (),
) -> RemoteBuild:
    # One that begins afresh is the same build.
    line = [w for name, some in words.items() if name != "fresh" for w in some]
    rest = ("--", *arguments) if arguments else ()
    request = Request("", tuple(line), rest, several, options.fresh)
    profile = None if options.target is None else find_profile(options.target)
    wish = Wish(options.device, profile, options.runs_nothing)
    return RemoteBuild(request, wish, place, prefix)


def _may_go_on(out: Path, several: bool) -> bool:
    """Whether what is there may be of an earlier command: its end tells.

    Args:
        several: Whether some may be whole, and others have failed.
    """
    try:
        provenance = Bundle.open(out).manifest.provenance
    except (FlytuneError, OSError):
        # Nothing is there, or something else than a bundle.
        return False
    return "build" in provenance and (several or is_cut_short(out))


def _at(out: Path | None) -> Place:
    return lambda made: made if out is None else out


def _in_folder(folder: Path, out: Path | None) -> Place:
    def place(made: Path) -> Path:
        folder.mkdir(exist_ok=True)
        return folder / made if out is None else out

    return place

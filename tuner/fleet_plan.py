"""The plans of all models of a fleet, made before the first is built."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flytune.caches.bundle import ARCHIVE_SUFFIX, Bundle
from flytune.caches.trust import admit
from flytune.shapes.errors import FlytuneError, about
from flytune.shapes.gemm import GemmShape
from flytune.tuner.build import Prepared, prepare
from flytune.tuner.build_identity import build_identity
from flytune.tuner.fleet_merge import merged_out, refuse_foreign
from flytune.tuner.fleet_progress import ModelProgress
from flytune.tuner.going_on import check_place, goes_on
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.plan_words import say_plan
from flytune.tuner.progress import Progress
from flytune.tuner.shared_lists import sharing_key

PLACEHOLDER = "{target}"
"""In --out, for the name of each of several targets."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One model as the file and the command line ask for it."""

    where: str
    """The file and the table, for errors."""
    options: BuildOptions
    """Their `out` is None where the table names none."""
    name: str | None = None
    """None: after the model and its ranks."""
    one_of_several: bool = False
    """Whether its model is asked for other targets too."""


@dataclass(frozen=True, slots=True)
class FleetModel:
    """One model of a fleet, planned."""

    name: str
    where: str
    prepared: Prepared
    key: str
    """The `sharing_key` of its build."""
    progress: ModelProgress
    kept: Bundle | None
    """What an earlier run of the same build has published."""

    @property
    def plan(self) -> Plan:
        return self.prepared.plan

    @property
    def options(self) -> BuildOptions:
        return self.prepared.options


def plan_fleet(
    asked: Sequence[Asked], folder: Path, merged_name: str | None, progress: Progress
) -> tuple[FleetModel, ...]:
    """Plan every model, and refuse at once what some build could not end well.

    Args:
        folder: Of the bundles that no table names otherwise.
        merged_name: How the file of the merged bundle begins; None: none is made.

    Raises:
        FlytuneError: a model cannot be planned, two have one name, bundle or work
            directory, or an output exists that is none of this fleet's.
    """
    asked = _by_target(asked)
    _refuse_same("name", ((_name(one), one.where) for one in asked))
    models = tuple(_planned(one, folder, progress) for one in asked)
    _refuse_same("bundle", ((str(m.plan.out.resolve()), m.where) for m in models))
    _refuse_same("build", ((str(m.plan.work), m.where) for m in models))
    builds = {build_identity(model.plan, model.options) for model in models}
    outs = [model.plan.out for model in models if model.plan.out.exists()]
    digests = {Bundle.open(out).digest for out in outs}
    for target in (model.plan.target for model in models):
        if merged_name is None:
            break
        out = merged_out(folder, merged_name, target)
        named = [m for m in models if m.plan.out.resolve() == out.resolve()]
        if named:
            raise FlytuneError(
                f"{named[0].where}: the bundle of all models has this name: {out}",
                hint="give the model another `name`, or the file",
            )
        refuse_foreign(out, builds, digests)
    return models


def _planned(one: Asked, folder: Path, fleet: Progress) -> FleetModel:
    name = _name(one)
    progress = ModelProgress(fleet, name)
    progress.begin("plan")
    with about(one.where):
        prepared = prepare(replace(one.options, keep=True))
        plan, options = prepared.plan, prepared.options
        out = options.out or folder / f"{_stem(one)}.{plan.target.slug}.tar.zst"
        plan = replace(plan, out=out)
        kept = _kept(plan, options)
        if kept is None:
            check_place(plan, options)
    say_plan(plan, options, progress)
    progress.wait()
    prepared = replace(prepared, plan=plan)
    key = sharing_key(plan, options)
    return FleetModel(name, one.where, prepared, key, progress, kept)


def _by_target(asked: Sequence[Asked]) -> list[Asked]:
    """Note of each whether another is of the same model, for another target."""
    targets: dict[str, set[str | None]] = {}
    for one in asked:
        targets.setdefault(_stem(one), set()).add(one.options.target)
    return [replace(o, one_of_several=len(targets[_stem(o)]) > 1) for o in asked]


def _name(one: Asked) -> str:
    """Return a model's name in its fleet, with its target if it has several."""
    if not one.one_of_several:
        return _stem(one)
    return f"{_stem(one)}-{target_word(one.options)}"


def target_word(options: BuildOptions) -> str:
    """Return what a build's target is called in names of files."""
    return Path(options.target or "").name.lower().removesuffix(".json")


def asked_targets(each: Sequence[BuildOptions]) -> tuple[Path, list[Asked]]:
    """Return the folder of the bundles of one model's targets, and what is asked for.

    Args:
        each: What is asked for, for each target. --out is their folder, or has
            `{target}` in it.

    Raises:
        FlytuneError: the targets' bundles would have one name.
    """
    out = each[0].out or Path()
    pattern = PLACEHOLDER in out.name
    if not pattern and out.name.endswith(ARCHIVE_SUFFIX):
        raise FlytuneError(
            f"one name for the bundles of several targets: {out}",
            hint="give a folder, or a name with {target} in it",
        )
    asked = []
    for options in each:
        word = target_word(options)
        own = out.with_name(out.name.replace(PLACEHOLDER, word)) if pattern else None
        asked.append(Asked(f"--target {word}", replace(options, out=own)))
    return out.parent if pattern else out, asked


def _stem(one: Asked) -> str:
    """Return how a model's bundle is named: as a build would, and with its ranks."""
    options = one.options
    if one.name is not None:
        return one.name
    if options.by_hand is not None:
        return options.by_hand.stem.lower()
    words = options.model or (options.whose or ("",))[0]
    stem = Path(words).name.lower().removesuffix(".json")
    ranks = (("tp", options.tp), ("ep", options.ep))
    return stem + "".join(f"-{word}{count}" for word, count in ranks if count > 1)


def _refuse_same(what: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Refuse two tables of which something is the same.

    Args:
        what: The two have in common.
        pairs: Of a value and the table that has it.

    Raises:
        FlytuneError: there are some.
    """
    known: dict[str, str] = {}
    for value, where in pairs:
        if value in known:
            other = known[value].rpartition(": ")[2]
            raise FlytuneError(
                f"{where}: {what} is that of {other} too: `{Path(value).name}`",
                hint="give each its own `name` or `out`"
                if what != "build"
                else "the two would make the same: leave one out",
            )
        known[value] = where


def _kept(plan: Plan, options: BuildOptions) -> Bundle | None:
    """Return what is at the output, if this very build has made it.

    None where nothing is, or what a budget has cut short, which goes on.

    Raises:
        UntrustedError: nobody vouches for it here, and it is to be signed.
        FlytuneError: something else is there.
    """
    out = plan.out
    if not out.exists() and not out.is_symlink():
        return None
    if goes_on(plan, options):
        return None
    with about(out):
        bundle = Bundle.open(out)
    manifest, why = bundle.manifest, ""
    if manifest.provenance.get("build") != build_identity(plan, options):
        why = "is of another build"
    elif not manifest.compiled_only and not (manifest.verify or {}).get("ok"):
        why = "does not hit"
    if why:
        hint = "remove it, or give the model another `name` or `out`"
        raise FlytuneError(f"output exists, and {why}: {out}", hint=hint)
    if options.sign:
        admit(bundle, options.trust)
    return bundle


def plan_table(models: Sequence[FleetModel]) -> str:
    """Return the table of what is planned, and what of it models share."""
    met: dict[tuple[str, object], set[str]] = {}
    for model in models:
        for gemm in _distinct(model.plan.shapes):
            met.setdefault((model.key, gemm), set()).add(model.name)
    rows = [("model", "GEMMs", "distinct", "shared", "bundle")]
    for model in models:
        distinct = _distinct(model.plan.shapes)
        shared = sum(len(met[model.key, gemm]) > 1 for gemm in distinct)
        out = f"{model.plan.out}{', kept' if model.kept else ''}"
        counts = (len(model.plan.shapes), len(distinct), shared)
        # Of a command nothing is planned.
        cells = map(str, counts) if model.plan.shapes else ("-", "-", "-")
        rows.append((model.name, *cells, out))
    return table(rows, numbers=("GEMMs", "distinct", "shared"))


def _distinct(shapes: Iterable[GemmShape]) -> set[Mapping[str, Any] | object]:
    """Return what is computed, whoever calls it and how often."""
    return {
        (*s.problem, s.a_dtype, s.b_dtype, s.out_dtype, s.layout, s.scaling, s.bias)
        for s in shapes
    }


def table(rows: Sequence[Sequence[str]], numbers: Sequence[str]) -> str:
    """Return rows in columns, the first their titles; numbers stand to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if title in numbers else cell.ljust(width)
            for title, cell, width in zip(rows[0], row, widths, strict=True)
        ).rstrip()
        for row in rows
    )

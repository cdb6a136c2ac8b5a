"""`flytune build` as click runs it: of one model, or with `--models` of a fleet."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flytune.shapes.errors import FlytuneError
from flytune.tuner.fleet_file import (
    OF_ONE,
    FleetFile,
    ModelTable,
    Words,
    options_by_name,
    read_fleet,
)
from flytune.tuner.signals import ended_by_signals

if TYPE_CHECKING:
    from flytune.tuner.fleet_plan import Asked
    from flytune.tuner.options import BuildOptions

_FILE, _TYPED = "flytune.build.models", "flytune.build.words"

models_option = click.option(
    "--models",
    type=click.Path(readable=False, path_type=Path),
    metavar="FLEET.toml",
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({_FILE: value}),
    help="Several models, each a table of these options, in place of --model: what "
    "they share is tuned once; a bundle each, in the folder --out, and one of all. "
    "Options beside it are for the models that do not say otherwise.",
)


class BuildCommand(click.Command):
    """A command whose callback only says what is to be built, in `BuildOptions`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Build what was asked for.

        Raises:
            FlytuneError: it cannot be built.
            KeyboardInterrupt: it was stopped, and goes on with the same command.
        """
        path = ctx.meta[_FILE]
        try:
            with ended_by_signals():
                good = self._one(ctx) if path is None else self._fleet(ctx, path)
        except KeyboardInterrupt as error:
            words = "stopped: the same command goes on from here"
            raise KeyboardInterrupt(words) from error
        if not good:
            raise click.exceptions.Exit(1)

    def options_of(self, words: Sequence[str]) -> "BuildOptions":
        """Return the options that words of a command line stand for, of one target.

        Raises:
            click.UsageError: they are no words of this command.
        """
        (options,) = self._each_target(words)
        return options

    def _each_target(self, words: Sequence[str]) -> list["BuildOptions"]:
        """Return the options that words stand for, for each target that they name."""
        with self.make_context("build", list(words)) as context:
            return self._invoked(context)

    def _invoked(self, ctx: click.Context) -> list["BuildOptions"]:
        """Return what a context asks for, for each target that it names."""
        found = []
        for target in ctx.params["target"] or (None,):
            ctx.params["target"] = target
            found.append(super().invoke(ctx))
        return found

    def _one(self, ctx: click.Context) -> bool:
        """Build one model, for one target or several; return whether all went well."""
        from flytune.tuner.remote_build import is_remote

        each = self._invoked(ctx)
        if is_remote(each[0].ray):
            from flytune.tuner.remote_command import build_one_remotely

            arguments = ctx.params["arguments"]
            return build_one_remotely(each, self._typed(ctx), arguments)
        if len(each) == 1:
            return _build_one(each[0])
        from flytune.tuner.fleet_plan import asked_targets

        folder, asked = asked_targets(each)
        return _build_all(asked, folder, None)

    def _fleet(self, ctx: click.Context, path: Path) -> bool:
        """Build the models of a file; return whether all went well."""
        from flytune.tuner.remote_build import is_remote

        given = self._given(ctx)
        folder = Path(given.pop("out", ("", "."))[1])
        if folder.name.endswith(".tar.zst"):
            raise click.UsageError(f"--out is a folder beside --models: {folder}")
        file = read_fleet(path, self)
        asked = [
            one for table in file.models for one in self._asked(file, table, given)
        ]
        if is_remote(asked[0].options.ray):
            from flytune.tuner.remote_command import build_fleet_remotely

            return build_fleet_remotely(self, file, asked, given, folder)
        return _build_all(asked, folder, path.stem.lower())

    def _given(self, ctx: click.Context) -> dict[str, tuple[str, ...]]:
        """Return what was typed beside --models.

        Raises:
            click.UsageError: an option, or an argument, is of one model alone.
        """
        given = self._typed(ctx)
        for name in given:
            if name in OF_ONE and name != "out":
                raise click.UsageError(
                    f"--{name} does not go with --models: the file says it of a model"
                )
        if ctx.params["arguments"]:
            raise click.UsageError(
                "arguments do not go with --models: give `arguments`"
            )
        given.pop("models")
        return given

    def _typed(self, ctx: click.Context) -> dict[str, tuple[str, ...]]:
        """Return the options that were typed, each with its words."""
        typed, _, _ = self.make_parser(ctx).parse_args(list(ctx.meta[_TYPED]))
        by_param = {o.name: (n, o) for n, o in options_by_name(self).items()}
        given: dict[str, tuple[str, ...]] = {}
        for param, value in typed.items():
            if param not in by_param:
                continue
            name, option = by_param[param]
            word = f"--{name}"
            some = value if option.multiple else [value]
            given[name] = (
                (word,)
                if option.is_flag
                else tuple(part for one in some for part in (word, one))
            )
        return given

    def _asked(self, file: FleetFile, table: ModelTable, given: Words) -> list["Asked"]:
        """Return what a table, the command line and the defaults ask for, by target.

        Raises:
            FlytuneError: it is nothing that a build takes.
        """
        from flytune.tuner.fleet_plan import Asked

        words: Mapping[str, Any] = {**file.defaults, **given, **table.words}
        line = [word for some in words.values() for word in some]
        if table.arguments:
            line += ["--", *table.arguments]
        try:
            each = self._each_target(line)
        except click.UsageError as error:
            said = error.format_message().rstrip(".")
            raise FlytuneError(f"{table.where}: {said}") from error
        return [
            Asked(table.where, replace(options, out=table.out), table.name)
            for options in each
        ]


def _build_one(options: "BuildOptions") -> bool:
    from flytune.tuner.build import build
    from flytune.tuner.progress import Progress
    from flytune.tuner.summary import built_text

    built = build(options, Progress())
    click.echo(built_text(built))
    return built.ok


def _build_all(asked: Sequence["Asked"], folder: Path, name: str | None) -> bool:
    """Build a fleet and print what became of it; return whether all went well.

    Args:
        name: How the file of the merged bundle begins; None where none is made, for
            bundles of several targets do not go together.
    """
    from flytune.tuner.budget import Meter
    from flytune.tuner.fleet import (
        all_good,
        budget_lines,
        build_fleet,
        bundles_of,
        made_folder,
        summary_table,
    )
    from flytune.tuner.fleet_merge import merge_fleet
    from flytune.tuner.fleet_plan import plan_fleet, plan_table
    from flytune.tuner.progress import Progress

    progress, meter = Progress(), Meter()
    made = made_folder(folder)
    try:
        models = plan_fleet(asked, folder, name, progress)
    except BaseException:
        # A fleet that is refused leaves nothing behind.
        if made:
            folder.rmdir()
        raise
    click.echo(plan_table(models), err=True)
    outcomes = build_fleet(models, progress, meter)
    for line in (summary_table(outcomes), *budget_lines(outcomes)):
        click.echo(line)
    options, bundles = models[0].options, bundles_of(outcomes)
    if name is not None and (
        merged := merge_fleet(bundles, folder, name, options, progress)
    ):
        click.echo(f"of all  {merged}, not verified: flytune verify {merged}")
    return all_good(outcomes)

"""`flytune build`: tune a model's GEMMs and write the bundle."""

import os
import signal
from pathlib import Path
from types import FrameType

import click

from flytune.shapes.derive import Attention
from flytune.tuner.shapes_command import model_option, tokens_option


@click.command("build")
@model_option
@tokens_option
@click.option(
    "--policy",
    type=click.Choice(["unfrozen", "frozen"]),
    default="unfrozen",
    show_default=True,
    help="unfrozen: graphs are cached, a bmm has a choice, a linear has none. "
    "frozen: linears have a choice, torch lowers their graphs at each start.",
)
@click.option(
    "--attention",
    type=click.Choice(["eager", "sdpa"]),
    default="eager",
    show_default=True,
    help="eager: two bmm a layer, which can be tuned; sdpa: one fused kernel.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu"]),
    default="auto",
    show_default=True,
    help="Where the kernels will run; this version builds for the CPU.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="OpenMP threads of serving; they are part of every kernel.  "
    "[default: this process's cores]",
)
@click.option("--ray", "ray_address", metavar="ADDRESS", help="Join a Ray cluster.")
@click.option(
    "--from",
    "from_bundle",
    type=click.Path(exists=True, path_type=Path),
    metavar="OLD",
    help="Take the times of an older bundle where they are of the same candidates.",
)
@click.option(
    "--bake-passes",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    help="Fresh processes that may run until one compiles nothing.",
)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keeps what a stopped build goes on from.  [default: ~/.cache/flytune/work]",
)
@click.option("--fresh", is_flag=True, help="Throw away what --work has of this build.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="A .tar.zst, else a directory.  [default: MODEL.TARGET.tar.zst]",
)
def build_command(
    model: str,
    tokens: tuple[int, ...],
    policy: str,
    attention: Attention,
    device: str,
    threads: int | None,
    ray_address: str | None,
    from_bundle: Path | None,
    bake_passes: int,
    work: Path | None,
    fresh: bool,
    out: Path | None,
) -> None:
    """Tune a model's GEMMs ahead of time and write the bundle.

    A build that was stopped goes on with the same command.
    """
    del device  # both choices are the CPU in this version
    from flytune.caches.placing import flytune_home
    from flytune.caches.target import Target
    from flytune.tuner.build import build
    from flytune.tuner.options import BuildOptions
    from flytune.tuner.progress import Progress
    from flytune.tuner.summary import built_text

    threads = threads or len(os.sched_getaffinity(0))
    if out is None:
        slug = Target.here(threads=threads).slug
        out = Path(f"{Path(model).name.lower()}.{slug}.tar.zst")
    options = BuildOptions(
        model=model,
        tokens=tokens,
        attention=attention,
        policy=policy,
        threads=threads,
        out=out,
        work=work or flytune_home() / "work",
        ray=ray_address,
        from_bundle=from_bundle,
        bake_passes=bake_passes,
        fresh=fresh,
    )
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        built = build(options, Progress())
    except KeyboardInterrupt as error:
        words = "stopped: the same command goes on from here"
        raise KeyboardInterrupt(words) from error
    click.echo(built_text(built))
    if not built.verdict.ok(strict=False):
        raise click.exceptions.Exit(1)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt

"""`flytune build`: tune a model's GEMMs and write the bundle."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import click

from flytune.caches.program import Bake
from flytune.caches.trust import Trust
from flytune.shapes.gemm import Engine
from flytune.shapes.quant_schemes import Quant
from flytune.tuner.budget_options import budget_options
from flytune.tuner.build_arguments import (
    parse_backends,
    parse_command,
    parse_ops,
    parse_runner,
)
from flytune.tuner.fleet_command import BuildCommand, models_option
from flytune.tuner.options import Phases
from flytune.tuner.program_options import (
    attention_option,
    bake_option,
    check_whose,
    phase_options,
    precompiled_option,
    vllm_arguments,
)
from flytune.tuner.shapes_command import (
    engine_option,
    ep_option,
    model_option,
    quant_option,
    shapes_option,
    tp_option,
)
from flytune.tuner.token_options import tokens_option
from flytune.tuner.trust_options import trust_options

if TYPE_CHECKING:
    from flytune.tuner.budget import Budget
    from flytune.tuner.options import BuildOptions

T = TypeVar("T")


@click.command("build", cls=BuildCommand)
@models_option
@model_option
@shapes_option
@tokens_option
@phase_options
@tp_option
@ep_option
@engine_option
@quant_option
@click.option(
    "--allow-unreached",
    is_flag=True,
    help="Build GEMMs too that serving does not ask Inductor for: those in operators "
    "of the engine's own, and those outside what it compiles.",
)
@click.option(
    "--policy",
    type=click.Choice(["unfrozen", "frozen"]),
    default="unfrozen",
    show_default=True,
    help="Of a CPU. unfrozen: graphs are cached, a bmm has a choice, a linear has "
    "none. frozen: linears have a choice, torch lowers their graphs at each start.",
)
@attention_option
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where the kernels will run; auto: an accelerator, if there is one.",
)
@click.option(
    "--target",
    multiple=True,
    metavar="NAME|FILE",
    help="An accelerator by a shipped profile's name, such as h200, or by a file of "
    "`flytune doctor --profile`; given again, a bundle for each, in the folder --out, "
    "or where --out is with {target} replaced.  [default: the device at hand]",
)
@click.option(
    "--compile-only",
    is_flag=True,
    help="Compile every candidate for --target and pack the kernels; a build where "
    "the device is takes them with --from and compiles none.",
)
@click.option(
    "--runner",
    "recorded",
    metavar="recorded:FILE",
    callback=lambda _context, _parameter, value: _given(parse_runner, value),
    help="Take times from a file instead of a device: flytune's records, AITER's tuned "
    "table, TunableOp's results, or a table of TFLOP/s by backend. Nothing is baked.",
)
@click.option(
    "--target-env",
    type=click.Path(exists=True, path_type=Path),
    metavar="VENV|FILE",
    help="The environment that will serve, or its captured profile: a difference in "
    "torch, Triton or Python ends the build before anything is compiled.",
)
@click.option(
    "--search",
    type=click.Choice(["default", "smart", "exhaustive"]),
    default="default",
    show_default=True,
    help="Which of Inductor's lists of candidates to tune: the default ones, all of "
    "the exhaustive ones, or the tenth of those that a model of cost names.",
)
@budget_options
@click.option(
    "--backends",
    metavar="NAMES",
    callback=lambda _context, _parameter, value: _given(parse_backends, value),
    help="An accelerator's, as Inductor's max_autotune_gemm_backends names them.  "
    "[default: ATEN,TRITON, and FLYDSL for an AMD GPU]",
)
@click.option(
    "--ops",
    default="gemm",
    show_default=True,
    metavar="NAMES",
    callback=lambda _context, _parameter, value: parse_ops(value),
    help="gemm, and for an AMD GPU rmsnorm and topk: FlyDSL kernels that torch runs "
    "outside of any graph, of the model's sizes.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="HASH",
    help="Keep the candidate of this choice hash out; may be given again.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="OpenMP threads of serving; they are part of every C++ kernel.  "
    "[default: this process's cores]",
)
@click.option("--ray", "ray_address", metavar="ADDRESS", help="Join a Ray cluster.")
@click.option(
    "--from",
    "from_bundle",
    type=click.Path(readable=False, path_type=Path),
    metavar="OLD",
    help="Take of an older bundle what holds here: all of it, verified, where nothing "
    "has changed; times and kernels of the same candidates; of another environment's "
    "bundle what the change does not touch.",
)
@bake_option
@click.option(
    "--bake-cmd",
    metavar="'COMMAND'",
    callback=lambda _context, _parameter, value: _given(parse_command, value),
    help="Bake what COMMAND compiles, in all of its Python processes, instead of a "
    "program of our own; it runs once to list, and until it compiles nothing. No shell "
    "reads it. Then --model may be left out.",
)
@precompiled_option
@click.option(
    "--bake-passes",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    help="Fresh processes that may run until one compiles nothing.",
)
@click.option(
    "--work",
    type=click.Path(readable=False, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keeps what a stopped build goes on from.  [default: ~/.cache/flytune/work]",
)
@click.option("--fresh", is_flag=True, help="Throw away what --work has of this build.")
@click.option(
    "--out",
    type=click.Path(readable=False, path_type=Path),
    metavar="BUNDLE",
    help="A .tar.zst, else a directory.  [default: MODEL.TARGET.tar.zst]",
)
@click.option(
    "--key",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Sign with this private key.  [default: your own, made by the first build]",
)
@click.option("--no-sign", is_flag=True, help="Do not sign the bundle.")
@trust_options
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS...]"
)
def build_command(
    arguments: tuple[str, ...],
    model: str | None,
    by_hand: Path | None,
    tokens: tuple[int, ...],
    phases: Phases,
    tp: int,
    ep: int,
    engine: Engine,
    quant: Quant | None,
    allow_unreached: bool,
    policy: str,
    attention: str | None,
    device: str,
    target: str | None,
    compile_only: bool,
    recorded: Path | None,
    target_env: Path | None,
    search: str,
    budget: "Budget | None",
    gpu_hour_price: float | None,
    backends: tuple[str, ...] | None,
    ops: tuple[str, ...],
    exclude: tuple[str, ...],
    threads: int | None,
    ray_address: str | None,
    from_bundle: Path | None,
    bake: Bake | Literal["vllm"],
    bake_cmd: tuple[str, ...] | None,
    precompiled: bool,
    bake_passes: int,
    work: Path | None,
    fresh: bool,
    out: Path | None,
    key: Path | None,
    no_sign: bool,
    trust: Trust,
) -> "BuildOptions":
    """Tune a model's GEMMs ahead of time and write the bundle.

    A build that was stopped goes on with the same command.
    """
    from flytune.caches.home import flytune_home
    from flytune.tuner.options import BuildOptions

    vllm = vllm_arguments(bake, engine, model, arguments)
    check_whose(model, by_hand, bake_cmd, vllm)
    threads = threads or len(os.sched_getaffinity(0))
    return BuildOptions(
        model=model or "",
        by_hand=by_hand,
        tokens=tokens,
        phases=phases,
        tp=tp,
        ep=ep,
        engine=engine,
        quant=quant,
        allow_unreached=allow_unreached,
        attention=attention,
        policy=policy,
        device=device,
        target=target,
        compile_only=compile_only,
        recorded=recorded,
        target_env=target_env,
        search=search,
        budget=budget,
        gpu_hour_price=gpu_hour_price,
        backends=backends,
        ops=ops,
        exclude=frozenset(exclude),
        threads=threads,
        out=out,
        work=work or flytune_home() / "work",
        ray=ray_address,
        from_bundle=from_bundle,
        bake="layers" if bake == "vllm" else bake,
        bake_cmd=bake_cmd or (),
        vllm=vllm,
        precompiled=precompiled,
        bake_passes=bake_passes,
        sign=not no_sign,
        key=key,
        trust=trust,
        # Without the program's path, which is a place on this host.
        command=("flytune", *sys.argv[1:]),
        fresh=fresh,
    )


def _given(parse: Callable[[str], T], value: str | None) -> T | None:
    return None if value is None else parse(value)

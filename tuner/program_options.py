"""The options of a build that say which program is baked, and how it is called."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import click

from flytune.caches.program import Bake, Phase
from flytune.shapes.gemm import Engine
from flytune.shapes.tokens import parse_tokens
from flytune.tuner.options import Phases
from flytune.tuner.shapes_command import OF_A_MODEL, check_model, is_given

BAKED: Mapping[str, Bake | Literal["vllm"]] = {
    "layers": "layers",
    "whole": "model",
    # Whose program it is, and an older word.
    "transformers": "layers",
    "model": "model",
    "vllm": "vllm",
}
"""What one graph holds, by the words of `--bake`."""

attention_option = click.option(
    "--attention",
    metavar="NAME",
    help="As transformers names it. eager: two bmm a layer, which can be tuned; sdpa: "
    "one fused kernel; flex_attention or another that is installed.  "
    "[default: eager on a CPU, sdpa on an accelerator]",
)
bake_option = click.option(
    "--bake",
    type=click.Choice(tuple(BAKED)),
    default="layers",
    show_default=True,
    callback=lambda _context, _parameter, value: BAKED[value],
    help="What one graph holds. layers, or transformers: a decoder layer of each kind "
    "and the head, each compiled alone, one graph for all layers of a kind. whole, or "
    "model: all of the model. vllm: what the engine of `vllm serve M ARGUMENTS` "
    "compiles, ARGUMENTS being those after `--`; with --engine vllm. M is --model as "
    "vLLM takes it, or without --model the first of them.",
)

precompiled_option = click.option(
    "--precompiled",
    is_flag=True,
    help="Store Dynamo's entries too: serving traces nothing. torch drops guards that "
    "it cannot store.",
)


def phase_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the phases of its program; it gets `phases`.

    To be put inside of `tokens_option`: its `tokens` are then those of all phases.
    """

    @click.option(
        "--phase",
        "named",
        metavar="NAMES",
        default="prefill",
        show_default=True,
        help="prefill: one sequence of --tokens tokens; decode: --tokens sequences "
        "that bring one token each, with a static cache; or both, joined by a comma.",
    )
    @click.option(
        "--context",
        type=click.IntRange(min=2),
        metavar="N",
        help="Positions of decode's static cache.",
    )
    @click.option(
        "--batch",
        metavar="COUNTS",
        help="Sequences of decode beside prefill, as --tokens.  [default: --tokens]",
    )
    @click.option(
        "--dynamic",
        is_flag=True,
        help="Bake one graph for any number of tokens, tuned for the largest.",
    )
    @functools.wraps(command)
    def with_phases(
        *args: Any,
        tokens: tuple[int, ...],
        named: str,
        context: int | None,
        batch: str | None,
        dynamic: bool,
        **options: Any,
    ) -> Any:
        names = _names(named)
        if ("decode" in names) != (context is not None):
            raise click.UsageError("--phase decode and --context go together")
        if batch is not None and len(names) < 2:
            raise click.UsageError("--batch needs --phase decode,prefill")
        prefill = tokens if len(names) > 1 else ()
        decode = (_batch(batch) or tokens) if "decode" in names else ()
        phases = Phases(prefill, decode, context or 0, dynamic)
        counts = tuple(dict.fromkeys((*tokens, *decode)))
        return command(*args, tokens=counts, phases=phases, **options)

    return with_phases


def _names(words: str) -> frozenset[str]:
    names = frozenset(word.strip() for word in words.split(","))
    unknown = sorted(names - set(get_args(Phase)))
    if unknown:
        raise click.BadParameter(
            f"unknown phase: `{unknown[0]}`; known are prefill and decode",
            param_hint="'--phase'",
        )
    return names


def _batch(words: str | None) -> tuple[int, ...]:
    try:
        return () if words is None else parse_tokens(words)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--batch'") from error


# Options of our own programs, by their parameters' names.
_OF_OUR_OWN = {
    **{name: name for name in ("precompiled", "attention", "context", "dynamic")},
    **{"named": "phase", "compile_only": "compile-only", "recorded": "runner"},
}


_OF_TOKENS = {
    **{"words": "tokens", "max_num_seqs": "max-num-seqs", "spec": "spec"},
    **{"prefill_chunk": "prefill-chunk"},
}
# What vLLM decides on by itself.
_OF_A_POLICY = {"policy": "policy", "backends": "backends"}


def check_whose(
    model: str | None,
    by_hand: Path | None,
    bake_cmd: tuple[str, ...] | None,
    vllm: tuple[str, ...],
) -> None:
    """Refuse options that say nothing, or too much, of what is built.

    Raises:
        click.UsageError: so they do.
    """
    runs = "--bake-cmd" if bake_cmd else "--bake vllm" if vllm else ""
    if not runs or model is not None or by_hand is not None:
        check_model(model, by_hand)
    else:
        for name in (*OF_A_MODEL, *_OF_TOKENS):
            if is_given(name):
                option = _OF_TOKENS.get(name, name)
                raise click.UsageError(f"--{option} is of --model: {runs} says it")
    own = {**_OF_OUR_OWN, **({"bake": "bake"} if bake_cmd else _OF_A_POLICY)}
    for name, option in own.items() if runs else ():
        if is_given(name):
            raise click.UsageError(f"--{option} does not go with {runs}")


def vllm_arguments(
    bake: str, engine: Engine, model: str | None, arguments: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the arguments of `vllm serve`; none where vLLM is not baked.

    Raises:
        click.UsageError: there are some and nobody takes them, or there are none.
    """
    if bake != "vllm":
        if arguments:
            raise click.UsageError(f"unexpected argument: {arguments[0]}")
        return ()
    if engine != "vllm":
        raise click.UsageError("--bake vllm and --engine vllm go together")
    words = arguments if model is None else (model, *arguments)
    if not words or words[0].startswith("-"):
        raise click.UsageError("give --model, or vLLM's name of it first after `--`")
    return words

"""The options that say which token counts are planned."""

import functools
from collections.abc import Callable
from typing import Any

import click

from flytune.shapes.tokens import DEFAULT_TOKENS, Batches, parse_tokens


def tokens_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--tokens` and what decides an engine's sizes.

    It gets `tokens`, the counts. An engine's sizes are those of the command's own `tp`
    ranks, where it has that option.
    """

    @click.option(
        "--tokens",
        "words",
        metavar="COUNTS",
        default=DEFAULT_TOKENS,
        show_default=True,
        help="Static token counts of a forward pass, each an `m`: numbers, 1..256, "
        "8..256/8, powers (of two, to 256), powers..64, vllm or sglang (the sizes that "
        "the engine captures), joined by commas.",
    )
    @click.option(
        "--max-num-seqs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Of vllm and sglang in --tokens: most sequences of a decode step.  "
        "[default: the engine's]",
    )
    @click.option(
        "--spec",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Tokens that speculation drafts: a sequence of a decode step has 1 + N.",
    )
    @click.option(
        "--prefill-chunk",
        type=click.IntRange(min=1),
        metavar="N",
        help="Most tokens of a prefill step, one count more: vLLM's "
        "max_num_batched_tokens, SGLang's chunked_prefill_size.",
    )
    @functools.wraps(command)
    def with_tokens(
        *args: Any,
        words: str,
        max_num_seqs: int | None,
        spec: int,
        prefill_chunk: int | None,
        **options: Any,
    ) -> Any:
        batches = Batches(max_num_seqs, spec, prefill_chunk, options.get("tp", 1))
        try:
            counts = parse_tokens(words, batches)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="'--tokens'") from error
        return command(*args, tokens=counts, **options)

    return with_tokens

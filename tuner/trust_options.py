"""The options of commands that load bundles: whom to trust, beside the user's keys."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flytune.caches.trust import Trust

trust_option = click.option(
    "--trust",
    "trusted",
    multiple=True,
    type=click.Path(readable=False, path_type=Path),
    metavar="KEY.pub|DIR",
    help="Trust this public key, or those of a folder; may be given again.",
)


def trust_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--trust` and `--allow-unsigned`; it gets `trust`, a `Trust`."""

    @trust_option
    @click.option(
        "--allow-unsigned",
        is_flag=True,
        help="Load a bundle that no trusted key signed. It runs code on this host.",
    )
    @functools.wraps(command)
    def with_trust(
        *args: Any, trusted: tuple[Path, ...], allow_unsigned: bool, **options: Any
    ) -> Any:
        return command(*args, trust=Trust(trusted, allow_unsigned), **options)

    return with_trust

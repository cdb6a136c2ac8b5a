"""What the words of `flytune build`'s options stand for."""

import shlex
from pathlib import Path

import click

KNOWN_OPS = ("gemm", "rmsnorm", "topk")
KNOWN_BACKENDS = ("ATEN", "TRITON", "FLYDSL")


def parse_backends(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, upper case, each once.

    Raises:
        click.BadParameter: a name is not one that this version can build and time.
    """
    return _known(text.upper(), KNOWN_BACKENDS, "backend")


def parse_ops(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list of `KNOWN_OPS`, "gemm" among them.

    Raises:
        click.BadParameter: a name is unknown, or there are no GEMMs.
    """
    names = _known(text.lower(), KNOWN_OPS, "op")
    if "gemm" not in names:
        raise click.BadParameter("a build is of GEMMs: add `gemm`")
    return names


def _known(text: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        words = ", ".join(known)
        raise click.BadParameter(f"unknown {what}: `{unknown[0]}`; known are {words}")
    return names


def parse_runner(text: str) -> Path:
    """Return the file of `recorded:FILE`.

    Raises:
        click.BadParameter: it is of another form, or there is no such file.
    """
    kind, colon, name = text.partition(":")
    if kind != "recorded" or not colon:
        raise click.BadParameter(f"unknown runner: `{text}`; known is recorded:FILE")
    if not Path(name).is_file():
        raise click.BadParameter(f"no such file: `{name}`")
    return Path(name)


def parse_command(text: str) -> tuple[str, ...]:
    """Return the words of a command, split as a shell would.

    Raises:
        click.BadParameter: a quotation has no end, or there is no word.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise click.BadParameter(f"{str(error).lower()}: `{text}`") from error
    if not words:
        raise click.BadParameter("there is no command")
    return words

"""`flytune capture`: the GEMMs that a command's processes really run."""

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from flytune.caches.capture import Captured, capture_environment, read_counts
from flytune.caches.scratch import beside
from flytune.shapes.errors import FlytuneError

_OUT = "captured.jsonl"
# What is passed on to the command; a Ctrl-C reaches it from the terminal.
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


@click.command("capture", context_settings={"allow_interspersed_args": False})
@click.option(
    "--out",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    default=_OUT,
    show_default=True,
    help="Where the GEMMs are written, as JSON lines that --shapes takes.",
)
@click.argument(
    "command",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="-- COMMAND...",
)
@click.pass_context
def capture_command(
    context: click.Context, out: Path, command: tuple[str, ...]
) -> None:
    """Run COMMAND and count the GEMMs that its Python processes run.

    Nothing is compiled meanwhile: a compiled graph's GEMMs are counted as its modules
    call them. The exit code is the command's; what was counted until then is written
    whatever it is.
    """
    if out.exists() or out.is_symlink():
        raise FlytuneError(
            f"output exists: {out}", hint="remove it, or give another --out"
        )
    try:
        with beside(out.absolute()) as folder:
            code = _run(command, capture_environment(folder))
            captured = read_counts(folder)
            if captured.shapes:
                part = folder / _OUT
                part.write_text(captured.to_lines(), encoding="utf-8")
                part.replace(out)
    except OSError as error:
        raise FlytuneError(
            f"output cannot be written: {out}: {error.strerror}"
        ) from error
    _say(captured, out)
    context.exit(code)


def _run(command: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Run a command to its end; return its exit code, as a shell gives it.

    Raises:
        FlytuneError: it cannot be run.
    """
    with _signals() as passed_on:
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise FlytuneError(f"cannot run: {command[0]}: {error.strerror}") from error
        passed_on.append(process)
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _signals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Outlive what ends the command; yield a list for the process to be told."""
    processes: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        for process in processes:
            if number in _FORWARDED:
                process.send_signal(number)

    # Not SIG_IGN, which the command would inherit.
    before = {
        number: signal.signal(number, forward)
        for number in (*_FORWARDED, signal.SIGINT)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield processes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(captured: Captured, out: Path) -> None:
    calls = sum(shape.count for shape in captured.shapes)
    words = (
        f"{len(captured.shapes)} GEMMs, {calls} calls, {captured.processes} processes"
    )
    if captured.shapes:
        click.echo(f"captured: {words}: {out}", err=True)
    else:
        why = "no Python process with torch ran one, or it began with -S, -I or -E"
        click.echo(f"captured: no GEMM, and nothing is written: {why}", err=True)
    for reason, number in captured.set_aside.items():
        click.echo(f"set aside: {number} calls: {reason}", err=True)

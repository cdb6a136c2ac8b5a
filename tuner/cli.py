"""The command line: which commands there are, and how a failure ends one."""

import errno
import importlib
import os
import shutil
from typing import Any

import click

from flytune.caches.codes import EXPLAINED, Code
from flytune.shapes.errors import FlytuneError

COMMANDS = (
    ("shapes", "shapes_command:shapes_command", "List the GEMMs that a model runs."),
    ("build", "build_command:build_command", "Tune a model and pack a bundle."),
    ("verify", "verify_command:verify_command", "Prove that a bundle hits."),
    ("check", "check_command:check_command", "Say whether a bundle got worse."),
    ("inspect", "bundle_commands:inspect_command", "Say what a bundle holds."),
    ("capture", "capture_command:capture_command", "Count the GEMMs that run."),
    ("coverage", "coverage_command:coverage_command", "Say which GEMMs are held."),
    ("report", "report_command:report_command", "Chart what a build found."),
    ("explain", "explain_command:explain_command", "Say why a kernel won, or a miss."),
    ("install", "bundle_commands:install_command", "Put a bundle in place."),
    ("exec", "bundle_commands:exec_command", "Run a command with a bundle."),
    ("keygen", "key_commands:keygen_command", "Make a key to sign bundles with."),
    ("sign", "key_commands:sign_command", "Sign a bundle."),
    ("trust", "key_commands:trust_command", "Say whose bundles may be loaded."),
    ("installed", "care_commands:installed_command", "List what is installed."),
    ("gc", "care_commands:gc_command", "Remove what was not used for longest."),
    ("why", "care_commands:why_command", "Say what became of a bundle."),
    ("merge", "merge_command:merge_command", "Join bundles for one target."),
    ("push", "ship_commands:push_command", "Send a bundle to a registry or hub."),
    ("pull", "ship_commands:pull_command", "Fetch the bundle for a host."),
    ("mirror", "ship_commands:mirror_command", "Copy a tag into a folder."),
    ("wheel", "wheel_command:wheel_command", "Make a bundle installable by pip."),
    ("doctor", "doctor_command:doctor_command", "Say what this host is fit for."),
)
"""Name, where in `flytune.tuner` it is, and its line in `flytune --help`."""

EXTRA_OF = {
    "flydsl": "amd",
    "grpc": "cluster",
    "huggingface_hub": "ship",
    "jinja2": "build",
    "numpy": "build",
    "oras": "ship",
    "psutil": "build",
    "pynvml": "build",
    "pyarrow": "build",
    "ray": "build",
    "requests": "ship",
    "rich": "build",
    "scipy": "build",
    "sklearn": "build",
    "threadpoolctl": "build",
    "transformers": "build",
}
"""The extra of the wheel that brings each optional package."""


class Failure(click.ClickException):
    """What ends a command, in words for its user and without a traceback."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", file=file, err=True)
        if self.hint is not None:
            click.echo(f"hint: {self.hint}", file=file, err=True)


class Interrupted(Failure):
    """The keyboard stopped a command; the exit code is the one shells give SIGINT."""

    exit_code = 130


class LazyCommand(click.Command):
    """A command that is imported when it runs, not when it is listed.

    `target` is "package.module:attribute", a click command.
    """

    def __init__(self, name: str, target: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.target = target

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Hand over to the real command, which the context then names."""
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command.make_context(info_name, args, parent, **extra)


class Commands(click.Group):
    """A group that keeps its commands' order and turns faults into `Failure`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that the arguments name.

        Raises:
            Failure: a `FlytuneError`, an absent extra, or an interrupt from the
                keyboard; any other exception is a bug and keeps its traceback.
        """
        try:
            return super().invoke(ctx)
        except FlytuneError as error:
            raise Failure(error.line, error.hint or _action(error.code)) from error
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRA_OF:
                raise
            raise Failure(
                f"flytune {ctx.invoked_subcommand} needs {package}, "
                "which is not installed",
                f"pip install 'flytune[{EXTRA_OF[package]}]'",
            ) from error
        except (OSError, shutil.Error) as error:
            if (full := _full_disk(error)) is None:
                raise
            raise Failure(
                full, "free some, or move it: --work, --out, TMPDIR"
            ) from error
        except KeyboardInterrupt as error:
            raise Interrupted(str(error) or "interrupted") from error


def _action(code: str | None) -> str | None:
    """Return what to do about a fault that has a code and no hint of its own."""
    return None if code is None else EXPLAINED[Code(code)].action


def _full_disk(error: OSError) -> str | None:
    """Return the line of a full disk; None where the error is another one."""
    words = os.strerror(errno.ENOSPC)
    if isinstance(error, shutil.Error) and words in str(error):
        return f"cannot write: {words}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write: {error.filename or 'a file'}: {error.strerror}"
    return None


@click.group(
    cls=Commands,
    commands=[
        LazyCommand(name, f"flytune.tuner.{target}", short_help)
        for name, target, short_help in COMMANDS
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="flytune", message="%(package)s %(version)s")
def main() -> None:
    """Tune a model's GEMMs before it is served, and ship what serving needs."""

"""The import hook that holds torch to an installed bundle's policy.

It runs in the interpreter of any served command, which may lack flytune: the standard
library alone, and nothing newer than Python 3.10. It must never stop the program: what
does not fit disables the bundle with one line.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

if __package__:
    from flytune.caches.hook import (
        flytune_files,
        flytune_imports,
        flytune_sources,
        flytune_start,
        flytune_status,
        flytune_torch,
    )
else:  # In the child of a command, where this folder is on the path.
    import flytune_files  # type: ignore[import-not-found, no-redef]
    import flytune_imports  # type: ignore[import-not-found, no-redef]
    import flytune_sources  # type: ignore[import-not-found, no-redef]
    import flytune_start  # type: ignore[import-not-found, no-redef]
    import flytune_status  # type: ignore[import-not-found, no-redef]
    import flytune_torch  # type: ignore[import-not-found, no-redef]

CHANGES_VARIABLE = "FLYTUNE_CHANGES"
_CALLBACKS = "torch._dynamo.callback"
_WATCHED = (
    "torch",
    "torch._inductor.config",
    "torch._dynamo.config",
    "torch._dynamo.guards",
    "torch._dynamo.output_graph",
    _CALLBACKS,
    "torch._inductor.codecache",
    flytune_torch.ISA,
    "triton.runtime.build",
)
_CONFIGS = {"torch._inductor.config": "inductor", "torch._dynamo.config": "dynamo"}

Changes = Mapping[str, tuple[str | None, str | None]]
"""A variable's name to the value that flytune set and the one before; None is unset."""


class Reason(NamedTuple):
    """Why a bundle is not used; `caches/codes.py` says what each code means."""

    state: str
    code: str
    text: str
    part: Mapping[str, Any] | None = None
    """The part that differs, as it was built for and as it is here."""


class Hook(flytune_imports.AfterImport):
    """Holds torch's modules to the bundle just after they are imported."""

    def __init__(
        self, directory: str, changes: Changes, status: Any, *, checked: bool
    ) -> None:
        super().__init__(_WATCHED)
        self.flytune_directory = directory
        self._changes = changes
        self._status = status
        self._checked = checked
        self._held = flytune_files.hold(directory)
        self._graphs: dict[str, int] = {}
        self._undo: list[Callable[[], None]] = []
        self._activation: Any = None

    def loaded(self, module: Any) -> None:
        """Check a module that was imported; disable the bundle if it does not fit."""
        if module.__name__ not in self._waiting:
            return
        self._waiting.discard(module.__name__)
        try:
            reason = next(self._differences(module), None)
        # A file of flytune's own that is absent or not as it was written.
        except (OSError, ValueError, LookupError) as error:
            reason = Reason(flytune_status.ERROR, "FT404", _in_words(error))
        # Whatever torch's private parts do, serving goes on without the bundle.
        except Exception as error:
            reason = Reason(flytune_status.ERROR, "FT901", _in_words(error))
        if reason is not None:
            self.disable(reason)
        elif not self._waiting:
            self.leave()

    def unwatchable(self, fullname: str) -> None:
        """Do without the bundle: nothing can hold torch to it."""
        text = f"cannot watch the import of {fullname}"
        self.disable(Reason(flytune_status.ERROR, "FT107", text))

    def disable(self, reason: Reason | None) -> None:
        """Set everything back; say why in one line, unless `reason` is None."""
        self._waiting.clear()
        self.leave()
        while self._undo:
            self._undo.pop()()
        restore(self._changes, os.environ)
        if reason is not None:
            say_unused(reason, self._status)

    def _differences(self, module: Any) -> Iterator[Reason]:
        if self._activation is None:
            self._activation = flytune_files.read_activation(self.flytune_directory)
        activation = self._activation
        built = activation["software"]
        if module.__name__ in _CONFIGS:
            settings = activation[_CONFIGS[module.__name__]]
            without = activation.get("inductor_without_flydsl")
            if module.__name__ == "torch._inductor.config" and without:
                here, wanted = flytune_torch.version("flydsl"), built.get("flydsl")
                if here != wanted:
                    said = f"built for `{wanted}`, here `{here}` (FT108)"
                    say(f"served without FlyDSL: {said}")
                    self._status.count("FT108")
                    settings = without
            for name, value in settings.items():
                yield from self._configure(module, name, value)
            return
        mends = flytune_torch.mends_for({**activation, "device": activation["kind"]})
        if module.__name__ in mends:
            self._undo.append(mends[module.__name__](module))
        if module.__name__ in flytune_torch.MENDED:
            return
        if module.__name__ == _CALLBACKS:
            # Only counted: a torch that has no such thing serves all the same.
            with contextlib.suppress(Exception):
                self._undo.append(flytune_torch.after_compiling(module, self._count))
            return
        if module.__name__ == "torch":
            open_to = flytune_files.exposed(self.flytune_directory)
            if open_to is not None:
                text = f"directory can be written by other users: {open_to}"
                yield Reason(flytune_status.ERROR, "FT304", text)
            if text := flytune_torch.other_launch(activation.get("world_size")):
                yield Reason(flytune_status.MISS, "FT110", text)
            live = flytune_torch.environment_parts(module, activation["kind"])
            # What is not to be mended may never be imported: it is not waited for.
            self._waiting -= flytune_torch.MENDED - mends.keys()
        else:
            # Triton is imported by then, where there is one.
            self._undo.append(flytune_sources.keep_triton_key(self.flytune_directory))
            live = {
                "torch_key": flytune_sources.torch_key(module, self.flytune_directory)
            }
        for name, value in live.items():
            if built.get(name) not in (None, value):
                yield _difference(f"software.{name}", built[name], value)
        if module.__name__ == "torch":
            yield from self._check_files()

    def _check_files(self) -> Iterator[Reason]:
        """Set aside what was damaged since the installation."""
        if not self._checked:
            marker = flytune_files.read_marker(self.flytune_directory)
            self._status.bundle = marker["bundle"]
            broken = flytune_files.damaged(self.flytune_directory, marker["files"])
            moved, stuck = flytune_files.set_aside(self.flytune_directory, broken)
            if stuck:
                text = f"a damaged file cannot be set aside: {stuck[0]}"
                yield Reason(flytune_status.ERROR, "FT403", text)
            if moved:
                say(
                    f"{len(moved)} damaged files of an installed bundle are set aside: "
                    f"{moved[0]} (FT402)"
                )
                self._status.set_aside(len(moved), "FT402")
        self._status.write()

    def _count(self, graphs: Mapping[str, int]) -> None:
        """Add to the status how lookups of graphs ended since the last time."""
        new = {}
        for name, number in graphs.items():
            before = self._graphs.get(name, 0)
            # A program may set torch's counters back.
            new[name] = number - before if number >= before else number
        self._graphs = dict(graphs)
        if any(new.values()):
            for name, number in new.items():
                total = self._status.graphs.get(name, 0) + number
                self._status.graphs[name] = total
            self._status.write()

    def _configure(self, config: Any, name: str, value: Any) -> Iterator[Reason]:
        try:
            undo = flytune_torch.set_default(config, name, value)
        except LookupError as error:
            yield Reason(flytune_status.MISS, "FT105", str(error.args[0]))
            return
        self._undo.append(undo)
        live = getattr(config, name)
        if live != value and flytune_torch.as_listed(live) != value:
            part = f"policy `{name}`"
            yield _difference(part, value, live)._replace(code="FT105")


def _difference(part: str, built: Any, live: Any) -> Reason:
    row = {"part": part, "built": built, "live": live}
    text = f"{part}: built for `{built}`, here `{live}`"
    return Reason(flytune_status.MISS, "FT102", text, row)


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def arm(directory: str, changes: Changes, status: Any) -> None:
    """Watch this process, which installed a bundle just now, import torch.

    Args:
        directory: the installed bundle, whose files were checked.
        changes: what was set in the environment, to be set back if it does not fit.
        status: of this process, a `flytune_status.Status`.
    """
    Hook(directory, changes, status, checked=True).start()


def armed() -> Any:
    """Return this process's hook, whichever copy of this module made it, or None."""
    for finder in sys.meta_path:
        if hasattr(finder, "flytune_directory"):
            return finder
    return None


def arm_from_environment(*, unwatchable: str = "") -> None:
    """Arm a child process as its parent's environment says.

    Args:
        unwatchable: a module whose import cannot be watched, if any.
    """
    directory = os.environ[flytune_start.INSTALLED_VARIABLE]
    status = flytune_status.Status(
        os.environ.get(flytune_status.STATUS_VARIABLE, ""), installed=directory
    )
    try:
        changes = _inherited()
    except (ValueError, TypeError, AttributeError) as error:
        text = f"{CHANGES_VARIABLE}: {error}"
        say_unused(Reason(flytune_status.ERROR, "FT405", text), status)
        return
    if flytune_start.is_disabled():
        restore(changes, os.environ)
        say_unused(SWITCHED_OFF, status)
        return
    status.resume()
    hook = Hook(directory, changes, status, checked=False)
    if unwatchable:
        hook.unwatchable(unwatchable)
    else:
        hook.start()


def restore_from_environment() -> None:
    """Set back what this process's parent set, if that can be read."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        restore(_inherited(), os.environ)


def _inherited() -> Changes:
    row = json.loads(os.environ.get(CHANGES_VARIABLE, "{}"))
    return {name: (value, was) for name, (value, was) in row.items()}


SWITCHED_OFF = Reason(
    *(flytune_status.DISABLED, "FT501", f"{flytune_start.DISABLE_VARIABLE} is set")
)


def say_unused(reason: Reason, status: Any) -> None:
    """Say in one line, and in the process's status, why a bundle is not used."""
    say(f"bundle not used: {reason.text} ({reason.code})")
    status.fail(reason.state, reason.code, reason.text, reason.part)
    status.write()


def restore(changes: Changes, environment: MutableMapping[str, str]) -> None:
    """Set variables back, but none that has another value by now."""
    for name, (value, was) in changes.items():
        if environment.get(name) != value:
            continue
        if was is None:
            environment.pop(name, None)
        else:
            environment[name] = was
    environment.pop(CHANGES_VARIABLE, None)


def say(line: str) -> None:
    """Print one line on stderr, if there is one."""
    try:
        print(f"flytune: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return

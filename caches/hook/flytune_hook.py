"""The import hook that holds torch to an installed bundle's policy.

It runs in the interpreter of any served command, which may lack flytune: the standard
library alone, and nothing newer than Python 3.10. It must never stop the program: what
does not fit disables the bundle with one line.
"""

import functools
import importlib
import importlib.metadata
import json
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

# It lies beside this module, whichever name that has here.
sources: Any = importlib.import_module(
    __name__.replace("flytune_hook", "flytune_sources")
)
ACTIVATION_NAME = "activation.json"
PRECOMPILE = "caching_precompile"
"""Dynamo's setting by which it looks for entries of its own."""
INSTALLED_VARIABLE = "FLYTUNE_INSTALLED"
CHANGES_VARIABLE = "FLYTUNE_CHANGES"
_WATCHED = (
    "torch",
    "torch._inductor.config",
    "torch._dynamo.config",
    "torch._dynamo.guards",
    "torch._dynamo.output_graph",
    "torch._inductor.codecache",
    "triton.runtime.build",
)
_CONFIGS = {"torch._inductor.config": "inductor", "torch._dynamo.config": "dynamo"}

Changes = Mapping[str, tuple[str | None, str | None]]
"""A variable's name to the value that flytune set and the one before; None is unset."""


class AfterImport:
    """A finder that calls `loaded` just after somebody imported a watched module."""

    def __init__(self, names: Iterable[str]) -> None:
        self._waiting = set(names)
        self._finding: set[tuple[int, str]] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return what the other finders find, set to call back once it ran."""
        key = (threading.get_ident(), fullname)
        if fullname not in self._waiting or key in self._finding:
            return None
        self._finding.add(key)
        try:
            spec = self._found(fullname, path, target)
        finally:
            self._finding.discard(key)
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader, fullname)
        return spec

    def loaded(self, module: Any) -> None:
        """Look at a module that was imported; it may be told more than once."""
        raise NotImplementedError

    def unwatchable(self, fullname: str) -> None:
        """Learn that a module's loader lets nobody watch it."""
        raise NotImplementedError

    def start(self) -> None:
        """Watch from now on; what is imported already is looked at now."""
        sys.meta_path.insert(0, self)
        for name in sorted(self._waiting):
            if name in sys.modules:
                self.loaded(sys.modules[name])

    def leave(self) -> None:
        """Watch no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _found(self, fullname: str, path: Any, target: Any) -> Any:
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                return spec
        return None

    def _watch(self, loader: Any, fullname: str) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self.loaded(module)

        # On the instance, so that the loader stays what inspect and pickle expect.
        try:
            loader.exec_module = exec_module
        except AttributeError:
            self.unwatchable(fullname)


class Hook(AfterImport):
    """Holds torch's modules to the bundle just after they are imported."""

    def __init__(self, directory: str, changes: Changes) -> None:
        super().__init__(_WATCHED)
        self.flytune_directory = directory
        self._changes = changes
        self._undo: list[Callable[[], None]] = []

    def loaded(self, module: Any) -> None:
        """Check a module that was imported; disable the bundle if it does not fit."""
        if module.__name__ not in self._waiting:
            return
        self._waiting.discard(module.__name__)
        try:
            reason = next(self._differences(module), None)
        # Whatever torch's private parts do, serving goes on without the bundle.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            self.disable(reason)
        elif not self._waiting:
            self.leave()

    def unwatchable(self, fullname: str) -> None:
        """Do without the bundle: nothing can hold torch to it."""
        self.disable(f"cannot watch the import of {fullname}")

    def disable(self, reason: str | None) -> None:
        """Set everything back; say why in one line, unless `reason` is None."""
        self._waiting.clear()
        self.leave()
        while self._undo:
            self._undo.pop()()
        restore(self._changes, os.environ)
        if reason is not None:
            say(f"bundle not used: {reason}")

    def _differences(self, module: Any) -> Iterator[str]:
        path = os.path.join(self.flytune_directory, ACTIVATION_NAME)
        with open(path, encoding="utf-8") as file:
            activation = json.load(file)
        built = activation["software"]
        if module.__name__ in _CONFIGS:
            settings = activation[_CONFIGS[module.__name__]]
            without = activation.get("inductor_without_flydsl")
            if module.__name__ == "torch._inductor.config" and without:
                here, wanted = _version("flydsl"), built.get("flydsl")
                if here != wanted:
                    say(f"served without FlyDSL: built for `{wanted}`, here `{here}`")
                    settings = without
            for name, value in settings.items():
                yield from self._configure(module, name, value)
            return
        mends = mends_for(activation["kind"], activation["dynamo"])
        if module.__name__ in mends:
            self._undo.append(mends[module.__name__](module))
            return
        if module.__name__ in _MENDED:
            return
        if module.__name__ == "torch":
            live = _environment_parts(module, activation["kind"])
            # What is not to be mended may never be imported: it is not waited for.
            self._waiting -= _MENDED - mends.keys()
        else:
            # Triton is imported by then, where there is one.
            self._undo.append(sources.keep_triton_key(self.flytune_directory))
            live = {"torch_key": sources.torch_key(module, self.flytune_directory)}
        for name, value in live.items():
            if built.get(name) not in (None, value):
                yield f"software.{name}: built for `{built[name]}`, here `{value}`"

    def _configure(self, config: Any, name: str, value: Any) -> Iterator[str]:
        try:
            undo = set_default(config, name, value)
        except LookupError as error:
            yield str(error.args[0])
            return
        self._undo.append(undo)
        live = getattr(config, name)
        if live != value and _as_listed(live) != value:
            yield f"policy `{name}`: built for `{value}`, here `{live}`"


def set_default(config: Any, name: str, value: Any) -> Callable[[], None]:
    """Set what a setting of torch's is where the program sets nothing itself.

    Not setattr: since torch 2.15 that reaches the current thread alone, and serving
    compiles in others. Returns what sets it back.

    Args:
        config: `torch._inductor.config` or `torch._dynamo.config`.
        value: as JSON holds it; a list for a setting that is a tuple or a set.

    Raises:
        LookupError: this torch has no such setting.
    """
    entry = config._config.get(name)
    if entry is None:
        raise LookupError(f"torch has no setting that the policy names: `{name}`")
    if isinstance(entry.default, (tuple, set, frozenset)):
        value = type(entry.default)(value)
    previous = entry.env_value_default
    entry.env_value_default = value
    return lambda: setattr(entry, "env_value_default", previous)


def allow_unstored(guards: Any) -> Callable[[], None]:
    """Let any torch compile what it cannot store as a precompiled entry.

    One before 2.15 gives the entry up, and asserts in the next line that there are
    guards to store. Returns what sets it back.

    Args:
        guards: the module `torch._dynamo.guards`.
    """
    manager = guards.CheckFunctionManager
    init = manager.__init__

    @functools.wraps(init)
    def with_state(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        # Not looked at: the entry that it would stand in was given up.
        if self.guards_state is None:
            self.guards_state = b""

    manager.__init__ = with_state
    return lambda: setattr(manager, "__init__", init)


def rename_bound(output_graph: Any) -> Callable[[], None]:
    """Let any torch trace in a module that a precompiled entry was loaded into.

    One before 2.15 numbers the globals that it adds from one in each process, and
    asserts that none of that name came with an entry. Returns what sets it back.

    Args:
        output_graph: the module `torch._dynamo.output_graph`.
    """
    if not hasattr(output_graph, "unique_id"):
        # A newer one looks for a name that is not bound itself.
        return lambda: None
    graph = output_graph.OutputGraph
    install = graph.install_global

    def install_unbound(self: Any, prefix: str, value: Any) -> str:
        name: str = output_graph.unique_id(prefix)
        while name in self.global_scope:
            name = output_graph.unique_id(prefix)
        self.install_global_unsafe(name, value)
        return name

    graph.install_global = install_unbound
    return lambda: setattr(graph, "install_global", install)


def name_platform(build: Any) -> Callable[[], None]:
    """Let Triton look for its modules in C under one name on every host.

    Their key holds the platform's linkage, which Python asks the program `file` for:
    without that on PATH it is empty, and what another host built is not found.
    Returns what sets it back.

    Args:
        build: the module `triton.runtime.build`.
    """
    platform_key = build.platform_key

    def with_linkage() -> str:
        key: str = platform_key()
        return key + "ELF" if key.endswith(",") else key

    build.platform_key = with_linkage
    return lambda: setattr(build, "platform_key", platform_key)


_Mend = Callable[[Any], Callable[[], None]]
_OF_ACCELERATORS: Mapping[str, _Mend] = {"triton.runtime.build": name_platform}
# Of torch before 2.15, where precompiled entries are looked for.
_OF_PRECOMPILED: Mapping[str, _Mend] = {
    "torch._dynamo.guards": allow_unstored,
    "torch._dynamo.output_graph": rename_bound,
}
_MENDED = {*_OF_ACCELERATORS, *_OF_PRECOMPILED}


def mends_for(device: str, dynamo: Mapping[str, Any]) -> Mapping[str, _Mend]:
    """Return what mends a module, by its name, for a policy.

    Args:
        device: "cpu", or an accelerator's type.
        dynamo: the policy's settings of Dynamo.
    """
    return {
        **(_OF_ACCELERATORS if device != "cpu" else {}),
        **(_OF_PRECOMPILED if dynamo.get(PRECOMPILE) else {}),
    }


def _as_listed(value: Any) -> Any:
    """Return a setting as JSON holds it."""
    return list(value) if isinstance(value, (tuple, set, frozenset)) else value


def arm(directory: str, changes: Changes) -> None:
    """Watch this process import torch; what is imported already is checked now.

    Args:
        directory: an installed bundle.
        changes: what was set in the environment, to be set back if it does not fit.
    """
    Hook(directory, changes).start()


def armed() -> Any:
    """Return this process's hook, whichever copy of this module made it, or None."""
    for finder in sys.meta_path:
        if hasattr(finder, "flytune_directory"):
            return finder
    return None


def arm_from_environment() -> None:
    """Arm a child process as its parent's environment says."""
    directory = os.environ.get(INSTALLED_VARIABLE)
    if not directory:
        return
    try:
        row = json.loads(os.environ.get(CHANGES_VARIABLE, "{}"))
        changes = {name: (value, was) for name, (value, was) in row.items()}
    except (ValueError, TypeError, AttributeError) as error:
        say(f"bundle not used: {CHANGES_VARIABLE}: {error}")
        return
    arm(directory, changes)


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


def _environment_parts(torch: Any, kind: str) -> dict[str, Any]:
    parts = {
        "python_abi": sysconfig.get_config_var("SOABI"),
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
    }
    if kind != "cpu":
        parts["triton"] = _version("triton")
    return parts


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"

"""What the import hook changes in torch's own modules, and how it is set back.

Standard library alone, and nothing newer than Python 3.10: as the hook.
"""

import contextlib
import functools
import importlib.metadata
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from typing import Any

PRECOMPILE = "caching_precompile"
"""Dynamo's setting by which it looks for entries of its own."""


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
    # Raises where it has no such thing: it would be set, and nobody would read it.
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


def name_formats(codecache: Any) -> Callable[[], None]:
    """Let a graph have one key in every program that asks for it.

    The key holds memory formats pickled, which pickle names by the first module that
    has imported torch: an application's, unless torch came before it. Returns what sets
    it back.

    Args:
        codecache: the module `torch._inductor.codecache`.
    """
    pickler = codecache.FxGraphCachePickler
    init = pickler.__init__
    format_type = sys.modules["torch"].memory_format

    @functools.wraps(init)
    def with_formats(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        # Nobody reads what is pickled for a key.
        self.dispatch_table[format_type] = lambda value: (str, (str(value),))

    pickler.__init__ = with_formats
    return lambda: setattr(pickler, "__init__", init)


def tell_sizes_apart(guards: Any) -> Callable[[], None]:
    """Let a dynamic size be one of its own where another has the same value.

    Else a call whose tokens are as many as a head has elements is traced as a graph
    for such calls alone. Returns what sets it back.

    Args:
        guards: the module `torch._dynamo.guards`, which comes before any graph.
    """
    config = sys.modules["torch.fx.experimental._config"]
    return set_default(config, "use_duck_shape", False)


def probe_alone(cpu_vec_isa: Any) -> Callable[[], None]:
    """Let one thread at a time find out which instruction sets there are.

    torch changes a set's compiler flags while it probes it, and a kernel that another
    thread looks for meanwhile has them in its key, in another order. Returns what sets
    it back.

    Args:
        cpu_vec_isa: the module `torch._inductor.cpu_vec_isa`.
    """
    probe = cpu_vec_isa.valid_vec_isa_list
    lock = threading.RLock()

    @functools.wraps(probe)
    def probe_locked() -> Any:
        with lock:
            return probe()

    cpu_vec_isa.valid_vec_isa_list = probe_locked
    return lambda: setattr(cpu_vec_isa, "valid_vec_isa_list", probe)


ISA = "torch._inductor.cpu_vec_isa"
_Mend = Callable[[Any], Callable[[], None]]
_OF_CPUS: Mapping[str, _Mend] = {ISA: probe_alone}
_OF_ACCELERATORS: Mapping[str, _Mend] = {"triton.runtime.build": name_platform}
# Of torch before 2.15, where precompiled entries are looked for.
_OF_PRECOMPILED: Mapping[str, _Mend] = {
    "torch._dynamo.guards": allow_unstored,
    "torch._dynamo.output_graph": rename_bound,
}
MENDED = {*_OF_CPUS, *_OF_ACCELERATORS, *_OF_PRECOMPILED}
"""Modules that are watched for nothing else."""
_GUARDS = "torch._dynamo.guards"


def mends_for(policy: Mapping[str, Any]) -> Mapping[str, _Mend]:
    """Return what mends a module, by its name, for a policy.

    Args:
        policy: as the manifest has it; `device`, `dynamo` and `portable_keys` are read.
    """
    dynamo = policy.get("dynamo", {})
    on_cpu = policy.get("device", "cpu") == "cpu"
    mends = dict(_OF_CPUS if on_cpu else _OF_ACCELERATORS)
    if dynamo.get(PRECOMPILE):
        mends.update(_OF_PRECOMPILED)
    if policy.get("portable_keys"):
        mends["torch._inductor.codecache"] = name_formats
    if dynamo.get("assume_static_by_default") is False:
        before = mends.get(_GUARDS)
        mends[_GUARDS] = _both(before, tell_sizes_apart) if before else tell_sizes_apart
    return mends


def _both(first: _Mend, second: _Mend) -> _Mend:
    def mend(module: Any) -> Callable[[], None]:
        undo = second(module), first(module)

        def set_back() -> None:
            for one in undo:
                one()

        return set_back

    return mend


def after_compiling(
    callback: Any, told: Callable[[Mapping[str, int]], None]
) -> Callable[[], None]:
    """Tell after each compilation how Inductor's lookups of graphs ended.

    Returns what ends it.

    Args:
        callback: the module `torch._dynamo.callback`.
        told: takes "hit", "miss" and "bypass" to how often each was.
    """
    handler = callback.callback_handler

    def tell(*_: Any) -> None:
        utils = sys.modules.get("torch._dynamo.utils")
        # It runs within a compilation, which nothing here may end.
        with contextlib.suppress(Exception):
            counted = utils.counters["inductor"]  # type: ignore[union-attr]
            told(
                {
                    name: counted[f"fxgraph_cache_{name}"]
                    for name in ("hit", "miss", "bypass")
                    if f"fxgraph_cache_{name}" in counted
                }
            )

    def clear() -> None:
        type(handler).clear(handler)
        handler.register_end_callback(tell)

    # `torch._dynamo.reset` clears what is called.
    handler.clear = clear
    handler.register_end_callback(tell)

    def undo() -> None:
        del handler.clear
        with contextlib.suppress(ValueError):
            handler.remove_end_callback(tell)

    return undo


def other_launch(ranks: Any) -> str:
    """Say of which size this launch is where a bundle is for another, else nothing.

    Alike on every rank: one that compiles would keep the others waiting.

    Args:
        ranks: that the bundle was baked with; None where there was one at most.
    """
    launched = os.environ.get("WORLD_SIZE")
    if ranks is None or launched in (None, str(ranks)):
        return ""
    return f"ranks: built for {ranks}, here {launched}"


def environment_parts(torch: Any, kind: str) -> dict[str, Any]:
    """Return the parts of a target that a process knows of its software.

    Args:
        torch: the module.
        kind: "cpu", or an accelerator's type.
    """
    parts = {
        "python_abi": sysconfig.get_config_var("SOABI"),
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
    }
    if kind != "cpu":
        parts["triton"] = version("triton")
    return parts


def version(package: str) -> str:
    """Return a distribution's version, or "absent"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def as_listed(value: Any) -> Any:
    """Return a setting as JSON holds it."""
    return list(value) if isinstance(value, (tuple, set, frozenset)) else value

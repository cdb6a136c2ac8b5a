"""What an engine of vLLM's compiles although it has a bundle: said, or refused.

One line a process that runs a model, when its engine has started; one more where
something is compiled later.
"""

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.after_imports import AfterImports
from flytune.caches.bundle import Bundle
from flytune.caches.codes import Code
from flytune.caches.compat import Wrapper, private
from flytune.caches.hook.flytune_hook import say
from flytune.caches.hook.flytune_torch import ISA, probe_alone
from flytune.caches.ledger import Kind
from flytune.caches.ledger_hooks import when_imported
from flytune.caches.vllm_factors import VllmFactors
from flytune.caches.vllm_key import vllm_factors
from flytune.caches.vllm_plugin import COUNTS_VARIABLE
from flytune.caches.vllm_why import baked_factors, predict
from flytune.shapes.errors import FlytuneError

_WORK = {
    Kind.LOWERED: ("graph", "lowered"),
    Kind.CPP_COMPILED: ("C++ kernel", "compiled"),
    Kind.TRITON_COMPILED: ("Triton kernel", "compiled"),
}
_POINTS = {
    ("torch._inductor.graph", "GraphLowering.run"): Kind.LOWERED,
    ("torch._inductor.cpp_builder", "CppBuilder.build"): Kind.CPP_COMPILED,
    # Only what is not in Triton's cache comes this far.
    ("triton.compiler.compiler", "ASTSource.make_ir"): Kind.TRITON_COMPILED,
}
_DECORATORS = "vllm.compilation.decorators"
_LOAD = "_try_load_aot_compiled_fn"
_WORKER = "vllm.v1.worker.worker_base"
_START = "compile_or_warm_up_model"
_COUNTER = "vllm.compilation.counter"
# Of vLLM's own counts, by what they are called here.
_COUNTED = {
    "aot_compiles": "num_aot_compiles",
    "aot_loads": "num_aot_artifacts_loaded",
    "inductor_compiles": "num_inductor_compiles",
    "artifacts_loaded": "num_compiled_artifacts_loaded",
}


_FOUND = ("aot_loads", "artifacts_loaded", "graph_hits")
_GRAPH = ("graph", "loaded")


class EngineWatch:
    """Counts what this process compiles.

    Args:
        directory: of the installed bundle; None where there is none, and nothing is
            said or refused.
        strict: raise where something would be compiled.
    """

    def __init__(self, directory: Path | None, *, strict: bool) -> None:
        self._directory = directory
        self._strict = strict
        self._counts: Counter[Kind] = Counter()
        self._reasons: list[str] = []
        self._started = False
        self._said = False

    def arm(self) -> None:
        """Watch from now on, each module when vLLM has imported it.

        Raises:
            FlytuneError: strict, and a private interface is not what it was.
        """
        points = [(*point, self._counted(kind)) for point, kind in _POINTS.items()]
        points.append((_DECORATORS, _LOAD, self._load))
        actions = {**when_imported(points), _WORKER: [self._watch_start]}
        if self._directory is None:
            # As the hook does it where there is a bundle.
            actions[ISA] = [self._probe_alone]
        AfterImports(actions, failed=self._unwatched).start()

    def _probe_alone(self) -> None:
        probe_alone(sys.modules[ISA])

    def _unwatched(self, error: Exception | str) -> None:
        if self._strict:
            raise error if isinstance(error, Exception) else FlytuneError(error)
        say(f"the bundle is served unwatched: {error} ({Code.UNWATCHABLE})")

    def _counted(self, kind: Kind) -> Wrapper:
        inside = threading.local()

        def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                skip = kind is Kind.CPP_COMPILED and not _is_kernel(args[0])
                if skip or getattr(inside, "now", False):
                    return inner(*args, **kwargs)
                inside.now = True
                try:
                    self._compiles(kind)
                    return inner(*args, **kwargs)
                finally:
                    inside.now = False

            return call

        return wrapper

    def _compiles(self, kind: Kind) -> None:
        """Count what is about to be compiled, or refuse it."""
        self._counts[kind] += 1
        if self._strict:
            raise self._missed()
        if self._started and self._directory is not None and not self._said:
            self._said = True
            noun, verb = _WORK[kind]
            text = f"vLLM compiles after its start: a {noun} is {verb}"
            say(f"{text} ({Code.ENGINE_MISS})")

    def _load(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Learn whether vLLM finds the model that it compiled ahead of time."""

        def load(model: Any, path: str) -> Any:
            found = inner(model, path)
            if found is None:
                self._reasons.append(self._why_not_loaded(model, Path(path)))
                if self._strict:
                    raise self._missed()
            return found

        return load

    def _why_not_loaded(self, model: Any, path: Path) -> str:
        if path.exists():
            return "vLLM could not load what the bundle holds, and says why above"
        missed = f"vLLM's key {path.parent.parent.name[:16]} is not in the bundle"
        if self._directory is None:
            return missed
        try:
            baked = baked_factors(Bundle.open(self._directory).manifest)
            row = vllm_factors(model.vllm_config, started=True)
            found = predict(baked, VllmFactors.from_json(row)).differences
        # Whatever vLLM's private parts do, serving goes on.
        except Exception as error:
            return f"{missed}, and what differs is not known: {error}"
        return f"{missed}: {'; '.join(one.line for one in found)}"

    def _missed(self) -> FlytuneError:
        return FlytuneError(
            f"vLLM missed the bundle: {self._described()}",
            hint="see: flytune explain BUNDLE --engine vllm -- ARGUMENTS",
            code=Code.ENGINE_MISS,
        )

    def _described(self) -> str:
        work = [_counted(n, *_WORK[kind]) for kind, n in self._counts.items()]
        return "; ".join([*self._reasons, ", ".join(work)]).removesuffix("; ")

    def _watch_start(self) -> None:
        """Say how it went when a worker has started; its wrapper hands it each call."""
        owner = private(_WORKER, "WorkerWrapperBase.__getattr__")[0]
        private(_WORKER, f"WorkerBase.{_START}")
        for name in _COUNTED.values():
            private(_COUNTER, f"compilation_counter.{name}")

        def compile_or_warm_up_model(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            result = getattr(wrapper.worker, _START)(*args, **kwargs)
            self._has_started(wrapper)
            return result

        setattr(owner, _START, compile_or_warm_up_model)

    def _has_started(self, wrapper: Any) -> None:
        """Say how the start went, and write it where it is asked for.

        Raises:
            FlytuneError: strict, and the engine took nothing of the bundle.
        """
        self._started = True
        found = vars(private(_COUNTER, "compilation_counter")[2])
        counts = {ours: int(found[name]) for ours, name in _COUNTED.items()}
        # Of torch's own caches, where they are what vLLM compiles by.
        graphs = private("torch._dynamo.utils", "counters")[2]["inductor"]
        counts["graph_hits"] = int(graphs["fxgraph_cache_hit"])
        if folder := os.environ.get(COUNTS_VARIABLE):
            mode = wrapper.vllm_config.compilation_config.mode
            row = {"rank": wrapper.global_rank, "mode": int(mode), **counts}
            row |= {str(kind): self._counts[kind] for kind in _WORK}
            path = Path(folder) / f"{os.getpid()}.json"
            part = path.with_suffix(".part")
            part.write_text(json.dumps(row))
            part.replace(path)
        if self._directory is not None:
            self._say_start(counts)

    def _say_start(self, counts: Mapping[str, int]) -> None:
        loaded = (
            _counted(counts["aot_loads"], "model", "loaded"),
            _counted(counts["artifacts_loaded"] + counts["graph_hits"], *_GRAPH),
        )
        if not self._counts and not any(counts[name] for name in _FOUND):
            self._reasons.append("the engine asks for nothing that it holds")
        if not self._counts and not self._reasons:
            say(f"vLLM hit the bundle: {', '.join(loaded)}, nothing compiled")
        elif self._strict:
            raise self._missed()
        else:
            say(f"vLLM missed the bundle: {self._described()} ({Code.ENGINE_MISS})")


def _counted(number: int, noun: str, verb: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''} {verb}"


def _is_kernel(builder: Any) -> bool:
    """Whether a build is of a kernel: others probe the compiler, at a hit too."""
    return str(getattr(builder, "_name", "")).endswith(".main")

"""Candidates that misbehave, behind Inductor's `BenchmarkRequest`, and their lists.

A request is pickled whole, code included, so that Ray's workers need no such module.
"""

import json
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from ray import cloudpickle

from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import (
    ATEN,
    CPP,
    FLYDSL,
    Candidate,
    CandidateList,
    Packing,
    TensorSpec,
    TuneTask,
)

UNPACKED = Packing("CppGemmTemplate", "CppMicroGemmFP32Vec", False, (8, 32, 1))
"""The packing of a candidate that takes B as it is."""


class OutOfResources(Exception):
    """Named as Triton's own."""


def _raise() -> NoReturn:
    raise ValueError("a candidate's own error")


def _over_resources() -> NoReturn:
    raise OutOfResources("shared memory: 300000 of 232448 bytes")


def _segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang() -> NoReturn:
    # Asleep: other tests need the core.
    while True:
        time.sleep(1.0)


def _noise() -> None:
    os.write(1, b"\x00\xff{]\n" * 1000)
    print("rubbish", flush=True)


def _exhaust(take: Callable[[], Any]) -> None:
    """Run out of memory, within a limit of this process's own."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, hard))
    try:
        take()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _exhaust_python() -> None:
    _exhaust(lambda: bytearray(2**31))


def _exhaust_torch() -> None:
    import torch

    _exhaust(lambda: torch.empty(2**31))


MISBEHAVIOURS: dict[str, Callable[[], None]] = {
    "raise": _raise,
    "over resources": _over_resources,
    "abort": os.abort,
    "segfault": _segfault,
    "hang": _hang,
    "noise": _noise,
    "exit": lambda: sys.exit(0),
    "hard exit": lambda: os._exit(0),
    "python memory": _exhaust_python,
    "torch memory": _exhaust_torch,
}


@dataclass
class Fake:
    """A GEMM `a @ b` that misbehaves where it is told to."""

    in_build: str = ""
    in_run: str = ""
    """A misbehaviour, or what is wrong with the output: "nan", "tail", "tile",
    "second", "once"."""
    first_bad_launch: int = 1
    has_out_variant: bool = True
    launches: int = 0
    """Of all copies of its weight."""
    misbehaviours: dict[str, Callable[[], None]] = field(
        default_factory=lambda: MISBEHAVIOURS
    )

    def precompile(self) -> None:
        if self.in_build:
            self.misbehaviours[self.in_build]()

    def make_run_fn(self, a: Any, b: Any, *, out: Any) -> Callable[[], None]:
        import torch

        def launch() -> None:
            self.launches += 1
            late = self.launches >= self.first_bad_launch
            if late and self.in_run in self.misbehaviours:
                self.misbehaviours[self.in_run]()
            match self.in_run:
                case "nan":
                    out.fill_(torch.nan)
                case "tail":
                    out[..., :-8] = a @ b[..., :-8]
                case "tile":
                    torch.matmul(a[:, :-32], b[:-32], out=out)
                case "second" if self.launches > 1:
                    torch.matmul(a, b, out=out).mul_(1.1)
                case "once" if self.launches > 1:
                    pass
                case _:
                    torch.matmul(a, b, out=out)

        return launch


cloudpickle.register_pickle_by_value(sys.modules[__name__])


def candidate(
    name: str, backend: str = CPP, template: str = "fake", **fake: Any
) -> Candidate:
    """Return a fake whose choice hash is `name`."""
    return Candidate(
        backend=backend,
        template=template,
        config=json.dumps({"name": name}),
        choice_hash=name,
        request=cloudpickle.dumps(Fake(**fake)),
        packing=UNPACKED if backend == CPP else None,
    )


def offered(
    candidates: Sequence[Candidate],
    *,
    m: int = 16,
    n: int = 64,
    k: int = 128,
    **changes: Any,
) -> CandidateList:
    """Return a list of `mm` (or another op) with a weight seen transposed."""
    whole: dict[str, Any] = {
        "op": "mm",
        "inputs_key": f"{m},{n},{k}",
        "precision": "highest",
        "inputs": (
            TensorSpec((m, k), (k, 1), "bfloat16"),
            TensorSpec((k, n), (1, k), "bfloat16"),
        ),
        "output": TensorSpec((m, n), (n, 1), "bfloat16"),
        "candidates": tuple(candidates),
        "piece": "layer",
        "tokens": m,
    }
    return CandidateList(**(whole | changes))


def task(
    candidates: Sequence[Candidate],
    module: str = "model.layers.*.q_proj",
    **changes: Any,
) -> TuneTask:
    """Return the task of a list of fakes."""
    return task_of(offered(candidates, **changes), module)


def task_of(made: CandidateList, module: str = "model.layers.*.q_proj") -> TuneTask:
    """Return the task of a list, whatever its op."""
    *batch, m, n = made.output.sizes
    shape = GemmShape(
        op="bmm" if batch else "mm",
        m=m,
        n=n,
        k=made.inputs[0].sizes[-1],
        batch=batch[0] if batch else 1,
        module=module,
    )
    return TuneTask(shape, made, (module,))


def library(name: str = "library", **fake: Any) -> Candidate:
    """Return a fake that stands for ATen's kernel: it is not built."""
    return candidate(name, ATEN, "mm", **fake)


FLYDSL_MODULE = """
import torch

def flydsl_main(mat1, mat2, output, stream):
    assert stream == 0
    torch.matmul(mat1, mat2, out=output)
    return output
"""


def flydsl(name: str, made: TuneTask, source: str = FLYDSL_MODULE) -> Candidate:
    """Return a candidate behind Inductor's own request, made in another directory."""
    import torch
    from torch._inductor.autotune_process import FlyDSLBenchmarkRequest, TensorMeta

    specs = (*made.offered.inputs, made.offered.output)
    *inputs, output = (
        TensorMeta(
            device=torch.device("cuda", 0),
            dtype=getattr(torch, spec.dtype),
            sizes=spec.sizes,
            strides=spec.strides,
            offset=spec.offset,
        )
        for spec in specs
    )
    rendered = SimpleNamespace(finalize_all=lambda: source)
    asked = FlyDSLBenchmarkRequest("flydsl", inputs, output, (), rendered)
    Path(asked.module_path).unlink()
    asked.module_path = "/nowhere/of/the/builders.py"
    request = pickle.dumps(asked)
    return Candidate(FLYDSL, "mm_flydsl", json.dumps(name), name, request)

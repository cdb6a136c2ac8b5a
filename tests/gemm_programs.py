"""Programs of one GEMM each, for every op and type that an accelerator is asked for.

`python gemm_programs.py REQUEST RESULT` lowers them under the probe and writes their
lists, pickled; a list's `piece` is its program's name.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from flytune.caches.child import clean_environment
from flytune.caches.compat import require_torch
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.policy import cuda_policy
from flytune.caches.program import Piece
from flytune.caches.stand_in import fake_tensors, stand_in, stand_in_environment
from flytune.tuner.candidate import CandidateList
from flytune.tuner.isolated import as_module
from flytune.tuner.probe import Probe

POLICY = cuda_policy(tokens=(64,), threads=2, attention="sdpa")
FP8 = torch.float8_e4m3fn
N, K, GROUPS = 512, 1024, 8
Program = tuple[Callable[..., torch.Tensor], tuple[tuple[tuple[int, ...], Any], ...]]
"""What is compiled, and the sizes and types of its inputs; 0 stands for the tokens."""


def scaled(
    a: torch.Tensor,
    weight: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply as fp8 linears do."""
    result: torch.Tensor = torch._scaled_mm(
        *(a, weight.t(), scale_a, scale_b, bias),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return result


def grouped(
    a: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply as the experts of a mixture do."""
    result: torch.Tensor = torch._grouped_mm(a, weight.transpose(1, 2), offs=offsets)
    return result


def programs() -> dict[str, Program]:
    """Return every program by its name: the op, what is special, the type."""
    made: dict[str, Program] = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        a, weight = ((0, K), dtype), ((N, K), dtype)
        made[f"mm {name}"] = (functional.linear, (a, weight))
        made[f"addmm {name}"] = (functional.linear, (a, weight, ((N,), dtype)))
        pairs = (((4, 0, K), dtype), ((4, K, N), dtype))
        made[f"bmm {name}"] = (torch.bmm, pairs)
    one, bias = ((), torch.float32), ((N,), torch.bfloat16)
    rows, columns = ((0, 1), torch.float32), ((1, N), torch.float32)
    fp8 = (((0, K), FP8), ((N, K), FP8))
    made["scaled_mm rowwise"] = (scaled, (*fp8, rows, columns))
    made["scaled_mm rowwise bias"] = (scaled, (*fp8, rows, columns, bias))
    made["scaled_mm tensorwise"] = (scaled, (*fp8, one, one))
    made["scaled_mm tensorwise bias"] = (scaled, (*fp8, one, one, bias))
    experts = ((GROUPS, N, K), torch.bfloat16)
    ragged = (((0, K), torch.bfloat16), experts, ((GROUPS,), torch.int32))
    made["grouped_mm 2d"] = (grouped, ragged)
    made["grouped_mm 3d"] = (grouped, (((GROUPS, 0, K), torch.bfloat16), experts))
    # Not a multiple of 8: torch asks whether to pad, and of what is bound by computing
    # it times both.
    wide = ((4096, 4096), torch.bfloat16)
    for rows in (2, 2047):
        made[f"mm of {rows}"] = (functional.linear, (((rows, 4096), wide[1]), wide))
    # Deep enough to be cut into slices of K.
    deep = (((0, 16384), torch.bfloat16), ((64, 16384), torch.bfloat16))
    made["mm deep"] = (functional.linear, deep)
    return made


def probed_programs(
    folder: Path, absent: DeviceProfile | None, *names: str, **config: Any
) -> dict[str, CandidateList]:
    """List the candidates of programs, on the device or on a stand-in for one.

    Args:
        folder: For the process's files.
        absent: The device that is stood in for; None for the one that is here.
        names: Of the programs; all, if there is none.
        config: Settings of `torch._inductor.config.triton`.
    """
    request, result = folder / "request.json", folder / "lists.pickle"
    profile = None if absent is None else absent.to_json()
    row = {"profile": profile, "programs": names or tuple(programs()), "triton": config}
    request.write_text(json.dumps(row))
    hidden = {} if absent is None else stand_in_environment(absent)
    env = clean_environment(POLICY, folder / "cache", **hidden)
    command = [sys.executable, os.path.abspath(__file__), str(request), str(result)]
    subprocess.run(command, env=env, check=True, timeout=300)
    lists: tuple[CandidateList, ...] = pickle.loads(result.read_bytes())
    return {made.piece: made for made in lists}


def _piece(name: str) -> Piece:
    function, shapes = programs()[name]

    def inputs(tokens: int, _: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        on = torch.device("cuda", 0)
        return tuple(
            torch.empty([size or tokens for size in sizes], dtype=dtype, device=on)
            for sizes, dtype in shapes
        ), {}

    return Piece(name, as_module(function), inputs)


def main() -> None:
    """Lower the programs of a request and write their lists."""
    request_path, result_path = map(Path, sys.argv[1:3])
    require_torch()
    request = json.loads(request_path.read_text())
    POLICY.apply()
    for name, value in request["triton"].items():
        setattr(torch._inductor.config.triton, name, value)
    if request["profile"] is not None:
        stand_in(DeviceProfile.from_json(request["profile"]))
    probe = Probe()
    probe.arm()
    fakes = nullcontext() if request["profile"] is None else fake_tensors()
    with torch.no_grad(), fakes:
        probe.run(map(_piece, request["programs"]), POLICY, seed=0)
    result_path.write_bytes(pickle.dumps(tuple(probe.lists)))


if __name__ == "__main__":
    main()

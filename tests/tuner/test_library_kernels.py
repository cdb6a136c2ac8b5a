"""The library's kernels of what accelerators serve, where a CPU has them too."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from op_lists import LISTS, cpu_scales_rows, grouped, scaled
from torch._inductor.autotune_process import ExternKernelCPUBenchmarkRequest

from flytune.tuner.accuracy import judge
from flytune.tuner.candidate import ATEN, Candidate, CandidateList
from flytune.tuner.kernels import make_kernels
from flytune.tuner.operands import make_operands


def with_library(
    made: CandidateList, name: str, *, writes: bool = True, **scalars: Any
) -> CandidateList:
    """Return a list whose candidate is Inductor's own request of a library kernel."""
    request = ExternKernelCPUBenchmarkRequest(
        kernel_name=name,
        input_tensor_meta=[],
        output_tensor_meta=[],
        extra_args=(),
        callable_path=f"extern_kernels.{name}",
        kwargs=scalars,
        has_out_variant=writes,
    )
    one = Candidate(ATEN, name, "{}", name, pickle.dumps(request))
    return replace(made, candidates=(one,))


FP8 = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
LIBRARY = {
    "mm": with_library(LISTS["mm"], "mm"),
    "addmm": with_library(LISTS["addmm"], "addmm", alpha=1, beta=1),
    "bmm": with_library(LISTS["bmm"], "bmm"),
    "rowwise": with_library(scaled(), "_scaled_mm", **FP8),
    "rowwise bias": with_library(scaled(bias=True), "_scaled_mm", **FP8),
    "tensorwise bias": with_library(scaled((), (), bias=True), "_scaled_mm", **FP8),
    "grouped": with_library(grouped(), "_grouped_mm", writes=False, out_dtype=None),
    "grouped 3d": with_library(
        grouped(ragged=False), "_grouped_mm", writes=False, out_dtype=None
    ),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_every_copy_of_a_library_kernel_is_right(name: str) -> None:
    if name.startswith("rowwise") and not cpu_scales_rows():
        pytest.skip("no such kernel in this torch")
    made = LIBRARY[name]
    operands = make_operands(made, seed=6)
    kernels = make_kernels(made.candidates[0], made, operands, 3)
    assert len(kernels) == 3
    for kernel in kernels:
        first = kernel().clone()
        assert first.dtype == torch.bfloat16
        verdict = judge(first, kernel(), operands.reference, operands.tolerance)
        assert verdict[1] == ""
    # Each but the first has a weight of its own, as it was laid out.
    right = kernels[1]().clone()
    operands.b.zero_()
    assert torch.equal(kernels[1](), right)
    assert not torch.equal(kernels[0](), right)

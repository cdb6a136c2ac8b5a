from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from fakes import UNPACKED, candidate, library, offered

from flytune.tuner.accuracy import judge
from flytune.tuner.candidate import BuildResult, CandidateList, TensorSpec, TuneTask
from flytune.tuner.cpu_runner import CpuRunner
from flytune.tuner.kernels import make_kernels
from flytune.tuner.operands import UnsupportedError, make_operands
from flytune.tuner.runner import place_files


def test_every_copy_of_every_real_candidate_is_right(
    real_tasks: tuple[TuneTask, ...],
    real_builds: Mapping[str, BuildResult],
    cpu_runner: CpuRunner,
) -> None:
    for task in real_tasks:
        operands = make_operands(task.offered, seed=5)
        for one in task.offered.candidates:
            place_files(real_builds[one.choice_hash].files)
            kernels = make_kernels(one, task.offered, operands, 3)
            assert len(kernels) == 3 or not operands.is_weight
            for kernel in kernels:
                out = kernel().clone()
                assert judge(out, kernel(), operands.reference)[1] == "", task.offered


def test_b_of_a_bmm_is_packed_at_every_launch(
    real_tasks: tuple[TuneTask, ...],
    real_builds: Mapping[str, BuildResult],
    cpu_runner: CpuRunner,
) -> None:
    tasks = [t for t in real_tasks if t.offered.op == "bmm"]
    assert {t.offered.inputs[1].strides[2] for t in tasks} == {64, 1}  # both layouts
    for task in tasks:
        operands = make_operands(task.offered, seed=5)
        for one in task.offered.candidates:
            place_files(real_builds[one.choice_hash].files)
            (kernel,) = make_kernels(one, task.offered, operands, 1)
            before = kernel().clone()
            operands.b.mul_(2)
            assert torch.equal(kernel(), before * 2), one
            operands.b.div_(2)


def test_copies_of_a_weight_share_no_memory() -> None:
    made = offered([library()])
    operands = make_operands(made, seed=1)
    kernels = make_kernels(made.candidates[0], made, operands, 3)
    right = kernels[0]().clone()
    operands.b.zero_()
    assert not kernels[0]().any()
    assert torch.equal(kernels[1](), right)
    assert torch.equal(kernels[2](), right)


@pytest.mark.parametrize("backend", ["triton", "flydsl", ""])
def test_an_unknown_backend_is_unsupported(backend: str) -> None:
    one = candidate("x", backend)
    made = offered([one])
    with pytest.raises(UnsupportedError, match=f"no runner for backend: {backend}"):
        make_kernels(one, made, make_operands(made, seed=1), 1)


def test_an_unknown_template_is_unsupported() -> None:
    one = replace(
        candidate("x"), packing=replace(UNPACKED, template="CppGroupedGemmTemplate")
    )
    made = offered([one])
    with pytest.raises(UnsupportedError, match="template: CppGroupedGemmTemplate"):
        make_kernels(one, made, make_operands(made, seed=1), 1)


def linear(op: str, **config: str) -> CandidateList:
    """Return a oneDNN linear whose library candidate has `config`."""
    weight = TensorSpec((8, 16), (1, 0), "bfloat16")
    row = TensorSpec((4, 16), (16, 1), "bfloat16")
    out = TensorSpec((4, 8), (8, 1), "bfloat16")
    inputs = (row, out, weight) if op == "linear_binary" else (row, weight)
    text = "{" + ", ".join(f'"{k}": "{v}"' for k, v in config.items()) + "}"
    made = offered([replace(library(), config=text)], op=op)
    return replace(made, inputs=inputs, output=out)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"attr": "'none'"}, lambda y: y),
        ({"attr": "'relu'"}, torch.relu),
        ({"attr": "'swish'"}, torch.nn.functional.silu),
        ({"attr": "'gelu'", "algorithm": "'none'"}, torch.nn.functional.gelu),
        (
            {"attr": "'gelu'", "algorithm": "'tanh'"},
            lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
        ),
        (
            {"attr": "'leaky_relu'", "scalars": "[0.25]"},
            lambda y: torch.nn.functional.leaky_relu(y, 0.25),
        ),
        (
            {"attr": "'hardtanh'", "scalars": "[-0.1, 0.1]"},
            lambda y: y.clamp(-0.1, 0.1),
        ),
    ],
)
def test_reference_has_the_fused_activation(
    config: dict[str, str], expected: torch.nn.Module
) -> None:
    made = linear("linear_unary", **{"scalars": "[]", **config})
    operands = make_operands(made, seed=1)
    product = operands.a.float() @ operands.b.float()
    assert torch.equal(operands.reference, expected(product))


@pytest.mark.parametrize(("attr", "sign"), [("'add'", 1), ("'sub'", -1)])
def test_reference_has_the_fused_operand(attr: str, sign: int) -> None:
    operands = make_operands(linear("linear_binary", attr=attr), seed=1)
    assert operands.other is not None
    product = operands.a.float() @ operands.b.float()
    assert torch.equal(operands.reference, product + sign * operands.other.float())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (linear("linear_unary", attr="'mish'", scalars="[]"), "activation: mish"),
        (linear("linear_binary", attr="'mul'"), "fused op: mul"),
        (linear("linear_unary"), "no candidate says what is fused: linear_unary"),
        (replace(offered([]), op="int_mm"), "no runner for op: int_mm"),
        (
            offered([], inputs=(TensorSpec((4, 8), (8, 1), "int8"),) * 2),
            "no tolerance for type: int8",
        ),
    ],
)
def test_what_has_no_reference_is_unsupported(made: CandidateList, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        make_operands(made, seed=1)


@pytest.mark.parametrize("strides", [(8, 1), (0, 1), (1, 16), (100, 2)])
def test_operands_have_the_strides_of_the_list(strides: tuple[int, int]) -> None:
    a = TensorSpec((16, 8), strides, "float32")
    b = TensorSpec((8, 4), (4, 1), "float32")
    out = TensorSpec((16, 4), (4, 1), "float32")
    made = replace(offered([library()]), inputs=(a, b), output=out)
    operands = make_operands(made, seed=1)
    assert operands.a.stride() == strides
    assert operands.reference.dtype == torch.float64
    assert torch.equal(operands.reference, operands.a.double() @ operands.b.double())

"""Which of a model's GEMMs a build is of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import DATA, LLAMA
from click.testing import CliRunner

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape
from flytune.shapes.splits import SplitError
from flytune.tuner import plan_device
from flytune.tuner.cli import main
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan, make_plan
from flytune.tuner.plan_gemms import worth_building

MOE = str(DATA / "configs" / "Qwen3-30B-A3B.json")
ROCM = "custom_op:vllm::rocm_unquantized_gemm"


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_device, "live_profile", lambda: None)


def options(folder: Path, **changes: Any) -> BuildOptions:
    whole = BuildOptions(
        model=str(LLAMA),
        tokens=(1, 16),
        attention=None,
        policy="unfrozen",
        threads=2,
        out=folder / "bundle",
        work=folder / "work",
        ray=None,
        from_bundle=None,
        bake_passes=3,
        target="h200",
        compile_only=True,
    )
    return replace(whole, **changes)


def planned(folder: Path, **changes: Any) -> Plan:
    return make_plan(options(folder, **changes))


def modules(shapes: tuple[GemmShape, ...]) -> set[str]:
    return {shape.module.rpartition(".")[2] for shape in shapes}


def test_what_serving_does_not_ask_for_is_left_out(tmp_path: Path) -> None:
    own = planned(tmp_path, engine="vllm")
    assert modules(own.shapes) == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert {shape.reach for shape in own.shapes} == {"inductor"}
    assert modules(own.left_out) == {"lm_head"}
    assert {shape.reach for shape in own.left_out} == {"eager"}
    whole = planned(tmp_path, engine="vllm", allow_unreached=True)
    assert modules(whole.shapes) == modules(own.shapes) | {"lm_head"}
    assert whole.left_out == ()
    assert whole.work != own.work
    every = planned(tmp_path)
    assert (modules(every.shapes) > {"lm_head"}, every.left_out) == (True, ())


def test_a_target_where_nothing_is_reached_is_refused(tmp_path: Path) -> None:
    amd = {"target": "mi355x", "backends": ("ATEN", "TRITON"), "engine": "vllm"}
    with pytest.raises(FlytuneError) as caught:
        planned(tmp_path, **amd)
    assert str(caught.value) == (
        f"serving asks Inductor for none of the 10 GEMMs, which are {ROCM}, eager"
    )
    assert caught.value.hint == "--allow-unreached builds them all the same"
    assert list(tmp_path.iterdir()) == []
    made = planned(tmp_path, **amd, allow_unreached=True)
    assert {shape.reach for shape in made.shapes} == {ROCM, "eager"}


def test_only_reached_gemms_are_worth_building() -> None:
    shape = GemmShape("mm", 8, 64, 64, reach="eager")
    asked = options(Path())
    with pytest.raises(FlytuneError, match="none of the 1 GEMMs, which are eager"):
        worth_building((shape,), asked)
    both = (shape, replace(shape, reach="inductor"))
    assert worth_building(both, asked) == (both[1:], both[:1])


def test_a_hand_written_list_says_its_reach_or_gets_it(tmp_path: Path) -> None:
    listed = tmp_path / "mine.csv"
    listed.write_text(
        "n,k,engine,module,reach\n"
        "64,64,vllm,layers.0.o_proj,\n"
        "64,32,vllm,layers.0.o_proj,inductor\n"
        "64,16,,layers.0.o_proj,\n"
        "64,8,vllm,layers.0.o_proj,custom_op:mine\n"
    )
    by_hand = {"model": "", "by_hand": listed, "tokens": (8,), "out": None}
    amd = {"target": "mi355x", "backends": ("ATEN",)}
    made = planned(tmp_path, **by_hand, **amd, engine="vllm")
    assert [shape.k for shape in made.shapes] == [32]
    assert [(s.k, s.reach) for s in made.left_out] == [
        (64, ROCM),
        (16, ROCM),
        (8, "custom_op:mine"),
    ]
    with pytest.raises(FlytuneError, match="rows of engine transformers and vllm in"):
        planned(tmp_path, **by_hand, **amd)


def test_vllm_on_a_cpu_is_told_that_nothing_bakes_it(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match="no program to bake: vllm's own"):
        planned(tmp_path, engine="vllm", target=None, device="cpu", compile_only=False)


def test_one_of_several_expert_parallel_ranks(tmp_path: Path) -> None:
    moe = {"model": MOE, "tokens": (8,), "allow_unreached": True}
    whole, part = planned(tmp_path, **moe), planned(tmp_path, **moe, ep=8)
    assert {shape.groups for shape in whole.shapes} == {0, 128}
    assert {shape.groups for shape in part.shapes} == {0, 16}
    assert {shape.ep for shape in part.shapes} == {8}
    assert whole.work != part.work
    here = {"device": "cpu", "target": None, "compile_only": False}
    with pytest.raises(FlytuneError) as caught:
        planned(tmp_path, **moe, ep=8, **here)
    assert str(caught.value) == "no program to bake: one of 8 expert-parallel ranks"
    with pytest.raises(SplitError, match="no experts to divide: `LlamaForCausalLM`"):
        planned(tmp_path, ep=2)


@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        (("--ep", "3"), "error: 3 ranks do not divide the experts: `128`\n", 1),
        (
            ("--engine", "vllm", "--target", "mi355x", "--backends", "ATEN"),
            "error: serving asks Inductor for none of the 6 GEMMs, which are "
            f"{ROCM}, custom_op:vllm::moe_forward, eager\n"
            "hint: --allow-unreached builds them all the same\n",
            1,
        ),
        (("--tokens", "1..9/0"), "token counts start at 1: `0`\n", 2),
        (("--max-num-seqs", "8"), "--max-num-seqs is of vllm and sglang alone", 2),
    ],
)
def test_the_command_s_own_words(
    tmp_path: Path, arguments: tuple[str, ...], error: str, code: int
) -> None:
    fixed = ("--model", MOE, "--compile-only", "--tokens", "8")
    if "--target" not in arguments:
        fixed += ("--target", "h200")
    places = ("--work", str(tmp_path / "work"), "--out", str(tmp_path / "b"))
    result = CliRunner().invoke(main, ["build", *fixed, *places, *arguments])
    assert (result.exit_code, result.stdout) == (code, "")
    assert error in result.stderr
    assert list(tmp_path.iterdir()) == []

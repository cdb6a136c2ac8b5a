"""Every family's arithmetic against transformers' own model on the meta device."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from family_variants import VARIANTS, variant

from flytune.shapes.derive import derive_shapes
from flytune.shapes.families import FAMILIES
from flytune.shapes.model_config import ModelConfig
from flytune.shapes.plan import ShapeMismatchError, check_against_trace, plan_shapes
from flytune.shapes.trace import trace_gemms

Load = Callable[[str], ModelConfig]

DATA = Path(__file__).parents[1] / "data"
# Those that transformers runs by the repository's own code alone.
UNTRACED = (
    "Falcon-40B-RefinedWeb-keys",
    "Falcon-7B",
    "Kimi-K2-Instruct",
    "Kimi-K2.5",
    "Llama-3.3-Nemotron-Super-49B",
)
CONFIGS = sorted(path.stem for path in (DATA / "configs").glob("*.json"))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_trace_agrees_for_every_config(load: Load, name: str) -> None:
    config = load(name)
    rows = plan_shapes(config, tp=1, engine="transformers", tokens=(8,), quant="bf16")
    assert {row.traced for row in rows} == {config.traceable}
    assert config.traceable == (name not in UNTRACED)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_trace_agrees_for_every_variant(name: str) -> None:
    config = variant(name)
    for attention in ("sdpa", "eager") if config.family.eager else ("sdpa",):
        rows = plan_shapes(
            config, tp=1, engine="transformers", tokens=(1, 8), attention=attention
        )
        assert all(row.traced for row in rows)


def test_every_family_is_traced_here_or_says_that_it_is_not(load: Load) -> None:
    traced = {variant(name).architecture for name in VARIANTS}
    traced |= {load(name).architecture for name in CONFIGS if load(name).traceable}
    for family in FAMILIES:
        assert family.architecture in traced or family.untraced == family.model_types


def test_transformers_own_plan_is_the_one_followed(load: Load) -> None:
    import transformers

    models = [load(name) for name in CONFIGS] + [variant(name) for name in VARIANTS]
    for config in models:
        if not config.traceable or config.model_type in ("falcon", "gpt_bigcode"):
            continue
        raw = json.loads(config.raw)
        plan = transformers.AutoConfig.for_model(**raw).base_model_tp_plan
        for linear in config.family.linears(config, "transformers"):
            if linear.module == "lm_head":
                continue
            module = linear.module.removeprefix("model.")
            known = {plan.get(module, "replicated")}
            if linear.experts:
                known = {
                    plan.get(f"{module}.{w}") for w in ("gate_up_proj", "down_proj")
                }
                known = {"replicated" if rule is None else rule for rule in known}
            if linear.experts and linear.experts.takes_all:
                # Its weights are [experts, in, out]: what is called columns is rows.
                known = {"packed_rowwise", "rowwise"}
            assert linear.style in known, (config.name, linear.module)


@pytest.mark.parametrize("fault", ["experts", "dense", "kinds"])
def test_a_layer_of_another_kind_is_found(fault: str) -> None:
    told = {
        "experts": {"moe_intermediate_size": 96},
        "dense": {"intermediate_size": 640},
        "kinds": {"first_k_dense_replace": 1},
    }[fault]
    lying = variant("DeepSeek V2", **told)
    derived = derive_shapes(lying, tp=1, engine="transformers", tokens=(8,))
    with pytest.raises(ShapeMismatchError, match=r"model\.layers\.[02*]\.mlp"):
        check_against_trace(derived, trace_gemms(variant("DeepSeek V2"), 8))


def test_kimi_is_read_as_deepseek_and_not_traced() -> None:
    rows = plan_shapes(
        variant("DeepSeek V3, biases", model_type="kimi_k2"),
        tp=1,
        engine="transformers",
        tokens=(8,),
    )
    assert not any(row.traced for row in rows)

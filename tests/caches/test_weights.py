import pytest
import torch
from tiny_models import TINY

from flytune.caches.program import ProgramSpec, meta_model
from flytune.caches.weights import PATTERN, fill_random, materialise

CPU = torch.device("cpu")


def test_random_values_repeat_after_a_prime() -> None:
    tensor = torch.empty(PATTERN + 10)
    fill_random(tensor, seed=1, std=0.5)
    assert torch.equal(tensor[:10], tensor[PATTERN:])
    assert abs(float(tensor.std()) - 0.5) < 0.01


@pytest.mark.parametrize("name", ["gemma3_text", "granite", "deepseek_v3"])
def test_buffers_are_those_that_transformers_computes(name: str) -> None:
    from transformers import AutoModelForCausalLM

    model, config = meta_model(ProgramSpec(TINY[name], "sdpa"))
    materialise(model, model, seed=1, device=CPU)
    own = dict(model.named_buffers())
    real = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert own
    for path, buffer in real.named_buffers():
        assert own[path].dtype == buffer.dtype
        assert torch.equal(own[path], buffer), path


def test_experts_are_the_same() -> None:
    model, _ = meta_model(ProgramSpec(TINY["mixtral"], "sdpa"))
    materialise(model, model, seed=1, device=CPU)
    experts = model.model.layers[0].mlp.experts.gate_up_proj
    assert experts.dim() == 3
    assert torch.equal(experts[0], experts[3])
    assert experts[0].std() > 0
    router = model.model.layers[0].mlp.gate.weight
    assert not torch.equal(router[0], router[1])

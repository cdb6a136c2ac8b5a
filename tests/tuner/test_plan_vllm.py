from pathlib import Path
from typing import Any

import pytest

from flytune.caches.policy import cpu_policy
from flytune.caches.vllm_factors import VllmFactors
from flytune.shapes.errors import FlytuneError
from flytune.tuner.plan_vllm import plan_vllm


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An engine of which the mode and one variable are told; returns these."""
    told = {"mode": "VLLM_COMPILE", "CUDA_HOME": "null"}

    def ask(_: Any, env: dict[str, str], __: Any) -> VllmFactors:
        named = {"CUDA_HOME": told["CUDA_HOME"]}
        ahead = env.get("VLLM_USE_AOT_COMPILE") != "0"
        return VllmFactors(
            version="0.32.0",
            complete=True,
            keys={},
            parts={"environment": {"hash": "", "factors": named}},
            sources={},
            directory=(),
            shapes={"mode": told["mode"], "ahead": ahead},
        )

    monkeypatch.setattr("flytune.tuner.plan_vllm.ask", ask)
    return told


POLICY = cpu_policy("unfrozen", tokens=(1,), threads=1, attention="sdpa")


def test_what_is_not_loaded_is_not_compiled_ahead(engine: dict[str, str]) -> None:
    policy, factors = plan_vllm(("llama",), POLICY)
    assert "VLLM_USE_AOT_COMPILE" not in policy.env
    assert factors.ahead
    engine["mode"] = "DYNAMO_TRACE_ONCE"
    policy, factors = plan_vllm(("llama",), POLICY)
    assert policy.env["VLLM_USE_AOT_COMPILE"] == "0"
    assert not factors.ahead


def test_a_path_of_this_machine_is_refused_before_a_bake(
    engine: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    engine["CUDA_HOME"] = str(tmp_path / "cuda")
    with pytest.raises(FlytuneError, match=r"path of this machine: environment\.CUDA_"):
        plan_vllm(("llama",), POLICY)

from typing import Any

import pytest
from vllm_sample import factors

from flytune.caches.manifest import Manifest
from flytune.caches.vllm_why import baked_factors, predict
from flytune.shapes.errors import FlytuneError

OTHER = "b" * 64


def lines(**changes: Any) -> list[str]:
    """Return why changed factors miss."""
    prediction = predict(factors(), factors(OTHER, exact=False, **changes))
    assert not prediction.hit
    assert prediction.exact
    return [one.line for one in prediction.differences]


def test_the_same_key_hits() -> None:
    prediction = predict(factors(), factors(exact=False))
    assert prediction.hit
    assert prediction.exact
    assert prediction.differences == ()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"model_config__model": "/mnt/llama"},
            "model_config.model: baked `/models/llama`, here `/mnt/llama`; "
            "the name or path counts as it is written",
        ),
        (
            {"model_config__max_model_len": "1024"},
            "model_config.max_model_len: baked `512`, here `1024`",
        ),
        (
            {"compilation_config__compile_sizes": "[8, 1]"},
            "compilation_config.compile_sizes: baked `[1, 8]`, here `[8, 1]`; "
            "the order counts",
        ),
        (
            {"compilation_config__compile_sizes": "[1]"},
            "compilation_config.compile_sizes: baked `[1, 8]`, here `[1]`",
        ),
        (
            {"environment__CUDA_HOME": "/usr/local/cuda"},
            "environment.CUDA_HOME: baked `null`, here `/usr/local/cuda`; "
            "the path counts as it is written",
        ),
        (
            {"environment__RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"},
            "environment.RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES: baked `null`, "
            "here `1`; Ray sets it in its workers: unset it",
        ),
        (
            {"environment__VLLM_PLUGINS": None},
            "environment.VLLM_PLUGINS: baked `null`, here `absent`; "
            "the variable's text counts, not only what it loads",
        ),
        (
            {"inductor__max_autotune": "true"},
            "inductor.max_autotune: baked `false`, here `true`; "
            "a setting of torch._inductor.config",
        ),
        (
            {"lora_config__max_loras": "1"},
            "lora_config: baked `absent`, here `max_loras=1`; "
            "the graphs hold the adapters' buffers",
        ),
    ],
)
def test_each_factor_has_its_line(change: dict[str, Any], line: str) -> None:
    assert lines(**change) == [line]


def test_every_factor_that_differs_is_named() -> None:
    assert len(lines(model_config__model="m", inductor__max_autotune="true")) == 2


def test_a_value_in_two_factors_is_one_line() -> None:
    baked = factors(model_config__tokenizer="/models/llama")
    live = factors(
        OTHER, model_config__model="/mnt/llama", model_config__tokenizer="/mnt/llama"
    )
    (one,) = predict(baked, live).differences
    assert one.line.startswith("model_config.model (and model_config.tokenizer): baked")
    assert one.to_json()["also"] == ["model_config.tokenizer"]


def test_a_name_in_two_parts_is_one_line() -> None:
    changes = {"model_config__a.layers": "1", "model_config__b.layers": "1"}
    baked = factors(**{name: "2" for name in changes})
    (one,) = predict(baked, factors(OTHER, **changes)).differences
    assert (one.name, one.also) == ("model_config.a.layers", ("model_config.b.layers",))


def test_what_has_no_name_is_still_told() -> None:
    live = factors(OTHER)
    part = {**live.parts["inductor"], "hash": "0" * 64}
    live = factors(OTHER)
    object.__setattr__(live, "parts", {**live.parts, "inductor": part})
    (one,) = predict(factors(), live).differences
    assert (one.name, one.live) == ("inductor", "0" * 16)


def test_names_that_are_not_hashed_do_not_count() -> None:
    """The hash decides: a name of more than it holds is no difference."""
    live = factors()
    named = {**live.parts["model_config"]["factors"], "seed": "1"}
    part = {**live.parts["model_config"], "factors": named}
    object.__setattr__(live, "parts", {**live.parts, "model_config": part})
    assert predict(factors(), live).hit


def test_a_changed_source_misses_under_the_same_key() -> None:
    live = factors(sources={"vllm.models.llama": "6" * 64})
    prediction = predict(factors(), live)
    assert not prediction.hit
    (one,) = prediction.differences
    assert one.line == (
        f"source.vllm.models.llama: baked `{'5' * 16}`, here `{'6' * 16}`; "
        "vLLM compares the file when it loads, and compiles again"
    )


def test_the_engine_completes_its_key_itself() -> None:
    baked = factors(complete=False, exact=False)
    prediction = predict(baked, factors(complete=False, exact=False))
    assert prediction.hit
    assert not prediction.exact
    other = factors(complete=False, exact=False, model_config__max_model_len="1")
    assert not predict(baked, other).hit


def test_a_class_that_was_not_baked_is_not_looked_for() -> None:
    live = factors(keys={"LlamaModel.forward": "a" * 64, "Vision.forward": OTHER})
    assert predict(factors(), live).hit
    assert not predict(factors(), factors(keys={"Qwen.forward": OTHER})).hit


def test_without_a_mega_artifact_both_folders_count() -> None:
    apart: dict[str, Any] = {"environment__VLLM_USE_MEGA_AOT_ARTIFACT": "false"}
    baked = factors(**apart, code="57a6")
    assert predict(baked, factors(**apart)).hit
    moved = factors(**apart, location__vllm="other")
    (one,) = predict(baked, moved).differences
    assert one.name == "location"
    assert not predict(baked, moved).hit
    # The key of what is compiled ahead has no compiler in it there.
    compiler = factors(
        **apart, directory=("e" * 64, "c" * 10, "x"), inductor__max_autotune="true"
    )
    assert not predict(baked, compiler).hit


def test_what_vllm_cannot_load() -> None:
    shapes = {"mode": "DYNAMO_TRACE_ONCE"}
    baked = factors(shapes=shapes)
    prediction = predict(baked, factors(shapes=shapes))
    assert not prediction.hit
    assert prediction.reason.startswith("vLLM 0.32.0 cannot load what it has compiled")


def test_a_bundle_of_another_program(plain_manifest: Manifest) -> None:
    with pytest.raises(FlytuneError, match="of the kind: model") as caught:
        baked_factors(plain_manifest)
    assert "--bake vllm" in str(caught.value.hint)


@pytest.fixture
def plain_manifest() -> Manifest:
    from bundles import manifest

    return manifest()

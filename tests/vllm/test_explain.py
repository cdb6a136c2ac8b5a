"""What an engine would find of a bundle, told before it starts."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from engines import HERE, SERVE, TINY, Baked, environment, python, session

from flytune.caches.vllm_factors import VllmFactors, ask, check_portable
from flytune.caches.vllm_why import predict
from flytune.shapes.errors import FlytuneError

pytestmark = pytest.mark.vllm

CLI = "from flytune.tuner.cli import main; main()"
VLLM = pytest.mark.parametrize("baked", ["vllm"], indirect=True)


@pytest.fixture
def host() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="host-") as home:
        yield Path(home)


def explain(
    bundle: Path, *words: str, env: Mapping[str, str], code: int = 0
) -> list[str]:
    output = python("-c", CLI, "explain", str(bundle), *words, env=env, code=code)
    rows = ("hit ", "miss ", "differs ", "why ", "note ", "bake ", "{")
    return [line for line in output.splitlines() if line.startswith(rows)]


@VLLM
def test_a_hit_on_another_host(baked: Baked, host: Path) -> None:
    """Another home, cache root and port, weights, seed and memory are in no key."""
    more = {"VLLM_CACHE_ROOT": str(host / "elsewhere"), "OMP_NUM_THREADS": "1"}
    env = environment(host, baked.backend, **more)
    words = ("--port", "80", "--seed", "7", "--load-format", "dummy")
    lines = explain(baked.bundle, "--engine", "vllm", "--", *SERVE, *words, env=env)
    assert lines[0].startswith("hit      vLLM 0.32.0 looks for ")
    assert lines[1:] == [f"note     the key holds a path: model_config.model: {TINY}"]


@VLLM
def test_a_miss_that_an_engine_has_too(baked: Baked, host: Path) -> None:
    env = environment(host, baked.backend, CUDA_HOME="/usr/local/cuda")
    words = (*SERVE, "--max-model-len", "256")
    given = ("--engine", "vllm", "--json", "--", *words)
    first, *rows = map(json.loads, explain(baked.bundle, *given, env=env, code=1))
    assert (first["hit"], first["exact"]) == (False, True)
    assert {row["factor"] for row in rows} == {
        "environment.CUDA_HOME",
        "model_config.max_model_len",
    }
    env["VLLM_CACHE_ROOT"] = str(host / "vllm")
    session(*words, env=env, report=host / "report.json")
    (made,) = (host / "vllm/torch_compile_cache/torch_aot_compile").iterdir()
    assert first["folders"] == [made.name]


def test_lora(baked: Baked, host: Path) -> None:
    env = environment(host, baked.backend)
    given = ("--engine", "vllm", "--lora")
    lines = explain(baked.bundle, *given, env=env, code=1)
    baked_without = "differs  lora_config: baked `absent`, here `max_lora_rank=16, max"
    assert any(line.startswith(baked_without) for line in lines)
    if baked.backend == "vllm":
        assert lines[-2].startswith("bake     with LoRA every linear has its adapters'")
    else:
        # vLLM's CPU platform switches it off.
        nothing = "bake     vLLM compiles nothing with these arguments: mode NONE"
        assert lines[-1] == nothing


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """vLLM in this process, as it is in an engine's, for many questions at once."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        for name, value in environment(Path(home), "vllm").items():
            patch.setenv(name, value)
        patch.syspath_prepend(HERE / "switch")
        import flytune_switch

        flytune_switch.register()
        yield


@pytest.fixture(scope="module")
def usual(here: None) -> VllmFactors:
    return replace(live(*SERVE), exact=True)


def live(*words: str) -> VllmFactors:
    from flytune.caches.vllm_key import engine_config, vllm_factors

    row = vllm_factors(engine_config(list(words)))
    return VllmFactors.from_json(json.loads(json.dumps(row)))


OTHER_SIZES = (*SERVE[:-1], '{"compile_sizes": [8, 1]}')
CHANGES = {
    "order of sizes": (OTHER_SIZES, {}, "compilation_config.compile_sizes"),
    "context": (("--max-model-len", "256"), {}, "model_config.max_model_len"),
    "sequences": (("--max-num-seqs", "4"), {}, "scheduler_config.max_num_seqs"),
    "tokens": (
        ("--max-num-batched-tokens", "256"),
        {},
        "scheduler_config.max_num_batched_tokens",
    ),
    "block": (("--block-size", "64"), {}, "cache_config.block_size"),
    "type": (("--dtype", "float32"), {}, "model_config.dtype"),
    "log probabilities": (("--max-logprobs", "5"), {}, "model_config.max_logprobs"),
    "plugins": ((), {"VLLM_PLUGINS": "flytune_switch"}, "environment.VLLM_PLUGINS"),
    "CUDA": ((), {"CUDA_HOME": "/usr/local/cuda"}, "environment.CUDA_HOME"),
    "Ray": (
        (),
        {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"},
        "environment.RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    ),
    "no mega-artifact": (
        (),
        {"VLLM_USE_MEGA_AOT_ARTIFACT": "0"},
        "environment.VLLM_USE_MEGA_AOT_ARTIFACT",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_factor_is_the_one_that_is_named(
    change: str, usual: VllmFactors, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, env, name = CHANGES[change]
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    found = predict(usual, live(*(words if words == OTHER_SIZES else SERVE + words)))
    assert not found.hit
    first, *others = (one.name for one in found.differences)
    assert name in (first, *others)
    # What follows from it, and nothing else.
    follows = {
        "tokens": {"compilation_config.compile_ranges_endpoints"},
        "type": {"model_config.hf_config.dtype"},
        "no mega-artifact": {"location", "functorch.bundled_autograd_cache"},
    }
    assert {first, *others} - {name} <= follows.get(change, set())


def test_another_path_of_the_model(usual: VllmFactors, tmp_path: Path) -> None:
    copy = shutil.copytree(TINY, tmp_path / "tiny")
    found = predict(usual, live(str(copy), *SERVE[1:]))
    assert [one.name for one in found.differences] == ["model_config.model"]
    assert found.differences[0].line.endswith("counts as it is written")


def test_another_config_of_the_model(
    usual: VllmFactors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is the same, as on hosts that hold unlike checkpoints there."""
    copy = shutil.copytree(TINY, tmp_path / "tiny")
    before = replace(live(str(copy), *SERVE[1:]), exact=True)
    path = copy / "config.json"
    path.write_text(path.read_text().replace('"rope_theta": 5', '"rope_theta": 6'))
    (one,) = predict(before, live(str(copy), *SERVE[1:])).differences
    assert one.name == "model_config.hf_config.rope_parameters.rope_theta"
    assert one.also == ("model_config.hf_text_config.rope_parameters.rope_theta",)


def test_a_setting_of_inductors(usual: VllmFactors) -> None:
    import torch._inductor.config

    with torch._inductor.config.patch(max_autotune=True):
        found = predict(usual, live(*SERVE))
    (one,) = found.differences
    assert one.line == (
        "inductor.max_autotune: baked `false`, here `true`; "
        "a setting of torch._inductor.config"
    )


def test_the_policys_settings_are_in_the_key(host: Path) -> None:
    env = environment(host, "vllm")
    plain, set_by_policy = ask(SERVE, env), ask(SERVE, env, {"cpp.threads": 3})
    (one,) = predict(replace(plain, exact=True), set_by_policy).differences
    assert (one.name, one.live) == ("inductor.cpp.threads", "3")
    assert plain.keys != set_by_policy.keys
    unknown = "no setting that the policy names: `no.such`"
    with pytest.raises(FlytuneError, match=unknown):
        ask(SERVE, env, {"no.such": 1})


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("--port", "80"), {}),
        (("--seed", "3"), {}),
        (("--served-model-name", "other"), {}),
        (("--gpu-memory-utilization", "0.5"), {}),
        (("--no-enable-prefix-caching",), {}),
        (("--load-format", "dummy"), {}),
        ((), {"HOME": "/nowhere", "VLLM_CACHE_ROOT": "/nowhere/vllm"}),
        ((), {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "DEBUG"}),
    ],
)
def test_what_is_in_no_key(
    words: tuple[str, ...],
    env: dict[str, str],
    usual: VllmFactors,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    found = predict(usual, live(*SERVE, *words))
    assert found.differences == ()
    assert found.hit


def test_nothing_of_this_machine_is_in_a_key(usual: VllmFactors) -> None:
    assert os.environ["HOME"] != "/"
    check_portable(usual, SERVE)

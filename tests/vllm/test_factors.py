"""The key that is computed is the one that an engine uses."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engines import POLICY_ENV, SERVE, TINY, Baked, environment, python

from flytune.caches.bundle import Bundle
from flytune.caches.directories import VLLM_DIR
from flytune.caches.expected import CACHES
from flytune.caches.vllm_factors import ask, baked_folders, program_row
from flytune.caches.vllm_why import predict
from flytune.shapes.errors import FlytuneError

pytestmark = pytest.mark.vllm


@pytest.fixture
def host() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="host-") as home:
        yield Path(home)


@pytest.fixture
def root(baked: Baked, tmp_path: Path) -> Path:
    """What the engines of a bake have left."""
    Bundle.open(baked.bundle).place(tmp_path / "placed")
    return tmp_path / "placed" / CACHES / VLLM_DIR


@pytest.mark.parametrize("baked", ["vllm"], indirect=True)
def test_the_key_is_the_engines(baked: Baked, root: Path, host: Path) -> None:
    factors = ask(SERVE, environment(host, baked.backend))
    assert factors.complete
    assert set(factors.keys) == {"LlamaModel.forward"}
    assert factors.folders == baked_folders(root)
    after = factors.after_bake(root)
    assert after.exact
    # vLLM writes this name in any case.
    names = {path.name for path in (root / "torch_compile_cache").iterdir()}
    assert after.directory_key in names
    assert program_row(SERVE, after)["key"] == next(iter(factors.folders))


@pytest.mark.parametrize("baked", ["torch"], indirect=True)
def test_torchs_own_backend(baked: Baked, root: Path, host: Path) -> None:
    env = environment(host, baked.backend, **POLICY_ENV["torch"])
    factors = ask(SERVE, env)
    after = factors.after_bake(root)
    assert (after.exact, after.folders) == (False, frozenset())
    assert predict(after, factors).hit
    # Compiled ahead of time it would be stored and never loaded.
    ahead = ask(SERVE, environment(host, baked.backend))
    assert ahead.ahead
    assert "cannot load" in predict(after, ahead).reason


@pytest.mark.parametrize("mega", ["0", "1"])
def test_the_directory_beside_is_the_engines(mega: str, host: Path) -> None:
    """Whether one file holds all, or what is compiled lies in a directory beside."""
    more = {"VLLM_CACHE_ROOT": str(host / "vllm"), "VLLM_USE_MEGA_AOT_ARTIFACT": mega}
    env = environment(host, "vllm", **more)
    words = (*SERVE[:-1], '{"compile_sizes": []}')
    factors = ask(words, env)
    python("-m", "flytune.caches.vllm_session", *words, env=env)
    after = factors.after_bake(host / "vllm")
    assert after.exact
    assert after.beside == (mega == "0")
    folder = host / "vllm/torch_compile_cache" / after.directory_key
    assert [path.name for path in folder.glob("rank_0_0/*/vllm_compile_cache.py")] == (
        [] if mega == "1" else ["vllm_compile_cache.py"]
    )


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((str(TINY), "--no-such-option"), "unrecognized arguments: --no-such-option"),
        ((str(TINY), "--max-model-len", "x"), "argument --max-model-len: "),
        ((str(TINY), "--max-model-len", "99999"), "max_model_len"),
        ((str(TINY), "--dtype", "float7"), "--dtype"),
        (("/no/such/model",), "/no/such/model"),
    ],
)
def test_arguments_that_vllm_refuses(words: tuple[str, ...], what: str) -> None:
    from flytune.caches.vllm_key import engine_config

    with pytest.raises(FlytuneError, match="vllm serve refuses the arguments") as found:
        engine_config(list(words))
    assert what in str(found.value)
    assert "\n" not in str(found.value)


def test_a_refusal_in_a_process_of_its_own(host: Path) -> None:
    refused = "computing vLLM's key failed: vllm serve refuses the arguments: "
    with pytest.raises(FlytuneError, match=f"{refused}unrecognized arguments: --no-s"):
        ask((str(TINY), "--no-such-option"), environment(host, "vllm"))


def test_a_changed_private_interface_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flytune.caches import vllm_key

    monkeypatch.setattr(vllm_key, "_PRIVATE", (("vllm.envs", "no_such_factors"),))
    changed = r"vLLM [\d.]+ changed a private .* uses: `vllm\.envs\.no_such_factors`"
    with pytest.raises(FlytuneError, match=changed):
        vllm_key.check_interfaces()
    monkeypatch.undo()
    vllm_key.check_interfaces()
    sources = ((vllm_key._DECORATORS, "_model_hash_key", ("hashlib.md5()",)),)
    monkeypatch.setattr(vllm_key, "_SOURCES", sources)
    with pytest.raises(FlytuneError, match=r"_model_hash_key: hashlib\.md5"):
        vllm_key.check_interfaces()


@pytest.mark.parametrize(
    ("architecture", "forward"),
    [
        ("LlamaForCausalLM", "LlamaModel.forward"),
        ("MistralForCausalLM", "MistralModel.forward"),
        # Its own class has the other's.
        ("Qwen3ForCausalLM", "Qwen2Model.forward"),
        ("Qwen3MoeForCausalLM", "Qwen3MoeModel.forward"),
        ("MixtralForCausalLM", "MixtralModel.forward"),
        ("Gemma2ForCausalLM", "Gemma2Model.forward"),
        ("GptOssForCausalLM", "GptOssModel.forward"),
        ("DeepseekV3ForCausalLM", "DeepseekV2Model.forward"),
        ("JambaForCausalLM", "JambaModel.forward"),
    ],
)
def test_the_compiled_class_of_a_family(
    architecture: str, forward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.models import ModelRegistry

    from flytune.caches.vllm_compiled import compiled_classes, forward_of

    def resolve(names: list[str], _: Any) -> tuple[type, str]:
        return ModelRegistry.models[names[0]].load_model_cls(), names[0]

    # It would ask for a whole config, of which it needs the name alone.
    monkeypatch.setattr(ModelRegistry, "resolve_model_cls", resolve)
    model = SimpleNamespace(architectures=[architecture])
    (cls,) = compiled_classes(SimpleNamespace(model_config=model))
    assert forward_of(cls).__qualname__ == forward

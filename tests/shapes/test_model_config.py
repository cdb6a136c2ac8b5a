import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from flytune.shapes.model_config import (
    ConfigError,
    ModelConfig,
    parse_config,
    read_config,
)

QWEN3_4B = (files("flytune.shapes") / "models" / "Qwen3-4B.json").read_text("utf-8")
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1000,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 1003,
}


def parse(raw: dict[str, Any]) -> ModelConfig:
    return parse_config(json.dumps(raw), name="m", source="m.json")


def test_the_fields_are_read() -> None:
    config = parse_config(QWEN3_4B, name="Qwen3-4B", source="file")
    assert (config.hidden_size, config.head_dim, config.dtype) == (
        2560,
        128,
        "bfloat16",
    )
    assert config.tie_word_embeddings
    assert json.loads(config.raw) == json.loads(QWEN3_4B)


def test_what_llama_omits_has_its_defaults() -> None:
    config = parse(LLAMA)
    assert (config.num_key_value_heads, config.head_dim) == (8, 64)
    assert not any((config.attention_bias, config.mlp_bias, config.tie_word_embeddings))
    assert config.dtype == "bfloat16"


def test_an_absent_kv_head_count_is_not_a_null_one() -> None:
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    qwen |= {"num_attention_heads": 64}
    assert parse(qwen).num_key_value_heads == 32
    assert parse(qwen | {"num_key_value_heads": None}).num_key_value_heads == 64


@pytest.mark.parametrize(
    "field",
    [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
    ],
)
@pytest.mark.parametrize("value", [None, 0, -1, "8", 8.0, True, [8], 2**31, 10**400])
def test_a_bad_size_names_field_and_file(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(LLAMA | {field: value})
    assert field in str(caught.value)
    assert "m.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads of 3 does not divide 8"),
        ({"head_dim": 0}, "head_dim is not from 1"),
        ({"hidden_size": 513}, "hidden_size is not a multiple of 8 heads"),
        ({"attention_bias": 1}, "attention_bias is not true or false"),
        ({"dtype": "float8"}, "dtype is not one of bfloat16"),
        ({"torch_dtype": ["float16"]}, "torch_dtype is not one of"),
        ({"model_type": "qwen3"}, "model_type is not `llama`"),
        ({"architectures": []}, "architectures is not a list of one name"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is not a list"),
    ],
)
def test_a_field_at_fault_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(LLAMA | change)


def test_qwen2_has_no_head_dim_of_its_own() -> None:
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    with pytest.raises(ConfigError, match="head_dim is not 512 / 8"):
        parse(qwen | {"num_key_value_heads": 8, "head_dim": 96})


@pytest.mark.parametrize("nested", [False, True])
def test_an_unknown_architecture_says_what_it_read_and_what_to_do(nested: bool) -> None:
    sizes = {name: value for name, value in LLAMA.items() if isinstance(value, int)}
    raw = {"architectures": ["NewForCausalLM"], "eos_token_id": 7, "use_cache": True}
    with pytest.raises(ConfigError, match="`NewForCausalLM`") as caught:
        parse(raw | ({"text_config": sizes} if nested else sizes))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(
        "its config says hidden_size 512, intermediate_size 1000, "
        "num_attention_heads 8, num_hidden_layers 3, vocab_size 1003; "
        "give its GEMMs by hand with --shapes FILE, CSV or JSON lines; known: "
    )
    assert "LlamaForCausalLM, MiniMaxForCausalLM" in caught.value.hint


def test_a_quantised_config_says_how(data: Path) -> None:
    config = read_config(data / "configs" / "Qwen3-32B-FP8.json", "m")
    assert config.quantised == "fp8"
    assert json.loads(config.quantization)["weight_block_size"] == [128, 128]
    assert "quantization_config" not in json.loads(config.raw)


@pytest.mark.parametrize(
    ("config", "sidecar"),
    [
        ("config.json", "hf_quant_config.json"),
        ("mine.json", "mine.hf_quant_config.json"),
        ("mine.json", "hf_quant_config.json"),
    ],
)
def test_a_quantised_sidecar_is_seen(tmp_path: Path, config: str, sidecar: str) -> None:
    (tmp_path / config).write_text(QWEN3_4B)
    (tmp_path / sidecar).write_text("{}")
    read = read_config(tmp_path / config, "m")
    assert read.quantised == "hf_quant_config.json"
    assert (read.quantization, read.quantization_source) == (
        "{}",
        str(tmp_path / sidecar),
    )


def test_a_sidecar_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(QWEN3_4B)
    sidecar = tmp_path / "hf_quant_config.json"
    sidecar.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8 text") as caught:
        read_config(tmp_path / "config.json", "m")
    assert str(sidecar) in str(caught.value)


@pytest.mark.parametrize("where", ["quantization_config", "compression_config"])
def test_older_and_nested_configs_say_it_elsewhere(where: str) -> None:
    said = {"quant_method": "compressed-tensors"}
    assert parse(LLAMA | {where: said}).quantised == "compressed-tensors"
    gemma = LLAMA | {"model_type": "gemma3_text", where: said}
    nested = {"architectures": ["Gemma3ForConditionalGeneration"]}
    nested |= {"model_type": "gemma3", "text_config": gemma}
    assert parse(nested).quantised == "compressed-tensors"
    assert where not in json.loads(parse(nested).raw)


@pytest.mark.parametrize("cut", range(0, len(QWEN3_4B) - 2, 23))
def test_a_truncated_config_is_refused(cut: int) -> None:
    with pytest.raises(ConfigError, match=r"^config is (empty|not JSON)") as caught:
        parse_config(QWEN3_4B[:cut], name="m", source="cut.json")
    assert "cut.json" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "config is empty"),
        (b" \n", "config is empty"),
        (b"[]", "config is not a JSON object"),
        (b"7", "config is not a JSON object"),
        (b"{} {}", "config is not JSON"),
        (b"[" * 100_000, "config is not JSON"),
        (b"\xff\xfe{}", "config is not UTF-8 text"),
        (b" " * (4 * 2**20 + 1), "too large for a model config"),
    ],
)
def test_a_corrupt_file_is_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(path, "m")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a regular file"):
        read_config(Path("/dev/zero"), "m")
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "absent.json", "m")


def test_a_config_can_be_a_key(load: Callable[[str], ModelConfig]) -> None:
    assert len({load("Qwen3-4B"), load("Qwen3-4B"), load("Qwen3-8B")}) == 2

"""Readers of the quantised configs that have one scheme for all of a model: fp8 and
FBGEMM's, mxfp4, AWQ and GPTQ.

Source of each: vLLM's `layers/quantization/NAME.py`, transformers'
`quantizers/quantizer_NAME.py`.
"""

import re
from dataclasses import replace
from typing import Any

from flytune.shapes.fields import Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.quant_names import Kind, Module, exact, part_of, start
from flytune.shapes.quant_rule import Rule, Verdict, found_by, ignores, unknown
from flytune.shapes.quant_schemes import (
    BLOCK128,
    INT_BITS,
    MXFP4_WEIGHT,
    MXFP8,
    ROWWISE,
    TENSORWISE,
    Scheme,
    awq,
    gptq,
)

_BY_BLOCK = {"[128, 128]": BLOCK128, "[1, 32]": MXFP8}
_SKIPPED = "modules_to_not_convert"


def read_fp8(fields: Fields, engine: Engine) -> Rule:
    """Read `quant_method` fp8: scaled by blocks, or by one scale.

    Without a block size transformers takes 128x128 and vLLM one scale a tensor.

    Raises:
        ConfigError: the block, the type or the activations are not known.
    """
    fields.word("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    fields.word("expert_dtype", ("fp8",), "fp8")
    activations = fields.word("activation_scheme", ("dynamic", "static"), "dynamic")
    block = fields.raw.get("weight_block_size", _own_block(fields, engine))
    if block is None:
        words = f"{TENSORWISE.words}, {activations} activations"
        scheme = replace(TENSORWISE, words=words)
    elif str(block) in _BY_BLOCK:
        scheme = _BY_BLOCK[str(block)]
    else:
        raise unknown(fields, "weight_block_size", (*_BY_BLOCK, "null"))
    lists = ("ignored_layers", _SKIPPED)
    ignored = found_by(exact if engine == "vllm" else start, fields, *lists)
    return Rule.of_all_but(scheme, ignored)


def _own_block(fields: Fields, engine: Engine) -> list[int] | None:
    if fields.raw.get("quant_method") == "mxfp8":
        return [1, 32]
    return None if engine == "vllm" else [128, 128]


def read_fbgemm(fields: Fields, engine: Engine) -> Rule:
    """Read FBGEMM's fp8: linears alone, with a scale a row.

    Raises:
        ConfigError: the list of ignored modules cannot be read.
    """
    ignored = found_by(exact if engine == "vllm" else start, fields, _SKIPPED)
    return Rule.of_all_but(ROWWISE, ignored, kinds=("linear",))


def read_mxfp4(fields: Fields, engine: Engine) -> Rule:
    """Read gpt-oss's: the weights of the experts alone, whatever the list says.

    Raises:
        ConfigError: the list of ignored modules cannot be read.
    """
    listed = fields if engine == "transformers" else Fields({}, fields.source)
    ignored = found_by(start, listed, _SKIPPED)
    return Rule.of_all_but(MXFP4_WEIGHT, ignored, kinds=("experts",))


def read_awq(fields: Fields, engine: Engine) -> Rule:
    """Read AWQ: integers with zero points.

    Raises:
        ConfigError: bits or group are not known, or there are no zero points.
    """
    if not fields.flag("zero_point", default=True):
        raise unknown(fields, "zero_point", ("true",))
    bits = _bits(fields, "bits" if "bits" in fields.raw else "w_bit", (4,))
    name = "group_size" if "group_size" in fields.raw else "q_group_size"
    find = part_of if engine == "vllm" else start
    ignored = found_by(find, fields, _SKIPPED)
    scheme = awq(bits, _group(fields, name))
    return Rule.of_all_but(scheme, ignored, kinds=_kinds(fields))


def read_gptq(fields: Fields, engine: Engine) -> Rule:
    """Read GPTQ, with `dynamic` rules for modules that differ.

    Raises:
        ConfigError: bits, group or a rule are not known.
    """
    if engine == "vllm" and not fields.flag("sym", default=True):
        raise unknown(fields, "sym", ("true, which vllm alone runs",))
    own = _gptq(fields, engine)
    only = tuple(_flat(fields, "modules_in_block_to_quantize"))
    listed = part_of(only)
    rules = _dynamic(fields, engine)
    kinds = _kinds(fields)

    def of(module: Module) -> Verdict:
        if module.kind not in kinds:
            return Verdict(None)
        if only and module.kind != "head" and not listed(module):
            return Verdict(None, "modules_in_block_to_quantize leaves it out")
        for pattern, entry, scheme in rules:
            if any(pattern.match(name) for name in module.names):
                return Verdict(scheme, ignores(entry) if scheme is None else "")
        return Verdict(own)

    schemes = {own, *(scheme for _, _, scheme in rules if scheme)}
    return Rule(of, frozenset(schemes))


def _gptq(fields: Fields, engine: Engine) -> Scheme:
    group = _group(fields, "group_size")
    ordered = fields.flag("desc_act") and group > 0
    scheme = gptq(_bits(fields, "bits"), group, ordered=ordered)
    if ordered and engine == "vllm":
        # `normalize_and_validate_gptq_desc_act`; older releases run it.
        scheme = replace(scheme, words=f"{scheme.words}, which vLLM 0.33 refuses")
    if fields.flag("sym", default=True):
        return scheme
    words = scheme.words.replace("a scale", "a scale and a zero point", 1)
    return replace(scheme, words=words, weights=f"u{scheme.weights}")


def _dynamic(
    fields: Fields, engine: Engine
) -> list[tuple[re.Pattern[str], str, Scheme | None]]:
    """Return GPTQModel's rules in order: "-:" leaves a module alone, "+:" does not."""
    given = fields.raw.get("dynamic") or {}
    if not isinstance(given, dict):
        raise fields.error("dynamic", "is not an object")
    found: list[tuple[re.Pattern[str], str, Scheme | None]] = []
    for entry, changes in given.items():
        try:
            pattern = re.compile(re.sub(r"^[-+]:", "", entry))
        except re.error as error:
            fault = f"has a rule that is no regular expression, {error},"
            raise fields.error("dynamic", fault) from error
        changed: dict[str, Any] = changes if isinstance(changes, dict) else {}
        own = Fields({**fields.raw, **changed}, fields.source)
        found.append(
            (pattern, entry, None if entry.startswith("-:") else _gptq(own, engine))
        )
    return found


def _flat(fields: Fields, field: str) -> list[str]:
    """Return strings of a list, or of a list of lists."""
    value = fields.raw.get(field)
    if isinstance(value, list) and value and all(isinstance(v, list) for v in value):
        flat = [each for one in value for each in one]
        return Fields({field: flat}, fields.source).strings(field)
    return fields.strings(field)


def _kinds(fields: Fields) -> tuple[Kind, ...]:
    head: tuple[Kind, ...] = ("head",) if fields.flag("lm_head") else ()
    return ("linear", "experts", *head)


def _bits(fields: Fields, field: str, known: tuple[int, ...] = INT_BITS) -> int:
    bits = fields.size(field)
    if bits not in known:
        raise unknown(fields, field, known)
    return bits


def _group(fields: Fields, field: str) -> int:
    """Return the inputs of one scale; 0 where -1 says all of them."""
    if fields.raw.get(field) == -1:
        return 0
    return fields.size(field)

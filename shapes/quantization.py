"""Which scheme each linear of a model has: by the checkpoint's own config, or as asked.

A `quant_method` is read by a row of `METHODS`; one without a row is an error, and so is
a format that its reader does not know.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flytune.shapes.errors import FlytuneError
from flytune.shapes.fields import ConfigError, Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear
from flytune.shapes.quant_compressed import read_compressed
from flytune.shapes.quant_modelopt import read_modelopt
from flytune.shapes.quant_names import modules_of
from flytune.shapes.quant_readers import (
    read_awq,
    read_fbgemm,
    read_fp8,
    read_gptq,
    read_mxfp4,
)
from flytune.shapes.quant_rule import BF16_HINT, UNKNOWN_HINT, Rule, Verdict
from flytune.shapes.quant_schemes import BY_NAME, Quant, Scheme

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig

Reader = Callable[[Fields, Engine], Rule]
METHODS: Mapping[str, Reader] = {
    "fp8": read_fp8,
    "mxfp8": read_fp8,
    "fbgemm_fp8": read_fbgemm,
    "compressed-tensors": read_compressed,
    "modelopt": read_modelopt,
    "modelopt_fp4": read_modelopt,
    "modelopt_mxfp8": read_modelopt,
    "modelopt_mixed": read_modelopt,
    "mxfp4": read_mxfp4,
    "gpt_oss_mxfp4": read_mxfp4,
    "awq": read_awq,
    "gptq": read_gptq,
}
"""The reader of each `quant_method`."""
_LINEARS_ALONE = ("awq", "gptq")
"""Schemes that transformers gives to `nn.Linear` alone, and never to experts."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """What of a model is quantised, and how."""

    plain: str
    """What a row says that has no scheme."""
    rule: Rule

    def of(
        self, linear: Linear, layer: int | None, engine: Engine, *, nested: bool
    ) -> Verdict:
        """Return the scheme of one layer's linear, and why it has none.

        Args:
            layer: Of the decoder; None for what is in none, such as the head.
            nested: Whether the model is the text model of a larger one.

        Raises:
            FlytuneError: what the engine merges has several schemes, or experts have
                one that the engine has no kernel of.
        """
        if linear.kept:
            return Verdict(None, linear.kept)
        named = self.rule.by_expert
        modules = modules_of(linear, layer, nested=nested, by_expert=named)
        found = [self.rule.of(module) for module in modules]
        if len({verdict.scheme for verdict in found}) > 1:
            where = linear.module.replace("*", str(layer), 1)
            parts = zip(linear.parts, found, strict=True)
            words = ", ".join(f"{part} {_of(each.scheme)}" for part, each in parts)
            raise FlytuneError(
                f"{engine} runs as one GEMM what has several schemes, {words}: "
                f"`{where}`",
                hint=BF16_HINT,
            )
        scheme = found[0].scheme
        experts = linear.experts is not None and engine == "transformers"
        if experts and scheme is not None and scheme.scaling in _LINEARS_ALONE:
            raise FlytuneError(
                f"transformers has no experts in {scheme.scaling}: `{linear.module}`",
                hint=f"--engine vllm has; {BF16_HINT}",
            )
        return found[0]


def _of(scheme: Scheme | None) -> str:
    return "in high precision" if scheme is None else f"in {scheme.scaling}"


def find_quantization(
    config: "ModelConfig", engine: Engine, quant: Quant | None
) -> Quantization | None:
    """Return how the model's linears are quantised; None where they are not.

    Args:
        quant: What is asked of a model that is not quantised; "bf16" dequantises one
            that is.

    Raises:
        ConfigError: the checkpoint's method or format is not known, or not to the
            engine.
        FlytuneError: another scheme than the checkpoint's own is asked of it.
    """
    if quant == "bf16":
        return None
    if not config.quantization:
        return None if quant is None else asked(quant)
    own = read_quantization(config, engine)
    if quant is None:
        return own
    said = {scheme.scaling for scheme in own.rule.schemes}
    if said != {BY_NAME[quant].scaling}:
        raise FlytuneError(
            f"{engine} does not run the checkpoint in {quant}, but in "
            f"{' and '.join(sorted(said)) or 'its own type'}: `{config.source}`",
            hint=f"leave --quant out; {BF16_HINT}",
        )
    return own


def asked(quant: Quant) -> Quantization:
    """Return a scheme of all layers' linears; not of the head, as vLLM quantises a
    checkpoint while it is loaded."""
    scheme = BY_NAME[quant]
    rule = Rule.of_all_but(scheme, ignored=lambda _: "")
    return Quantization(f"not in {quant}", rule)


def read_quantization(config: "ModelConfig", engine: Engine) -> Quantization:
    """Read what the config, or the file beside it, says.

    Raises:
        ConfigError: as `find_quantization`.
    """
    fields = Fields(_load(config), config.quantization_source or config.source)
    method = _method(fields)
    reader = METHODS.get(method)
    if reader is None:
        raise ConfigError(
            f"unknown quant_method in `{fields.source}`: `{method[:60]}`",
            hint=f"{UNKNOWN_HINT}; known: {', '.join(sorted(METHODS))}",
        )
    try:
        rule = reader(fields, engine)
    except ConfigError as error:
        # Whatever is not known of it, its sizes are.
        raise ConfigError(str(error), hint=error.hint or UNKNOWN_HINT) from error
    return Quantization("in high precision", rule)


def _load(config: "ModelConfig") -> dict[str, object]:
    where = config.quantization_source or config.source
    try:
        raw = json.loads(config.quantization)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: `{where}`", hint=UNKNOWN_HINT) from error
    if not isinstance(raw, dict):
        raise ConfigError(f"not a JSON object: `{where}`", hint=UNKNOWN_HINT)
    return raw


def _method(fields: Fields) -> str:
    """Return the method; modelopt's own files may leave it out."""
    method = fields.raw.get("quant_method")
    producer = fields.raw.get("producer")
    if method is None and isinstance(producer, dict):
        method = producer.get("name")
    if method is None and isinstance(fields.raw.get("quantization"), dict):
        method = "modelopt"
    return str(method).lower()

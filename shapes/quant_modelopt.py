"""Reader of NVIDIA Model Optimizer's configs, in config.json or in a file beside it.

Source: vLLM's `layers/quantization/modelopt.py`. transformers has no such method.
"""

from collections.abc import Mapping
from dataclasses import replace

from flytune.shapes.fields import ConfigError, Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.quant_names import Find, Kind, Module, wildcard
from flytune.shapes.quant_rule import (
    BF16_HINT,
    Rule,
    Verdict,
    found_by,
    ignores,
    unknown,
)
from flytune.shapes.quant_schemes import (
    BLOCK128,
    MXFP8,
    NVFP4,
    NVFP4_BLOCK,
    ROWWISE,
    TENSORWISE,
    Scheme,
)

_ALGOS: Mapping[str, Scheme] = {
    "FP8": replace(TENSORWISE, words=f"{TENSORWISE.words}, static activations"),
    "FP8_PER_CHANNEL_PER_TOKEN": ROWWISE,
    "FP8_PB_WO": replace(BLOCK128, blocks="padded"),
    # What it was called at first.
    "FP8_BLOCK_SCALES": replace(BLOCK128, blocks="padded"),
    "NVFP4": NVFP4,
    "MXFP8": MXFP8,
}
_MIXED = "MIXED_PRECISION"


def read_modelopt(fields: Fields, engine: Engine) -> Rule:
    """Read `quant_algo` and the modules that are excluded.

    The head is one of the modules: it stays only where it is excluded.

    Raises:
        ConfigError: the algorithm is not known, or the engine has none of them.
    """
    if engine == "transformers":
        raise ConfigError(
            f"transformers does not run checkpoints of modelopt: `{fields.source}`",
            hint=f"--engine vllm does; {BF16_HINT}",
        )
    own = fields.raw.get("quantization", fields.raw)
    if not isinstance(own, dict):
        raise fields.error("quantization", "is not an object")
    own = Fields(own, fields.source)
    ignored = found_by(wildcard, own, "exclude_modules", "ignore")
    algo = str(own.raw.get("quant_algo")).upper()
    if algo == _MIXED:
        return _mixed(own, ignored)
    if algo not in _ALGOS:
        raise unknown(own, "quant_algo", (*_ALGOS, _MIXED))
    _check_group(own)
    kinds: tuple[Kind, ...] = ("linear", "experts", "head")
    return Rule.of_all_but(_ALGOS[algo], ignored, kinds)


def _check_group(fields: Fields) -> None:
    size = fields.raw.get("group_size")
    algo = str(fields.raw.get("quant_algo")).upper()
    if algo == "NVFP4" and size not in (None, NVFP4_BLOCK):
        raise unknown(fields, "group_size", (NVFP4_BLOCK,))


def _mixed(fields: Fields, ignored: Find) -> Rule:
    """Read an algorithm for each module of `quantized_layers`; the others have none."""
    given = fields.raw.get("quantized_layers")
    if not isinstance(given, dict) or not given:
        raise fields.error("quantized_layers", "is not an object of modules")
    layers: dict[str, Scheme] = {}
    for name, said in given.items():
        algo = said.get("quant_algo") if isinstance(said, dict) else said
        scheme = _ALGOS.get(str(algo).upper())
        if scheme is None:
            which = " ".join(f"{str(algo)[:40]} of {name[:60]}".split())
            fault = f"has an algorithm that is not known, {which},"
            raise fields.error("quantized_layers", fault)
        layers[name] = scheme
    experts = _of_experts(layers)

    def of(module: Module) -> Verdict:
        entry = ignored(module)
        if entry:
            return Verdict(None, ignores(entry))
        known = experts if module.kind == "experts" else layers
        schemes = (known[name] for name in module.names if name in known)
        scheme = next(schemes, None)
        return Verdict(scheme, "" if scheme else "no algorithm is given for it")

    return Rule(of, frozenset(layers.values()))


def _of_experts(layers: Mapping[str, Scheme]) -> Mapping[str, Scheme]:
    """Return the scheme of each layer's experts, by the first that is named."""
    found = dict(layers)
    for name, scheme in layers.items():
        path, dot, _ = name.partition(".experts.")
        if dot:
            found.setdefault(f"{path}.experts", scheme)
    return found

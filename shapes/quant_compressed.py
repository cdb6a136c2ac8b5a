"""Reader of compressed-tensors: groups of modules, each with types of its own.

Source: vLLM's `layers/quantization/compressed_tensors/`, and the package's
`quantization/quant_args.py` and `quant_scheme.py`; transformers'
`quantizers/quantizer_compressed_tensors.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flytune.shapes.fields import Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.quant_names import Find, Module, regex
from flytune.shapes.quant_rule import Rule, Verdict, found_by, ignores
from flytune.shapes.quant_schemes import (
    BLOCK128,
    FP8_BLOCK,
    INT_BITS,
    MXFP4,
    MXFP4_WEIGHT,
    MXFP8,
    NVFP4,
    ROWWISE,
    TENSORWISE,
    Scheme,
    awq,
    gptq,
)

# (bits, strategy, group) of float weights and activations; of none where they stay.
_Kind = tuple[int, str, int]
_FLOATS: Mapping[tuple[_Kind, _Kind | None], Scheme] = {
    ((8, "tensor", 0), (8, "tensor", 0)): TENSORWISE,
    ((8, "tensor", 0), (8, "token", 0)): ROWWISE,
    ((8, "channel", 0), (8, "tensor", 0)): ROWWISE,
    ((8, "channel", 0), (8, "token", 0)): ROWWISE,
    ((8, "block", FP8_BLOCK), (8, "group", FP8_BLOCK)): replace(
        BLOCK128, blocks="checked"
    ),
    ((8, "group", 32), (8, "group", 32)): MXFP8,
    ((4, "group", 32), (4, "group", 32)): MXFP4,
    ((4, "group", 32), None): MXFP4_WEIGHT,
    ((4, "tensor_group", 16), (4, "tensor_group", 16)): NVFP4,
}
"""A scale for each of a vector makes the product row-wise, whichever side it is on."""


def read_compressed(fields: Fields, engine: Engine) -> Rule:
    """Read the groups, their targets and the modules that are ignored.

    transformers decompresses the weights before it multiplies, whatever their types,
    so that none of its products is quantised.

    Raises:
        ConfigError: a group's types are not known, or lists cannot be read.
    """
    if engine == "transformers":
        why = "transformers decompresses the weights"
        return Rule(lambda _: Verdict(None, why), frozenset())
    sparse = fields.raw.get("sparsity_config")
    if isinstance(sparse, dict) and sparse.get("format", "dense") != "dense":
        raise fields.error("sparsity_config", "is not dense")
    groups = fields.raw.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise fields.error("config_groups", "is not an object of groups")
    read = tuple(_group(fields, name, group) for name, group in groups.items())
    ignored = found_by(regex, fields, "ignore")

    def of(module: Module) -> Verdict:
        entry = ignored(module)
        if entry:
            return Verdict(None, ignores(entry))
        by_name = (g.scheme for g in read if g.find(module))
        by_class = (g.scheme for g in read if g.of_class(module))
        # Names come before classes, whatever group they are in.
        for scheme in (*by_name, *by_class):
            return Verdict(scheme)
        return Verdict(None, "no group targets it")

    return Rule(of, frozenset(g.scheme for g in read), by_expert=True)


@dataclass(frozen=True, slots=True)
class _Group:
    targets: tuple[str, ...]
    find: Find
    """Finds the target that names a module."""
    scheme: Scheme

    def of_class(self, module: Module) -> bool:
        """As vLLM compares: a part of the class name; "Linear" is of experts too."""
        classes = {"linear": module.style, "experts": "Linear, RoutedExperts, FusedMoE"}
        name = classes.get(module.kind, "ParallelLMHead").lower()
        return any(target.lower() in name for target in self.targets)


def _group(fields: Fields, name: str, group: object) -> _Group:
    if not isinstance(group, dict):
        raise fields.error("config_groups", "has a group that is no object")
    own = Fields(group, fields.source)
    weights, inputs = group.get("weights"), group.get("input_activations")
    scheme = None
    if isinstance(weights, dict) and (inputs is None or isinstance(inputs, dict)):
        scheme = _scheme(weights, inputs)
    if scheme is None:
        said = f"{name}: weights {_words(weights)}, activations {_words(inputs)}"
        fault = f"has a group that is not known ({' '.join(said.split())})"
        raise fields.error("config_groups", fault)
    find = found_by(regex, own, "targets")
    return _Group(tuple(own.strings("targets")), find, scheme)


def _scheme(
    weights: dict[str, object], inputs: dict[str, object] | None
) -> Scheme | None:
    kind, bits = weights.get("type"), weights.get("num_bits")
    if kind == "int" and bits in INT_BITS and inputs is None:
        return _integers(weights)
    if kind != "float" or (inputs is not None and inputs.get("type") != "float"):
        return None
    scheme = _FLOATS.get((_kind(weights), None if inputs is None else _kind(inputs)))
    if scheme is TENSORWISE and inputs is not None:
        scales = "dynamic" if inputs.get("dynamic") else "static"
        return replace(scheme, words=f"{scheme.words}, {scales} activations")
    return scheme


def _integers(weights: dict[str, object]) -> Scheme | None:
    """Return what vLLM's Marlin kernels run, whichever method made the integers."""
    strategy, group = weights.get("strategy"), weights.get("group_size")
    if strategy == "channel" or group == -1:
        group = 0
    if strategy not in ("group", "channel") or not isinstance(group, int):
        return None
    bits = weights["num_bits"]
    assert isinstance(bits, int)
    make = gptq if weights.get("symmetric", True) else awq
    return make(bits, group)


def _kind(given: dict[str, object]) -> _Kind:
    """Return bits, strategy and group; the first strategy where none is said is one
    scale, as the package has it."""
    bits, group = given.get("num_bits"), given.get("group_size")
    strategy = given.get("strategy") or ("group" if group else "tensor")
    if given.get("block_structure") is not None:
        blocks = given["block_structure"]
        group = FP8_BLOCK if blocks == [FP8_BLOCK, FP8_BLOCK] else -1
    size = group if isinstance(group, int) else 0
    return (bits if isinstance(bits, int) else 0), str(strategy), size


def _words(given: object) -> str:
    if not isinstance(given, dict):
        return "none" if given is None else str(given)[:40]
    named = ("type", "num_bits", "strategy", "group_size", "block_structure")
    return " ".join(str(given[n]) for n in named if given.get(n) is not None)

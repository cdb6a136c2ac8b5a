"""What a checkpoint calls the linears that an engine runs, and the ways in which lists
of ignored modules name them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from flytune.shapes.linears import Linear

Kind = Literal["linear", "experts", "head"]
Find = Callable[["Module"], str]
"""Returns the entry of a list that means a module; "" where none does."""

HEAD = "lm_head"
# Of transformers 5 and vLLM against the checkpoint: Mixtral and MiniMax, gpt-oss.
_BLOCKS = ((".mlp.", ".block_sparse_moe."), (".attn.", ".self_attn."))
# Of a text model within a model that sees or hears too, by its class and its date.
_NESTED = ("model.language_model.", "language_model.model.")


@dataclass(frozen=True, slots=True)
class Module:
    """A linear of a checkpoint, or the experts of a layer."""

    names: tuple[str, ...]
    """Its path in each spelling, and that of the linear that it is merged into."""
    kind: Kind
    style: str
    """The engine's class of the linear, which compressed-tensors may name."""


def modules_of(
    linear: Linear, layer: int | None, *, nested: bool, by_expert: bool
) -> tuple[Module, ...]:
    """Return what one layer's linear is in the checkpoint: its parts where merged.

    Args:
        layer: Of the decoder; None for what is in none, such as the head.
        nested: Whether the text model is a part of a larger one.
        by_expert: Whether experts are known by the linears of the first, and not as
            one module.
    """
    path = linear.module
    if layer is not None:
        path = path.replace(".*.", f".{layer}.", 1)
    kind: Kind = "head" if path == HEAD else "linear"
    if linear.experts is not None:
        path, kind = re.sub(r"\.experts\.w\d+$", ".experts", path), "experts"
    whole = tuple(_spellings(path, nested))
    if not linear.parts or (kind == "experts" and not by_expert):
        return (Module(whole, kind, linear.style),)
    if kind == "experts":
        parent, whole = f"{path}.0", ()
    else:
        parent = path.rpartition(".")[0]
    return tuple(
        Module((*_spellings(f"{parent}.{part}", nested), *whole), kind, linear.style)
        for part in linear.parts
    )


def _spellings(path: str, nested: bool) -> Iterator[str]:
    for ours, theirs in (("", ""), *_BLOCKS):
        if ours in path:
            spelt = path.replace(ours, theirs) if ours else path
            yield spelt
            if nested and spelt.startswith("model."):
                inner = spelt.removeprefix("model.")
                yield from (f"{prefix}{inner}" for prefix in _NESTED)


def exact(entries: Iterable[str]) -> Find:
    """As vLLM's `is_layer_skipped`; an expert's entry means all of its layer's."""
    listed = dict.fromkeys(entries)
    of_experts = tuple(entry for entry in listed if "experts" in entry)

    def find(module: Module) -> str:
        for name in module.names:
            if name in listed:
                return name
        if module.kind != "experts":
            return ""
        held = (e for e in of_experts if any(name in e for name in module.names))
        return next(held, "")

    return find


def part_of(entries: Iterable[str]) -> Find:
    """As vLLM's `is_layer_skipped` with `skip_with_substr`: a part of the path."""
    return _first(entries, lambda entry: lambda name: entry in name)


def regex(entries: Iterable[str]) -> Find:
    """As compressed-tensors: equal, or what follows "re:" matches the start.

    Raises:
        re.error: it is no regular expression.
    """

    def test(entry: str) -> Callable[[str], object]:
        if not entry.startswith("re:"):
            return lambda name: name == entry
        return re.compile(entry.removeprefix("re:")).match

    return _first(entries, test)


def wildcard(entries: Iterable[str]) -> Find:
    """As modelopt in vLLM: a part of the path, or a shell's pattern."""

    def test(entry: str) -> Callable[[str], object]:
        return lambda name: entry in name or fnmatchcase(name, entry)

    return _first(entries, test)


def start(entries: Iterable[str]) -> Find:
    """As transformers' `should_convert_module`: a regex of the start up to the end of a
    module's name, or the end as it is.

    Raises:
        re.error: it is no regular expression.
    """

    def test(entry: str) -> Callable[[str], object]:
        match = re.compile(rf"(?:{entry})(?:(?<=\.)|(?=\.|$))").match
        return lambda name: match(name) or name.endswith(entry)

    return _first(entries, test)


def _first(
    entries: Iterable[str], test: Callable[[str], Callable[[str], object]]
) -> Find:
    tests = [(entry, test(entry)) for entry in entries]

    def find(module: Module) -> str:
        for entry, means in tests:
            if any(means(name) for name in module.names):
                return entry
        return ""

    return find

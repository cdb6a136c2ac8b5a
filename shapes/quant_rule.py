"""What a reader of a quantised config makes: a rule from a module to its scheme."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flytune.shapes.fields import BY_HAND, ConfigError, Fields
from flytune.shapes.quant_names import Find, Kind, Module
from flytune.shapes.quant_schemes import Scheme

BF16_HINT = "--quant bf16 lists it dequantised"
UNKNOWN_HINT = f"{BF16_HINT}, or {BY_HAND}"
"""Where it is not known how a checkpoint is quantised."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one linear is."""

    scheme: Scheme | None
    """None in high precision."""
    why: str = ""
    """Why it has none, where more is to say than that it has none."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Says of each module which scheme it has."""

    of: Callable[[Module], Verdict]
    schemes: frozenset[Scheme]
    """All that it may answer with."""
    by_expert: bool = False
    """Whether it names the linears of an expert, and not a layer's experts as one."""

    @classmethod
    def of_all_but(
        cls,
        scheme: Scheme,
        ignored: Find,
        kinds: tuple[Kind, ...] = ("linear", "experts"),
    ) -> "Rule":
        """Return one scheme for every module that no entry of a list means.

        Args:
            ignored: Finds that entry.
            kinds: What may be quantised at all.
        """

        def of(module: Module) -> Verdict:
            if module.kind not in kinds:
                return Verdict(None)
            entry = ignored(module)
            return Verdict(None, ignores(entry)) if entry else Verdict(scheme)

        return cls(of, frozenset((scheme,)))


def ignores(entry: str) -> str:
    """Return the words for an entry of a list of ignored modules, of whatever layer."""
    if re.fullmatch(r"[\w.]+", entry):
        entry = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", entry)
    return f"`{entry}` is ignored"


def found_by(
    make: Callable[[Iterable[str]], Find], fields: Fields, *names: str
) -> Find:
    """Return what finds an entry in the first of the lists that is there.

    Raises:
        ConfigError: it is no list of strings, or an entry is no regular expression.
    """
    name = next((n for n in names if fields.raw.get(n) is not None), names[0])
    try:
        return make(fields.strings(name))
    except re.error as error:
        fault = f"has an entry that is no regular expression, {error},"
        raise fields.error(name, fault) from error


def unknown(fields: Fields, field: str, known: Iterable[object]) -> ConfigError:
    """Return the error for a value that no scheme stands for."""
    return fields.error(field, f"is not {' or '.join(map(str, known))}")

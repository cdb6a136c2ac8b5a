"""What a comparison finds: a kind, what it is about, and how much it weighs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from flytune.caches.manifest import sha256_hex
from flytune.caches.words import plain

BUNDLE = "bundle"
"""What a finding is about that is of no list."""


# Characters of a value in a line.
_LONGEST = 120
_SHOWN = 40


class Kind(StrEnum):
    """What was found; the words that a waiver uses."""

    LOST = "lost"
    """A list of the baseline that the new bundle lacks."""
    NEW = "new"
    """The opposite."""
    COUNT = "count"
    """A list that a forward pass calls more or less often."""
    MODEL = "model"
    """A baseline of another model, or of another way to run it."""
    TARGET = "target"
    POLICY = "policy"
    MISSES = "misses"
    """What serving under a policy would not find."""
    UNVERIFIED = "unverified"
    SIZE = "size"
    STALE = "stale"
    """Rows and files that do not belong together."""
    FUSED = "fused"
    """A list whose winner is not in the graphs: another kernel fused better."""
    BACKEND = "backend"
    """A backend whose kernels are gone."""
    SLOWER = "slower"
    SLOWER_PASS = "slower pass"
    FASTER = "faster"
    UNSURE = "unsure"
    """Slower, but by no more than two builds of one kernel may differ."""
    NOISE = "noise"
    """Builds that differ by more than is to be found."""
    UNTIMED = "untimed"
    """A list that has a time in one bundle alone."""
    RETIME = "retime"
    """What times that were taken again do not decide."""
    OTHER_DEVICE = "other device"
    """Times that cannot be compared."""
    LIMITS = "limits"
    """What the file of limits says to no purpose."""


class Standing(StrEnum):
    """What a finding does to the outcome."""

    FAILS = "fails"
    UNDECIDED = "undecided"
    WAIVED = "waived"
    NOTED = "noted"


_STANDINGS: Mapping[Kind, Standing] = {
    **dict.fromkeys(
        (
            *(Kind.MODEL, Kind.LOST, Kind.MISSES, Kind.UNVERIFIED, Kind.SIZE),
            *(Kind.STALE, Kind.BACKEND, Kind.SLOWER, Kind.SLOWER_PASS),
        ),
        Standing.FAILS,
    ),
    Kind.UNTIMED: Standing.UNDECIDED,
    Kind.RETIME: Standing.UNDECIDED,
    Kind.OTHER_DEVICE: Standing.UNDECIDED,
}
WAIVABLE = tuple(_STANDINGS)
"""The kinds that decide the outcome; the others are only noted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that differs, in words."""

    kind: Kind
    subject: str
    """A list's name, such as "mm (16, 4096, 1024) at lm_head", or `BUNDLE`."""
    text: str
    """What differs, with both values, lower case and without a full stop."""
    standing: Standing
    hint: str = ""
    """What to do."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Numbers of the text, for a program."""
    reason: str = ""
    """Of the waiver, where it is waived."""

    @property
    def line(self) -> str:
        """The finding in one line."""
        about = "" if self.subject == BUNDLE else f"{self.subject}: "
        return f"{about}{self.text}"


def found(
    kind: Kind, subject: str, text: str, hint: str = "", **values: Any
) -> Finding:
    """Return a finding that weighs what its kind does."""
    standing = _STANDINGS.get(kind, Standing.NOTED)
    return Finding(kind, plain(subject), plain(text), standing, plain(hint), values)


def noted(
    kind: Kind, subject: str, text: str, hint: str = "", **values: Any
) -> Finding:
    """Return a finding that decides nothing, whatever its kind does elsewhere."""
    made = found(kind, subject, text, hint, **values)
    return replace(made, standing=Standing.NOTED)


def quoted(value: Any) -> str:
    """Return a value for a line; a long one as its start and a digest of it.

    Triton's key is a text of two thousand characters.
    """
    parts = isinstance(value, list | tuple)
    text = " ".join(map(str, value)) if parts else str(value)
    if len(text) > _LONGEST:
        text = f"{text[:_SHOWN]}... ({sha256_hex(text.encode())[:8]})"
    return f"`{text}`"

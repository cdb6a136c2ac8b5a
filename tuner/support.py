"""What runs where: engine, torch, backend and platform, as far as it was seen.

The README's table and `flytune doctor` are both made of this.
"""

from dataclasses import astuple, dataclass
from typing import Literal

State = Literal["runs", "compiles only", "not tried", "impossible"]


@dataclass(frozen=True, slots=True)
class Support:
    """One combination and what becomes of it."""

    engine: str
    torch: str
    backend: str
    platform: str
    state: State
    why: str


_OLD = "torch has no FlyDSL before 2.15"
_NO_DEVICE = "no device has timed it"
SUPPORT = (
    Support(
        *("torch.compile", "2.11 to 2.15", "ATen, C++", "x86-64 CPU", "runs"),
        "tested on 2.15.0, tried on 2.11.0",
    ),
    Support(
        *("torch.compile", "2.11 to 2.15", "ATen, Triton", "NVIDIA GPU", "runs"),
        "seen on one H200 with torch 2.11.0",
    ),
    Support(
        *("torch.compile", "2.11 to 2.15", "FlyDSL", "NVIDIA GPU", "impossible"),
        "Inductor offers it on gfx950 alone",
    ),
    Support(
        *("torch.compile", "2.15", "FlyDSL", "AMD gfx950", "compiles only"),
        f"{_NO_DEVICE}; its kernels hit under the same flydsl wheel",
    ),
    Support(
        *("torch.compile", "2.15", "ATen, Triton", "AMD gfx950", "compiles only"),
        f"{_NO_DEVICE}; Triton's hit under the very wheel that built them",
    ),
    Support(
        *("torch.compile", "2.11 to 2.14", "FlyDSL", "AMD gfx950", "impossible"), _OLD
    ),
    Support(
        *("vLLM 0.32", "2.13.0", "ATen, C++", "x86-64 CPU", "runs"),
        "baked, proved and served in tests of their own",
    ),
    Support(
        *("vLLM", "its own", "ATen, Triton", "NVIDIA GPU", "not tried"),
        "--bake vllm is the same there, and has not run on one",
    ),
    Support(
        *("SGLang", "its own", "ATen, Triton", "NVIDIA GPU", "not tried"),
        "--bake-cmd takes any command; this one was read, not run",
    ),
    Support(
        *("vLLM 0.33", "2.14.0", "FlyDSL", "AMD gfx950", "impossible"),
        f"it pins torch 2.14.0, and {_OLD}",
    ),
)
_TITLES = ("engine", "torch", "backend", "platform", "state", "why")


def support_lines() -> tuple[str, ...]:
    """Return the table in columns, for a terminal."""
    rows = (_TITLES, *map(astuple, SUPPORT))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple(
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def support_markdown() -> str:
    """Return the table as the README has it."""
    rows = (_TITLES, ("---",) * len(_TITLES), *map(astuple, SUPPORT))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

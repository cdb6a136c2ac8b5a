"""An engine of vLLM's as the program that is baked and proved."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from flytune.caches.command import CommandSpec
from flytune.caches.directories import VLLM_DIR
from flytune.caches.vllm_factors import VllmFactors, program_row
from flytune.shapes.errors import FlytuneError

_SESSION = (sys.executable, "-m", "flytune.caches.vllm_session")


@dataclass(frozen=True, slots=True)
class VllmSpec(CommandSpec):
    """A session with an engine that has the arguments of `vllm serve`."""

    KIND: ClassVar[str] = "vllm"
    factors: VllmFactors | None = None
    """What the engine's key is made of, where that is known."""
    baked: bool = False
    """Whether the factors are those of a bake that has ended."""

    @classmethod
    def of(
        cls, arguments: Sequence[str], factors: VllmFactors | None = None
    ) -> "VllmSpec":
        """Return the session with `vllm serve ARGUMENTS`, the model first."""
        return cls((*_SESSION, *arguments), factors)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Those of `vllm serve`."""
        return self.command[len(_SESSION) :]

    def after_bake(self, cache_dir: Path) -> Self:
        """Return the session with what an engine has made of its key.

        Raises:
            FlytuneError: vLLM kept nothing of what it compiled.
        """
        assert self.factors is not None, "asked for by the plan"
        found = self.factors.after_bake(cache_dir / VLLM_DIR)
        return replace(self, factors=found, baked=True)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's form, whole once it is baked.

        Raises:
            FlytuneError: the key holds what is this machine's alone.
        """
        if self.baked and self.factors is not None:
            return program_row(self.arguments, self.factors)
        return {"kind": self.KIND, "arguments": list(self.arguments)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "VllmSpec":
        """Read what there is to run in the manifest's form.

        Raises:
            FlytuneError: it is not of that form.
        """
        words = row.get("arguments")
        if row.get("kind") != cls.KIND or not isinstance(words, list) or not words:
            raise FlytuneError("program is malformed: `arguments` of vLLM")
        return cls.of(tuple(map(str, words)))


def command_of(program: Mapping[str, Any]) -> CommandSpec | None:
    """Return the command that a manifest's program is; None of one of our own.

    Raises:
        FlytuneError: the program is malformed.
    """
    for kind in (CommandSpec, VllmSpec):
        if program.get("kind") == kind.KIND:
            return kind.from_json(program)
    return None

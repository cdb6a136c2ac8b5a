"""In what an environment is another than an older bundle's, and what that touches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flytune.caches.host import ABSENT
from flytune.caches.target import PartResult, PartStatus, Target, compare
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import ATEN, CPP, FLYDSL

_TORCH = ("software.torch", "software.torch_git", "software.torch_key")
_TRITON = ("software.triton", "software.triton_key")
_ABI = "software.python_abi"
# Where the version differs, the build says no more.
_VERSION_OF = {
    "software.torch_git": "software.torch",
    "software.torch_key": "software.torch",
    "software.triton_key": "software.triton",
}
# No key holds them, and times depend on them.
_OF_TIMES = (
    *("software.driver", "hardware.product", "hardware.smi_product"),
    *("hardware.compute_partition", "hardware.memory_partition"),
)
_LIBRARY = (*_TORCH, "software.cuda", "software.hip")
_KERNELS: Mapping[str, tuple[str, ...]] = {
    ATEN: (),
    CPP: (*_TORCH, "software.compiler", _ABI),
    FLYDSL: (*_TORCH, "software.flydsl", _ABI),
}
# Triton's, and those of templates that compile by it.
_OTHER_KERNELS = (*_TORCH, *_TRITON, _ABI)


@dataclass(frozen=True, slots=True)
class Changes:
    """The parts of a target that are others than those an older bundle was built for.

    The hardware's that decide are the same, or the bundle is refused.
    """

    parts: tuple[PartResult, ...] = ()
    """Those of the software that keys hold, and those on which times depend."""

    def __bool__(self) -> bool:
        return bool(self.parts)

    def kernels(self, backend: str) -> tuple[PartResult, ...]:
        """Return what makes the compiled kernels of a backend others."""
        return self._of(_KERNELS.get(backend, _OTHER_KERNELS))

    @property
    def library(self) -> tuple[PartResult, ...]:
        """What may make the library's kernels others."""
        return self._of(_LIBRARY)

    @property
    def times(self) -> tuple[PartResult, ...]:
        """What makes a kernel's time another, if its bytes are the same."""
        return self._of(_OF_TIMES)

    @property
    def graphs(self) -> tuple[PartResult, ...]:
        """What makes graphs others."""
        return tuple(part for part in self.parts if part.part not in _OF_TIMES)

    def _of(self, names: Sequence[str]) -> tuple[PartResult, ...]:
        return tuple(part for part in self.parts if part.part in names)


def changes(built: Target, here: Target) -> Changes:
    """Compare the target of an older bundle with the one that is built for.

    Raises:
        FlytuneError: the hardware is another, and in what.
    """
    found = []
    for part in compare(built, here):
        if part.status is PartStatus.MISS and part.part.startswith("hardware."):
            raise FlytuneError(
                f"older bundle is for another target: {part}",
                hint="build without --from",
            )
        # Where no device was nothing was timed.
        times = part.status is PartStatus.WARNING and part.built != ABSENT
        if part.status is PartStatus.MISS or (times and part.part in _OF_TIMES):
            found.append(part)
    names = {part.part for part in found}
    return Changes(tuple(p for p in found if _VERSION_OF.get(p.part) not in names))

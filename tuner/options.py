"""What a build was asked for."""

from dataclasses import dataclass
from pathlib import Path

from flytune.shapes.derive import Attention
from flytune.tuner.timing import TimingPlan
from flytune.tuner.workers import Deadlines


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of `flytune build`, resolved."""

    model: str
    tokens: tuple[int, ...]
    attention: Attention
    policy: str
    """"unfrozen" or "frozen"."""
    threads: int
    """OpenMP threads of serving."""
    out: Path
    work: Path
    """Directory of journals and stages, kept between builds."""
    ray: str | None
    """Address of a Ray cluster; None starts a local one."""
    from_bundle: Path | None
    """An older bundle whose times are taken where they are for the same list."""
    bake_passes: int
    """Fresh processes that a bake may take until one compiles nothing."""
    fresh: bool = False
    """Whether what an earlier build of the same thing left is thrown away."""
    timing: TimingPlan = TimingPlan()  # noqa: RUF009 - frozen
    deadlines: Deadlines = Deadlines()  # noqa: RUF009 - frozen

"""What a build was asked for."""

from dataclasses import dataclass
from pathlib import Path

from flytune.caches.program import Bake
from flytune.caches.trust import HERE, Trust
from flytune.shapes.gemm import Engine
from flytune.shapes.quant_schemes import Quant
from flytune.tuner.budget import Budget
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.timing import TimingPlan


@dataclass(frozen=True, slots=True)
class Phases:
    """How the baked program is called; by default one sequence brings all tokens."""

    prefill: tuple[int, ...] = ()
    """As `ProgramSpec.prefill`."""
    decode: tuple[int, ...] = ()
    """As `ProgramSpec.decode`."""
    context: int = 0
    """Positions of the static cache that decoding has."""
    dynamic: bool = False
    """Whether one graph serves all counts."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of `flytune build`, resolved."""

    model: str
    """As `find_model` takes it; nothing where the GEMMs are given `by_hand`, or where a
    command alone is."""
    tokens: tuple[int, ...]
    attention: str | None
    """As transformers names it; None: what the device's serving uses."""
    policy: str
    """Of a CPU: "unfrozen" or "frozen"."""
    threads: int
    """OpenMP threads of serving."""
    out: Path | None
    """None: named after the model and the target, here."""
    work: Path
    """Directory of journals and stages, kept between builds."""
    ray: str | None
    """Address of a Ray cluster; None starts a local one."""
    from_bundle: Path | None
    """An older bundle whose times are taken where they are for the same list."""
    bake_passes: int
    """Fresh processes that a bake may take until one compiles nothing."""
    by_hand: Path | None = None
    """A file that lists the GEMMs, in place of a model."""
    tp: int = 1
    """Tensor-parallel ranks, of which one is built for."""
    ep: int = 1
    """Expert-parallel ranks, of which one is built for."""
    engine: Engine = "transformers"
    """Whose program runs the model."""
    quant: Quant | None = None
    """How the decoder's linears are stored; None as the model says."""
    allow_unreached: bool = False
    """Whether GEMMs are built too that serving does not ask Inductor for."""
    bake: Bake = "layers"
    """What one graph of the baked program holds."""
    bake_cmd: tuple[str, ...] = ()
    """The words of a command that is baked instead of the model's program."""
    vllm: tuple[str, ...] = ()
    """Arguments of `vllm serve`, the model first, where its engine is baked."""
    phases: Phases = Phases()
    """How that program is called."""
    precompiled: bool = False
    """Whether the bundle holds Dynamo's entries too."""
    device: str = "auto"
    """"auto", "cpu" or "cuda"."""
    target: str | None = None
    """A shipped profile's name or a profile's file; None is the device at hand."""
    compile_only: bool = False
    """Whether to stop when the candidates are compiled, and pack their kernels."""
    recorded: Path | None = None
    """A file of times that others recorded, which stand for the device's."""
    target_env: Path | None = None
    """The environment that will serve: this one must be the same."""
    search: str = "default"
    """"default", "exhaustive", or "smart": some of the exhaustive list."""
    backends: tuple[str, ...] | None = None
    """Of an accelerator, as Inductor names them; None: all that the vendor has."""
    ops: tuple[str, ...] = ("gemm",)
    """"gemm", and of an AMD GPU "rmsnorm" and "topk", which torch runs by itself."""
    budget: Budget | None = None
    """What it may take; None: as much as it does. Of a fleet, all of it."""
    gpu_hour_price: float | None = None
    """Of one GPU; None where nobody says."""
    exclude: frozenset[str] = frozenset()
    """Hashes of candidates that may not be tried."""
    sign: bool = True
    """Whether the bundle is signed."""
    key: Path | None = None
    """The private key that signs it; None: the user's own, made where there is none."""
    trust: Trust = HERE
    """Whose older bundle is taken."""
    command: tuple[str, ...] = ()
    """The words that asked for the build, for its provenance."""
    keep: bool = False
    """Whether the output may exist: a fleet keeps what it has built before."""
    fresh: bool = False
    """Whether what an earlier build of the same thing left is thrown away."""
    timing: TimingPlan = TimingPlan()  # noqa: RUF009 - frozen
    deadlines: Deadlines = Deadlines()  # noqa: RUF009 - frozen

    @property
    def whose(self) -> tuple[str, ...]:
        """The words of what stands for a model, where none is named."""
        return () if self.model or self.by_hand else self.bake_cmd or self.vllm

    @property
    def space(self) -> str:
        """Inductor's name of the lists, `max_autotune_gemm_search_space`."""
        return "DEFAULT" if self.search == "default" else "EXHAUSTIVE"

    @property
    def runs_nothing(self) -> bool:
        """Whether no candidate is launched, so that no device is needed."""
        return self.compile_only or self.recorded is not None

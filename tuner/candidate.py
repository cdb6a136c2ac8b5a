"""A candidate kernel, the list that Inductor offered it in, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from flytune.caches.records import Status
from flytune.shapes.gemm import GemmShape

ATEN = "aten"
CPP = "cpp"
FLYDSL = "flydsl"
TRITON = "triton"

TIMED = "timed"
"""The source of what was timed here; others' times name their file."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a GEMM as Inductor lays it out; sizes in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    """Such as "bfloat16"."""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Packing:
    """How a C++ candidate wants its second operand, as its template packs it."""

    template: str
    """Class in `torch._inductor.codegen`: "CppGemmTemplate" or "CppBmmTemplate"."""
    micro_gemm: str
    """Class in `torch._inductor.codegen.cpp_micro_gemm`."""
    blocked: bool
    """Whether B is cut into column blocks of `register_blocking[1]`."""
    register_blocking: tuple[int, int, int]
    """Rows, columns and depth of the micro kernel's block."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel that Inductor would consider."""

    backend: str
    template: str
    config: str
    """Canonical JSON of the template's parameters."""
    choice_hash: str
    """Inductor's own name of it in the timings file."""
    request: bytes
    """Inductor's `BenchmarkRequest`, pickled; it holds no tensor, and for C++ the
    source."""
    packing: Packing | None = None
    source: str = ""
    """For Triton the module that holds the kernel; the request names its path. For
    FlyDSL the rendered template."""
    build_key: str = ""
    """For FlyDSL: candidates of one key are one build, whatever their lists."""


ListKey = tuple[str, str, str, tuple[str, ...]]
"""As `CandidateList.key`."""


@dataclass(frozen=True, slots=True)
class CandidateList:
    """One list of candidates, as one lowering of the program offered it."""

    op: str
    """Inductor's name, such as "linear_binary"; part of the timings file's key."""
    inputs_key: str
    precision: str
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    candidates: tuple[Candidate, ...]
    piece: str
    """The piece of the program that was being lowered."""
    tokens: int
    module: str = ""
    """Module that calls it, where the graph still says so."""
    declined: str = ""
    """Why there is no FlyDSL candidate, where the policy asks for it."""

    @property
    def key(self) -> ListKey:
        """What makes two lists the same decision."""
        hashes = tuple(sorted(c.choice_hash for c in self.candidates))
        return (self.op, self.inputs_key, self.precision, hashes)


@dataclass(frozen=True, slots=True)
class Enumeration:
    """What the probe found, and the keys of the software that it ran."""

    lists: tuple[CandidateList, ...]
    torch_key: str
    triton_key: str | None
    """None where Triton is not installed."""
    system: Mapping[str, Any]
    """What Inductor names its timings file after."""
    unlisted: Mapping[str, str] = field(default_factory=dict)
    """Why a planned GEMM is in no list, by `isolated.piece_name`."""


def stored_form() -> dict[str, list[str]]:
    """Return the fields of all that an enumeration holds, by class.

    Lists are kept on disk, and those of another form cannot be read.
    """
    kinds = (Enumeration, CandidateList, Candidate, TensorSpec, Packing)
    return {kind.__name__: [f.name for f in fields(kind)] for kind in kinds}


@dataclass(frozen=True, slots=True)
class TuneTask:
    """One decision to make: a list, the GEMM it computes, and who calls it."""

    shape: GemmShape
    """Its `count` is of all modules, the rest of it the first's."""
    offered: CandidateList
    modules: tuple[str, ...]
    """Every module whose GEMM offered this very list."""
    counts: tuple[int, ...] = ()
    """Calls of each in one forward pass of the whole model; empty where not known."""
    calls: int = 1
    """Times that the program's pieces ask for this decision."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A built candidate or why there is none; never both."""

    choice_hash: str
    status: Status
    reason: str = ""
    compile_s: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What the runner's cache directory must hold, by relative path."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The times of one candidate, or why there are none."""

    choice_hash: str
    status: Status
    reason: str = ""
    samples_us: tuple[float, ...] = ()
    """One a round; a round's sample is the mean of its inner repeats."""
    rel_error: float | None = None
    """Largest difference from the reference over the reference's largest value."""
    method: str = ""
    beaten: bool = False
    """Whether it left the race early, surely slower than another."""
    cost_the_process: bool = False
    """Whether the device's process had to be replaced."""
    disturbed: bool = False
    """Whether the device was not itself while it was timed, however often."""
    clock_mhz: float | None = None
    """Of the device, while it was timed."""
    device_uuid: str | None = None
    source: str = TIMED
    """Where the samples come from."""
    canary_us: float | None = None
    """As the record's: of the batch."""
    batch_s: float | None = None
    """As the record's."""


_NO_MEMORY = ("allocate memory", "out of memory")


def failure(error: BaseException, otherwise: Status) -> tuple[Status, str]:
    """Return the status and the reason of an exception that a candidate raised.

    Args:
        otherwise: The status of an exception that says nothing in particular.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = next((line for line in lines if "error" in line.lower()), "")
    words = (found or (lines[0] if lines else "no message"))[:300]
    reason = f"{type(error).__name__}: {words}"
    # torch's allocators raise errors of many names, Triton an OutOfResources of its
    # own, which Inductor passes on in the words of others.
    if isinstance(error, MemoryError) or any(said in words for said in _NO_MEMORY):
        return Status.OUT_OF_MEMORY, reason
    if "OutOfResources" in reason or "out of resource" in words:
        return Status.OVER_RESOURCES, reason
    return otherwise, reason

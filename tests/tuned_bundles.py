"""Bundles of made-up records: lists that were tuned once, and once more."""

import hashlib
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from small_bundles import small_bundle

from flytune.caches.bundle import Bundle
from flytune.caches.manifest import Manifest, canonical_json
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, Status, TuningRecord, write_records
from flytune.shapes.gemm import GemmShape

CANARY_US = 100.0
HARDWARE: Mapping[str, Any] = {
    "kind": "cuda",
    "vendor": "nvidia",
    "product": "NVIDIA H200",
    "arch": "sm_90",
    "memory_bytes": 1,
}
SOFTWARE: Mapping[str, Any] = {
    "torch": "2.15.0",
    "torch_key": "ab",
    "triton": "3.9.0",
    "triton_key": "cd",
    "cuda": "13.0",
    "driver": "580.1",
    "python_abi": "cp311",
}
POLICY: Mapping[str, Any] = {
    "name": "max-autotune-no-cudagraphs",
    "tokens": [1, 16],
    "threads": 1,
    "attention": "sdpa",
    "device": "cuda",
    "dynamic": False,
    "inductor": {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"},
    "dynamo": {"recompile_limit": 8},
    "env": {"OMP_NUM_THREADS": "1"},
    "portable_keys": True,
}
VERIFIED: Mapping[str, Any] = {"ok": True, "failures": []}


@dataclass(frozen=True)
class Made:
    """One candidate: what it is, and how long it takes."""

    time_us: float
    backend: str = "triton"
    template: str | None = "triton_mm"
    config: Mapping[str, Any] = field(default_factory=dict)
    status: Status = Status.OK
    digest: str | None = "its name"
    """Of its kernel; "its name" for one made of what it is."""

    @property
    def name(self) -> str:
        return f"{self.backend}-{self.template}-{canonical_json(self.config).decode()}"

    def slower(self, share: float) -> "Made":
        return replace(self, time_us=self.time_us * (1 + share))


def aten(time_us: float, **more: Any) -> Made:
    return Made(time_us, "aten", "mm", digest=None, **more)


def triton(time_us: float, block: int = 64, **more: Any) -> Made:
    return Made(time_us, config={"BLOCK_M": block}, **more)


def usual(time_us: float) -> tuple[Made, ...]:
    """A list with a clear winner of Triton's, and four more kernels."""
    return (
        triton(time_us),
        aten(1.2 * time_us),
        *(triton((1.2 + 0.1 * n) * time_us, 64 * n) for n in (2, 3, 4)),
    )


def shape(number: int, m: int = 16, **more: Any) -> GemmShape:
    module = f"model.layers.*.linear_{number}"
    return GemmShape("mm", m, 1024 * (number + 1), 4096, module=module, **more)


@dataclass
class Tune:
    """One tune: a process, in which times are a little off in ways of its own."""

    seed: int
    spread: float = 0.003
    """Of a list's times together, and of a kernel's by themselves."""
    rounds: int = 15
    noise: float = 0.003
    canary_us: float = CANARY_US

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def list_of(
        self, gemm: GemmShape, kernels: Sequence[Made], **columns: Any
    ) -> list[TuningRecord]:
        together = self._random.gauss(0, self.spread)
        records = [self._record(gemm, kernel, together, columns) for kernel in kernels]
        timed = [r for r in records if r.median_us is not None]
        winner = min(timed, key=lambda r: r.median_us or 0, default=records[0])
        return [replace(r, winner=r is winner, baked=r is winner) for r in records]

    def _record(
        self, gemm: GemmShape, kernel: Made, together: float, columns: Mapping[str, Any]
    ) -> TuningRecord:
        own = together + self._random.gauss(0, self.spread)
        middle = kernel.time_us * (1 + own)
        ok = kernel.status is Status.OK
        samples = tuple(
            middle * (1 + self._random.gauss(0, self.noise))
            for _ in range(self.rounds if ok else 0)
        )
        median = statistics.median(samples) if samples else None
        digest = hashlib.sha256(kernel.name.encode()).hexdigest()
        whole: dict[str, Any] = {
            "backend": kernel.backend,
            "template": kernel.template,
            "config": canonical_json(kernel.config).decode().strip(),
            "choice_hash": f"{kernel.name}-{gemm}",
            "status": kernel.status,
            "reason": None if ok else "no luck",
            "median_us": median,
            "samples_us": samples,
            "rounds": len(samples) or None,
            "source": "timed" if samples else None,
            "kernel_digest": digest if kernel.digest == "its name" else kernel.digest,
            "canary_us": self.canary_us,
            "inductor_op": "mm",
            "inputs_key": str(gemm),
            "precision": "highest",
        }
        return TuningRecord.of_shape(gemm, **(whole | columns))


def bundle(
    folder: Path,
    records: Sequence[TuningRecord],
    *,
    files: Mapping[str, bytes] | None = None,
    kernels: bool = True,
    **changes: Any,
) -> Path:
    """Pack records into an unsigned bundle, by the manifest of a small one.

    `kernels` is whether it holds a kernel of Triton's, `changes` are the manifest's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / "tuned"
    staged.mkdir()
    kernel = {"inductor/triton/k": b"kernel"} if kernels else {}
    for name, content in {**kernel, **(files or {})}.items():
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
        (staged / name).write_bytes(content)
    write_records(records, staged / RECORDS_NAME)
    plain = Bundle.open(small_bundle(folder, signed=False)).manifest
    whole: dict[str, Any] = {
        "model": {"name": "tiny", "tp": 1, "ep": 1, "engine": "transformers"},
        "policy": POLICY,
        "target": {"hardware": HARDWARE, "software": SOFTWARE},
        "timed_on": "NVIDIA H200",
        "bake": {"passes": [{}], "settled": True, "remaining": {}},
        "verify": VERIFIED,
        "files": {},
    }
    manifest: Manifest = replace(plain, **(whole | changes))
    return pack(staged, manifest, folder / "tuned.tar.zst", keys=[])


def tuned(
    folder: Path,
    tune: Tune,
    lists: Mapping[GemmShape, Sequence[Made]],
    **changes: Any,
) -> Path:
    """Tune lists once and pack them."""
    records = [r for gemm, some in lists.items() for r in tune.list_of(gemm, some)]
    return bundle(folder, records, **changes)


def three_lists() -> dict[GemmShape, tuple[Made, ...]]:
    """Two shapes at 16 tokens, one at 1, each called in each of 4 layers."""
    return {
        shape(0, count=4): usual(20.0),
        shape(1, count=4): usual(40.0),
        shape(1, m=1, count=4): usual(15.0),
    }

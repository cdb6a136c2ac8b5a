"""Stage 1: what will be tuned, whether it fits, and where the build is kept."""

import hashlib
import importlib.metadata
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flytune.caches.command import CommandSpec
from flytune.caches.compat import require_torch
from flytune.caches.device_profile import (
    DeviceProfile,
)
from flytune.caches.policy import ServingPolicy
from flytune.caches.program import ProgramSpec
from flytune.caches.target import Target
from flytune.caches.vllm_program import VllmSpec
from flytune.shapes.by_hand import HandList
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape
from flytune.shapes.model_config import ModelConfig
from flytune.tuner.candidate import stored_form
from flytune.tuner.isolated import why_unlisted
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan_device import device_for
from flytune.tuner.plan_gemms import list_gemms, worth_building
from flytune.tuner.plan_program import policy_of, program_of
from flytune.tuner.plan_vllm import plan_vllm
from flytune.tuner.unreached import is_cut_short

GIB = 2**30
# torch, transformers and what compiling takes, beside the weights.
_PROCESS_BYTES = 2.5 * GIB
# The timed GEMM's weight: as made, packed twice, and one being packed.
_TIMED_COPIES = 4
_VERSIONED = ("transformers", "flytune")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one build."""

    model: ModelConfig | HandList
    shapes: tuple[GemmShape, ...]
    program: ProgramSpec | CommandSpec | None
    """What is baked; None where isolated shapes stand for it, and nothing is."""
    policy: ServingPolicy
    target: Target
    profile: DeviceProfile | None
    """Of the accelerator that is built for; None for the CPU."""
    needed_bytes: int
    """Memory that the largest stage takes, roughly."""
    work: Path
    """This build's own directory: the same build finds it again."""
    out: Path
    """Where the bundle will be."""
    left_out: tuple[GemmShape, ...] = ()
    """GEMMs of the model that serving does not ask Inductor for, and not built."""


def make_plan(options: BuildOptions) -> Plan:
    """Derive the shapes and refuse early what cannot end well.

    Raises:
        FlytuneError: the model is unknown, torch unsupported, Inductor is asked for
            none of its GEMMs, the output exists or cannot be written, or memory is
            short.
    """
    require_torch()
    profile = device_for(options)
    eager = profile is None and options.engine == "transformers"
    attention = options.attention or ("eager" if eager else "sdpa")
    model, listed = list_gemms(options, attention, profile)
    program, kinds = program_of(options, profile, model, attention)
    policy = policy_of(options, model, attention, profile, kinds)
    target, out = _out(options, model, profile)
    if not options.keep and not is_cut_short(out):
        check_output(out)
    if isinstance(program, VllmSpec):
        policy, factors = plan_vllm(options.vllm, policy)
        program = replace(program, factors=factors)
    shapes, left_out = worth_building(listed, options)
    _check_listed(shapes)
    needed = needed_bytes(shapes, policy, program)
    _check_memory(shapes, needed, profile)
    rows = [shape.to_row() for shape in shapes]
    made = rows if program is None else program.to_json()
    work = options.work / _own_name(model.name, made, policy, target, options)
    return Plan(
        *(model, shapes, program, policy, target, profile, needed, work, out),
        left_out=left_out,
    )


def _out(
    options: BuildOptions, model: ModelConfig | HandList, profile: DeviceProfile | None
) -> tuple[Target, Path]:
    """Return what is built for, and where the bundle will be."""
    hardware = None if profile is None else profile.hardware()
    target = Target.here(threads=options.threads, hardware=hardware)
    name = _bundle_name(options, model)
    return target, options.out or Path(f"{name}.{target.slug}.tar.zst")


def _bundle_name(options: BuildOptions, model: ModelConfig | HandList) -> str:
    """Return how a bundle's file begins where nobody names it."""
    if options.by_hand is not None:
        return options.by_hand.stem.lower()
    return Path(options.model or model.name).name.lower().removesuffix(".json")


def _own_name(
    model: str, made: Any, policy: ServingPolicy, target: Target, options: BuildOptions
) -> str:
    """Return the name of the directory that this very build finds again.

    Args:
        made: What the lists of candidates come from, as JSON.
    """
    identity = {
        "program": made,
        "policy": policy.to_json(),
        "target": target.to_json(),
        "search": options.search,
        # Whose program, and whose lists of candidates, the work directory holds.
        "form": stored_form(),
        "versions": [importlib.metadata.version(name) for name in _VERSIONED],
    }
    return f"{model.lower()}-{_digest(identity)}"


def needed_bytes(
    shapes: tuple[GemmShape, ...],
    policy: ServingPolicy,
    program: ProgramSpec | CommandSpec | None,
) -> int:
    """Return the memory of the largest stage: a bake, or timing the largest GEMM.

    A bake holds one piece of the program; a frozen one besides a packed copy for each
    size and one more while it packs. All layers of a whole model lie in the memory of
    one, but are packed each by itself.
    """
    if program is None:  # fake tensors take none
        return int(_PROCESS_BYTES)
    weights: dict[str, int] = {}
    for shape in shapes:
        if shape.op != "bmm":
            elements = shape.n * shape.k * max(1, shape.groups)
            weights[shape.module] = elements * _BYTES.get(shape.b_dtype, 4)
    layer = sum(size for module, size in weights.items() if "layers." in module)
    head = sum(weights.values()) - layer
    # The embedding is of the head's size.
    largest = max(weights.values(), default=0)
    if isinstance(program, CommandSpec):  # what it takes nobody knows
        return int(_PROCESS_BYTES + largest * _TIMED_COPIES)
    piece = layer + 2 * head if program.bake == "model" else max(layer, head)
    packed = 0
    if policy.frozen:
        each = program.depth * layer + head if program.bake == "model" else piece
        packed = each * (1 + len(policy.tokens))
    bake = piece + packed + _logits_bytes(shapes) + _cache_bytes(program)
    return int(_PROCESS_BYTES + max(bake, largest * _TIMED_COPIES))


def _cache_bytes(program: ProgramSpec) -> int:
    """Keys and values of decoding's static caches, one for each size."""
    config = program.config
    heads = int(config.get("num_attention_heads") or 1)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = config.get("head_dim") or int(config.get("hidden_size", 0)) // heads
    positions = sum(program.decode) * program.context * program.depth
    return 2 * positions * kv_heads * int(head_dim) * _BYTES.get(program.dtype, 4)


def _logits_bytes(shapes: tuple[GemmShape, ...]) -> int:
    """Two outputs of the largest GEMM and a slice of them in float32."""
    return max((s.m * s.n * s.batch for s in shapes), default=0) * 2 * 4


def free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that this process may still take, by kernel and cgroup."""
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = (cgroup / "memory.stat").read_text().split()
    except (OSError, ValueError):  # no cgroup, or "max": no limit
        return free
    # Pages of files that were read count as used, but are given back when needed.
    counted = dict(zip(stat[::2], map(int, stat[1::2]), strict=True))
    return min(free, limit - used + counted.get("inactive_file", 0))


def _check_listed(shapes: tuple[GemmShape, ...]) -> None:
    """Refuse a plan of which nothing can be tuned; what can be is, beside the rest."""
    reasons = {shape.module: why_unlisted(shape) for shape in shapes}
    if reasons and all(reasons.values()):
        raise FlytuneError(
            f"nothing to tune, {', '.join(dict.fromkeys(reasons.values()))}: "
            f"`{'`, `'.join(reasons)}`",
            hint="--quant bf16, fp8, fp8_rowwise, mxfp8 and mxfp4 can be tuned",
        )


def _check_memory(
    shapes: tuple[GemmShape, ...], needed: int, profile: DeviceProfile | None
) -> None:
    free, there_is = free_bytes(), "free"
    if profile is not None:
        free, there_is = int(profile.properties["total_memory"]), "on the device"
    if needed > free:
        largest = max(shapes, key=lambda s: s.n * s.k + s.m * s.n * s.batch)
        raise FlytuneError(
            f"no memory for {largest.module} {largest}: the build takes about "
            f"{needed / GIB:.1f} GiB and {free / GIB:.1f} GiB are {there_is}",
            hint="free memory, or build fewer or smaller --tokens",
        )


def check_output(out: Path) -> None:
    """Refuse at once what the bundle could not be published as.

    Raises:
        FlytuneError: it exists, or its directory is absent or cannot be written to.
    """
    if out.exists() or out.is_symlink():
        raise FlytuneError(
            f"output exists: {out}", hint="remove it, or give another --out"
        )
    parent = out.parent
    if not parent.is_dir():
        raise FlytuneError(f"no directory for the output: {parent}")
    try:
        # Asking for permission is not enough: a mount may refuse what its mode allows.
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise FlytuneError(
            f"output cannot be written: {parent}: {error.strerror}"
        ) from error


def _digest(identity: Mapping[str, Any]) -> str:
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]

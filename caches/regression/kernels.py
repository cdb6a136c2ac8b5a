"""Which candidates of two bundles are one kernel."""

from flytune.caches.lists import TunedList
from flytune.caches.records import TuningRecord

SOFTWARE = (
    *("torch", "torch_git", "torch_key", "triton", "triton_key", "cuda", "hip"),
    *("flydsl", "compiler"),
)
"""Parts of a target's software that make or are kernels."""


def code_key(
    record: TuningRecord, *, same_software: bool
) -> tuple[str | None, ...] | None:
    """Return what two candidates have in common that are the same machine code.

    Either their compiled files are the same, or nothing was compiled for them (a
    library's kernel), Inductor names them alike and the software is the same.

    Args:
        same_software: Whether both bundles have the same of each of `SOFTWARE`.

    Returns:
        The key; None where nothing shows what code it is.
    """
    if record.kernel_digest is not None:
        return (record.kernel_digest,)
    if not same_software:
        return None
    return (record.backend, record.template, record.config, record.choice_hash)


def is_same(old: TuningRecord, new: TuningRecord, *, same_software: bool) -> bool:
    """Whether two candidates are surely the same machine code, as `code_key` says."""
    key = code_key(old, same_software=same_software)
    return key is not None and key == code_key(new, same_software=same_software)


def is_alike(old: TuningRecord, new: TuningRecord) -> bool:
    """Whether two candidates are one choice, perhaps compiled by other software.

    Inductor's hash is not asked: it holds torch's sources.
    """
    return (old.backend, old.template, old.config) == (
        new.backend,
        new.template,
        new.config,
    )


def counterpart(
    record: TuningRecord, other: TunedList, *, same_software: bool
) -> TuningRecord | None:
    """Return the candidate of another list that is the same, else one that is alike."""
    for candidate in other.records:
        if is_same(record, candidate, same_software=same_software):
            return candidate
    return next((c for c in other.records if is_alike(record, c)), None)


def kernel_name(record: TuningRecord) -> str:
    """Name a candidate for a person: its backend, template and parameters."""
    names = " ".join(filter(None, (record.backend, record.template)))
    return names if record.config in ("", "{}") else f"{names} {record.config}"

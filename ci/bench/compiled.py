"""`flytune build --compile-only` itself, in a process of its own.

The command runs as a user's does. Only where it keeps what is compiled is replaced, so
that builds of one target share it as the lists of one build do; and it may be held to
some candidates of one list.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from processes import answer, fresh
from stages import BUILD, BUILT, LISTS, Searched, Shape, hold

from flytune.caches.bundle import Bundle
from flytune.caches.compat import wrap
from flytune.caches.records import TuningRecord, read_records
from flytune.tuner.candidate import FLYDSL
from flytune.tuner.publish import RECORDS_NAME

_DIGITS = 12


def compile_model(
    arguments: Sequence[str],
    work: Path,
    out: Path,
    *,
    only: Shape | None = None,
    candidates: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Build in a fresh process; return its lists, and what became of each candidate.

    Args:
        arguments: Of `flytune build`, but --work and --out.
        work: Directory of the builds, which go on there and share what is compiled.
        out: The bundle.
        only: Compile the first list of this shape alone.
        candidates: First of its candidates and the one after the last; None is all.

    Raises:
        FlytuneError: the build failed.
    """
    request = {
        "arguments": [*arguments, "--work", str(work), "--out", str(out)],
        "built": str(work / BUILT),
        "out": str(out),
        "only": None if only is None else [list(only)],
        "candidates": candidates,
    }
    result: dict[str, Any] = fresh("compiled", request, what="the build")
    return result


def list_model(arguments: Sequence[str], work: Path) -> Path:
    """List the candidates of a build in a fresh process; return the file of them.

    Args:
        arguments: Of `flytune build`, but --work and --out.
        work: Directory of the build, which ends when they are listed; it is made.

    Raises:
        FlytuneError: the build failed.
    """
    work.mkdir(exist_ok=True)
    more = ["--work", str(work), "--out", str(work / "bundle")]
    request = {"arguments": [*arguments, *more], "lists": True}
    return Path(fresh("compiled", request, what="the build")["lists"])


def _list(request: dict[str, Any]) -> dict[str, Any]:
    """Answer `list_model`."""
    found: list[Path] = []

    def kept(inner: Callable[..., Any]) -> Callable[..., Any]:
        def make_plan(*args: Any) -> Any:
            plan = inner(*args)
            found.append(plan.work / LISTS)
            return plan

        return make_plan

    def ended(_: Callable[..., Any]) -> Callable[..., Any]:
        def join(*_: Any) -> Any:
            raise Searched

        return join

    wrap(BUILD, "make_plan", kept)
    wrap(BUILD, "join", ended)
    from flytune.tuner.cli import main

    with contextlib.suppress(Searched):
        main(["build", *request["arguments"]], standalone_mode=False)
    return {"lists": str(found[0])}


def _build(request: dict[str, Any]) -> dict[str, Any]:
    """Answer `compile_model`."""
    hold(request["only"])
    _cut(request["candidates"])
    _share(Path(request["built"]))
    from flytune.tuner.cli import main

    # It exits 1 where a kernel is not found, which the manifest says too.
    main(["build", *request["arguments"]], standalone_mode=False)
    return _result(Path(request["out"]))


def _cut(candidates: list[int] | None) -> None:
    """Hold every list to some of its candidates, which stay as they are."""
    if candidates is None:
        return
    wanted = slice(*candidates)

    def cut(inner: Callable[..., Any]) -> Callable[..., Any]:
        def join(*args: Any) -> Any:
            coverage = inner(*args)
            tasks = (
                replace(
                    task,
                    offered=replace(
                        task.offered, candidates=task.offered.candidates[wanted]
                    ),
                )
                for task in coverage.tasks
            )
            return replace(coverage, tasks=tuple(tasks))

        return join

    wrap(BUILD, "join", cut)


def _share(built: Path) -> None:
    """Keep what is compiled in a directory that all builds of the target have."""
    built.mkdir(parents=True, exist_ok=True)

    def shared(inner: Callable[..., Any]) -> Callable[..., Any]:
        def make_plan(*args: Any) -> Any:
            plan = inner(*args)
            plan.work.mkdir(parents=True, exist_ok=True)
            link = plan.work / BUILT
            link.unlink(missing_ok=True)
            link.symlink_to(built)
            return plan

        return make_plan

    wrap(BUILD, "make_plan", shared)


def _result(out: Path) -> dict[str, Any]:
    bundle = Bundle.open(out)
    folder = out.with_name(f"{out.name}.records")
    bundle.place(folder, only=[RECORDS_NAME])
    records = read_records(folder / RECORDS_NAME)
    manifest = bundle.manifest
    lists: dict[str, list[TuningRecord]] = {}
    for record in records:
        lists.setdefault(_list_id(record), []).append(record)
    verify = manifest.verify or {}
    return {
        "lists": {name: _list_row(some) for name, some in lists.items()},
        "kernels": _kernels(records),
        "unlisted": manifest.coverage["missing"],
        "declined": manifest.coverage["declined"],
        "found": verify.get("lookups", {}).get("flydsl hit", 0),
        "not_found": verify.get("failures", []),
    }


def _list_id(record: TuningRecord) -> str:
    """Return a short name of a record's list, the same in every build."""
    key = (record.inductor_op, record.inputs_key, record.precision)
    return _short(repr(key))


def _list_row(records: Sequence[TuningRecord]) -> dict[str, Any]:
    first = records[0]
    counts: dict[str, Counter[str]] = {}
    for record in records:
        kind = f"{record.backend} {record.op} {record.scaling or record.a_dtype}"
        counts.setdefault(kind, Counter())[str(record.status)] += 1
    reasons = {f"{r.status}: {r.reason}": None for r in records if r.reason}
    return {
        "shape": f"{first.op} ({first.m}, {first.n}, {first.k})",
        "counts": counts,
        "reasons": list(reasons),
    }


def _kernels(records: Iterable[TuningRecord]) -> dict[str, dict[str, float]]:
    """Return the seconds that each kernel took to compile, once, by backend.

    A FlyDSL kernel may be that of several candidates.
    """
    found: dict[str, dict[str, float]] = {}
    for record in records:
        if record.kernel_digest is not None:
            shared = record.backend == FLYDSL
            name = _short(record.kernel_digest if shared else record.choice_hash)
            seconds = round(record.compile_s or 0.0, 3)
            found.setdefault(record.backend, {})[name] = seconds
    return found


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    return _list(request) if "lists" in request else _build(request)


if __name__ == "__main__":
    answer(_answer)

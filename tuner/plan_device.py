"""Which accelerator a build is for, and whether it can be built for here."""

import os

from flytune.caches.codes import Code
from flytune.caches.device_profile import (
    DeviceProfile,
    find_profile,
    live_profile,
)
from flytune.shapes.errors import FlytuneError
from flytune.tuner.eligibility import require_flydsl
from flytune.tuner.options import BuildOptions
from flytune.tuner.vendors import AMD, VENDORS

# `is_big_gpu` in torch/_inductor/utils.py: a smaller one gets no templates.
_LEAST_UNITS = 68
AMD_ARCHS = ("gfx950",)


def device_for(options: BuildOptions) -> DeviceProfile | None:
    """Return the profile of the accelerator to build for; None for the CPU.

    Raises:
        FlytuneError: it is not here, unknown, or none that can be built for.
    """
    if options.target is not None:
        profile: DeviceProfile | None = _target(options)
    elif options.device == "cpu":
        profile = None
    else:
        profile = live_profile()
        if profile is None and options.device != "auto":
            raise FlytuneError(
                "no accelerator here, or torch cannot use it",
                hint="name one with --target and --compile-only, or --device cpu",
            )
    if profile is None and options.runs_nothing:
        raise FlytuneError(
            "nothing to compile for: --compile-only and --runner are for accelerators",
            hint="name one with --target",
        )
    if profile is not None:
        _check_tunable(profile, options)
    _check_ops(options, profile)
    return profile


def _target(options: BuildOptions) -> DeviceProfile:
    """Return the profile that --target names.

    Raises:
        FlytuneError: there is none, or it is not the device here, to be timed on.
    """
    assert options.target is not None
    if options.device == "cpu":
        raise FlytuneError(
            f"--device cpu and --target contradict each other: {options.target}"
        )
    profile = find_profile(options.target)
    if not options.runs_nothing:
        live = live_profile()
        if live is None or not live.is_same(profile):
            found = "no accelerator" if live is None else live.product
            raise FlytuneError(
                f"the target is not here to be timed on: {options.target}, here is "
                f"{found}",
                hint="compile for it with --compile-only",
            )
    return profile


def _check_tunable(profile: DeviceProfile, options: BuildOptions) -> None:
    if profile.vendor not in VENDORS:
        raise FlytuneError(
            f"no builds for devices of this vendor: {profile.vendor}",
            hint="build for the CPU with --device cpu",
        )
    if profile.vendor == "amd":
        _check_amd(profile, options)
    elif "FLYDSL" in (options.backends or ()):
        raise FlytuneError(f"FlyDSL is for AMD GPUs, and this is {profile.product}")
    if small := is_small(profile):
        raise FlytuneError(small, code=Code.SMALL_GPU)
    if options.policy == "frozen":
        raise FlytuneError(
            f"the frozen policy is for CPUs, and this is for {profile.product}",
            hint="leave --policy out, or build for the CPU with --device cpu",
        )


def _check_amd(profile: DeviceProfile, options: BuildOptions) -> None:
    if not options.runs_nothing:
        AMD.refuse_other_masks(os.environ)
    if profile.arch not in AMD_ARCHS:
        raise FlytuneError(
            f"no builds for this architecture: {profile.arch}",
            hint=f"known are {', '.join(AMD_ARCHS)}",
        )
    if _wants_flydsl(options):
        require_flydsl(profile.arch)


def _check_ops(options: BuildOptions, profile: DeviceProfile | None) -> None:
    """Refuse ops that the device has no kernels of FlyDSL's for.

    Raises:
        FlytuneError: there are none for it.
    """
    amd = profile is not None and profile.vendor == "amd"
    for op in options.ops:
        if op != "gemm" and not (amd and _wants_flydsl(options)):
            raise FlytuneError(
                f"only FlyDSL has kernels to prebuild for --ops {op}, on an AMD GPU",
                hint="leave it out, or build with --target mi355x",
            )


def _wants_flydsl(options: BuildOptions) -> bool:
    """Whether FlyDSL is among the backends of an AMD GPU: by default it is."""
    return options.backends is None or "FLYDSL" in options.backends


def is_small(profile: DeviceProfile) -> str:
    """Say that Inductor does not tune on so small a device; nothing if it does."""
    units = int(profile.properties["multi_processor_count"])
    if units >= _LEAST_UNITS:
        return ""
    return (
        f"Inductor does not tune on so small a device: {profile.product} has {units} "
        f"multiprocessors, and {_LEAST_UNITS} are needed"
    )

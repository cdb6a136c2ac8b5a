"""A stand-in for an accelerator that this host does not have.

With it Inductor lists, and Triton compiles, for the device of a profile: the program is
made of fake tensors, and no kernel can run. Every interface of torch and Triton that
would ask the driver is replaced here, nowhere else.
"""

import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flytune.caches.compat import private, wrap
from flytune.caches.device_profile import DeviceProfile
from flytune.shapes.errors import FlytuneError

_INTERFACE = "torch._dynamo.device_interface"
_VENDORS = ("nvidia", "amd")
# Where FlyDSL looks for the architecture; without it, it takes an older one.
_FLYDSL_ARCH = "FLYDSL_GPU_ARCH"
_standing: DeviceProfile | None = None


def stand_in_environment(profile: DeviceProfile) -> dict[str, str]:
    """Return the variables that a process must have for the device to stand in."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    return hidden | ({_FLYDSL_ARCH: profile.arch} if profile.vendor == "amd" else {})


def take_build(profile: DeviceProfile) -> None:
    """Say that this torch is a build for the profile's vendor, before Inductor asks.

    Inductor does so when it is imported: heuristics, settings and the name of its
    timings file follow from it. `stand_in` does this too; apart it is for a process
    that sets Inductor's configuration in between.

    Raises:
        FlytuneError: Inductor is imported already, or FlyDSL would take another
            architecture.
    """
    if profile.vendor != "amd":
        return
    if os.environ.get(_FLYDSL_ARCH) != profile.arch:
        raise FlytuneError(
            f"{_FLYDSL_ARCH} must be {profile.arch} for {profile.product} to stand in"
        )
    torch = importlib.import_module("torch")
    if torch.version.hip is not None:  # a build for AMD, or taken for one already
        return
    if any(name.startswith("torch._inductor") for name in sys.modules):
        raise FlytuneError(
            f"{profile.product} cannot stand in: Inductor is imported already and "
            f"took this torch for a build for another vendor"
        )
    torch.version.hip = profile.captured_with["hip"]
    torch.version.rocm = profile.captured_with.get("rocm")
    # With CUDA's version the timings file would be named after that.
    torch.version.cuda = None


def stand_in(profile: DeviceProfile) -> None:
    """Let this process take the profile's device for device 0, for good.

    Raises:
        FlytuneError: this torch or Triton lacks an interface that must be replaced,
            another device stands in already, or as `take_build` raises it.
    """
    global _standing
    if profile == _standing:
        return
    if _standing is not None:
        raise FlytuneError(f"another device stands in already: {_standing.product}")
    if profile.vendor not in _VENDORS:
        raise FlytuneError(f"no stand-in for devices of this vendor: {profile.vendor}")
    take_build(profile)
    _standing = profile
    _replace_torch(profile)
    _replace_interface(profile)
    _replace_attention()
    _replace_padding()
    _fold_on_host()
    set_triton_target(profile)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Make tensors that have shapes and a device and no memory, in this thread."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def set_triton_target(profile: DeviceProfile) -> None:
    """Give Triton a driver that knows its target and nothing else.

    Raises:
        FlytuneError: this Triton has no such interface.
    """
    target = private("triton.backends.compiler", "GPUTarget")[2]
    driver = private("triton.runtime", "driver")[2]
    warp = int(profile.properties["warp_size"])
    backend = "hip" if profile.vendor == "amd" else "cuda"
    gpu_target = target(backend, _compute_capability(profile), warp)
    limits = {
        "max_shared_mem": profile.max_shared_bytes,
        "multiprocessor_count": int(profile.properties["multi_processor_count"]),
        "warpSize": warp,
    }

    def device() -> Any:
        return importlib.import_module("torch").device("cuda", 0)

    driver.set_active(
        types.SimpleNamespace(
            get_current_target=lambda: gpu_target,
            get_current_device=lambda: 0,
            get_current_stream=lambda _=0: 0,
            get_active_torch_device=device,
            get_device_interface=lambda: importlib.import_module("torch.cuda"),
            is_active=lambda: True,
            utils=types.SimpleNamespace(get_device_properties=lambda _: limits),
        )
    )
    # Inductor would look for a real one at each kernel.
    owner, name, _ = private(
        "torch._inductor.runtime.triton_helpers", "set_driver_to_gpu"
    )
    setattr(owner, name, lambda: None)


def _compute_capability(profile: DeviceProfile) -> int | str:
    """Return what Inductor and Triton call so: a number, or AMD's architecture."""
    major, minor = profile.capability
    return profile.arch if profile.vendor == "amd" else 10 * major + minor


def _replace_torch(profile: DeviceProfile) -> None:
    properties = types.SimpleNamespace(**profile.properties)
    memory = int(profile.properties["total_memory"])
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda _=None: properties,
        "get_device_capability": lambda _=None: profile.capability,
        "get_device_name": lambda _=None: profile.product,
        "mem_get_info": lambda _=None: (memory, memory),
        "synchronize": lambda *_: None,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda _=None: _no_state(),
        "set_rng_state": lambda *_: None,
        "_lazy_init": lambda: None,
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
    }
    for name, answer in answers.items():
        owner, attribute, _ = private("torch.cuda", name)
        setattr(owner, attribute, answer)
    graphs, attribute, _ = private("torch.cuda.graphs", "is_current_stream_capturing")
    setattr(graphs, attribute, lambda: False)
    # Dynamo asks this one for the device's current stream.
    accelerator, attribute, _ = private("torch.accelerator", "is_available")
    setattr(accelerator, attribute, lambda: False)
    # As on a host without CUDA, fake tensors must keep away from the driver.
    private("torch._C", "_ensureCUDADeviceGuardSet")[2]()
    fake = "torch._subclasses.fake_tensor"
    mode, attribute, _ = private(fake, "FakeTensorMode.avoid_device_init")
    setattr(mode, attribute, True)
    module: Any = importlib.import_module(fake)
    if hasattr(module, "init_gpu_context"):
        # A fake tensor's device is made ready by a real tensor.
        module.init_gpu_context = lambda *_: None


def _replace_interface(profile: DeviceProfile) -> None:
    interface = private(_INTERFACE, "CudaInterface")[2]
    properties = types.SimpleNamespace(**profile.properties)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_compute_capability": lambda _=None: _compute_capability(profile),
        "get_device_properties": lambda _=None: properties,
        "is_triton_capable": lambda _=None: True,
        "raise_if_triton_unavailable": lambda _=None: None,
        "get_raw_stream": lambda _=None: 0,
        "synchronize": lambda *_: None,
        "exchange_device": lambda _: 0,
        "maybe_exchange_device": lambda _: 0,
    }
    for name, answer in answers.items():
        private(_INTERFACE, f"CudaInterface.{name}")
        setattr(interface, name, staticmethod(answer))
    for name in ("get_device_properties", "current_device"):
        private(_INTERFACE, f"CudaInterface.Worker.{name}")
        setattr(interface.Worker, name, staticmethod(answers[name]))


def _replace_attention() -> None:
    """Take the attention that torch would ask the driver whether it can.

    Which fused kernel it is changes no GEMM around it.
    """
    import torch

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if enable_gqa:
            groups = query.shape[1] // key.shape[1]
            key = key.repeat_interleave(groups, 1)
            value = value.repeat_interleave(groups, 1)
        if attn_mask is not None:
            # The fastest that takes one; it is added to the scores.
            bias = attn_mask
            if bias.dtype == torch.bool:
                bias = torch.zeros_like(bias, dtype=query.dtype)
                bias = bias.masked_fill(attn_mask.logical_not(), float("-inf"))
            bias = bias.expand(*query.shape[:-1], key.shape[-2])
            efficient = torch.ops.aten._scaled_dot_product_efficient_attention
            mine = (query, key, value, bias, False, dropout_p, is_causal)
            return efficient(*mine, scale=scale)[0]
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]

    torch.nn.functional.scaled_dot_product_attention = attention


def _replace_padding() -> None:
    """Leave operands as they are where torch would time whether to pad them.

    It does so for sizes that are no multiple of 8 in what is bound by computing; what
    the device would say, nobody here can know.
    """
    owner, name, _ = private(
        "torch._inductor.fx_passes.pad_mm", "get_cached_should_pad"
    )
    setattr(owner, name, lambda _: False)
    utils: Any = importlib.import_module("torch._inductor.utils")
    if hasattr(utils, "_current_accelerator_device"):  # torch 2.15, not 2.11
        device = private("torch", "device")[2]
        utils._current_accelerator_device = lambda: device("cuda", 0)


def _fold_on_host() -> None:
    """Compute on the CPU what Inductor folds into constants: it makes real tensors."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class OnHost(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = dict(kwargs or {})
            if given.get("device") is not None:
                given["device"] = torch.device("cpu")
            return func(*args, **given)

    mode: Any = OnHost

    def on_host(inner: Callable[..., Any]) -> Callable[..., Any]:
        def deduce(self: Any, node: Any) -> Any:
            with mode():
                return inner(self, node)

        return deduce

    folder = "UniformValueConstantFolder._deduce_value"
    wrap("torch._inductor.fx_passes.joint_graph", folder, on_host)


def _no_state() -> Any:
    import torch

    return torch.zeros(16, dtype=torch.uint8)

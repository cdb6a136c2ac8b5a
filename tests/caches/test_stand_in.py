"""What torch and Triton say of a device that is not here, in processes of their own."""

import json

import pytest
from builds import run_python

from flytune.caches.device_profile import find_profile
from flytune.caches.stand_in import stand_in_environment

H200 = find_profile("h200")
MI355X = find_profile("mi355x")
START = """
import json, sys
from dataclasses import replace
from flytune.caches.device_profile import find_profile
from flytune.caches.stand_in import fake_tensors, stand_in, take_build
from flytune.shapes.errors import FlytuneError
profile = find_profile({name!r})

def refusal(of, take=stand_in):
    try:
        take(of)
    except FlytuneError as error:
        return str(error)
"""

REFUSALS = """
other = {**profile.properties, "name": "NVIDIA H100"}
import torch
said = [refusal(replace(profile, vendor="intel")), torch.cuda.is_available()]
said += [refusal(profile), refusal(profile), torch.cuda.is_available()]
said += [refusal(replace(profile, properties=other)), torch.cuda.get_device_name()]
said += [refusal(replace(profile, vendor="intel"))]
print(json.dumps(said))
"""

DEVICE = """
stand_in(profile)
import torch
from torch._dynamo.device_interface import get_interface_for_device
from torch._inductor.utils import is_big_gpu
from torch.utils._triton import has_triton
from triton.runtime import driver
interface = get_interface_for_device("cuda")
properties = torch.cuda.get_device_properties(0)
print(json.dumps({
    "available": [torch.cuda.is_available(), interface.is_available(), has_triton()],
    "count": [torch.cuda.device_count(), interface.device_count()],
    "current": [torch.cuda.current_device(), interface.current_device()],
    "name": [torch.cuda.get_device_name(0), properties.name],
    "capability": torch.cuda.get_device_capability(),
    "compute": interface.get_compute_capability(),
    "units": [properties.multi_processor_count,
              interface.get_device_properties().multi_processor_count,
              interface.Worker.get_device_properties().multi_processor_count,
              driver.active.utils.get_device_properties(0)["multiprocessor_count"]],
    "memory": list(torch.cuda.mem_get_info()),
    "shared": driver.active.utils.get_device_properties(0)["max_shared_mem"],
    "target": str(driver.active.get_current_target()),
    "big": is_big_gpu(0),
}))
"""

TENSORS = """
stand_in(profile)
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

def make(heads):
    return torch.empty(1, heads, 16, 64, device="cuda", dtype=torch.bfloat16)

with fake_tensors():
    a = torch.empty(64, 2**40, device="cuda", dtype=torch.bfloat16)
    b = torch.nn.Linear(128, 256, device="cuda", dtype=torch.bfloat16)
    out = b(torch.randn(4, 128, device="cuda", dtype=torch.bfloat16))
    print(a.device, out.device, tuple(out.shape), out.dtype)
    q, k = make(8), make(2)
    print(tuple(attention(q, q, q, is_causal=True).shape))
    print(tuple(attention(q, k, k, enable_gqa=True).shape))
    seen = torch.ones(1, 1, 16, 16, device="cuda", dtype=torch.bool)
    print(tuple(attention(q, k, k, attn_mask=seen, enable_gqa=True).shape))
print(type(torch.empty(1)).__name__)
"""

# A release of torch without one of the interfaces.
LACKING = """
import torch
del torch.cuda.mem_get_info
try:
    stand_in(profile)
except FlytuneError as error:
    print(error)
"""


AMD = """
import torch
print(json.dumps([torch.version.hip, torch.version.cuda]))
early = [name for name in sys.modules if name.startswith("torch._inductor")]
stand_in(profile)
stand_in(profile)
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.codecache import CacheBase
device = DeviceProperties.create(torch.device("cuda", 0))
system = CacheBase.get_system()
print(json.dumps({
    "early": early,
    "versions": [torch.version.hip, torch.version.rocm, torch.version.cuda],
    "properties": [device.type, device.cc, device.major, device.warp_size],
    "device": system["device"],
    "hip": system["version"].get("hip"),
    "refused": refusal(find_profile("h200")),
}))
"""

LATE = """
import torch._inductor.config
print(refusal(profile), refusal(profile, take_build), torch.version.hip)
"""


def said(code: str, name: str = "h200") -> str:
    env = stand_in_environment(find_profile(name))
    return run_python(START.format(name=name) + code, env=env)


def test_what_cannot_stand_in_is_refused() -> None:
    vendor = "no stand-in for devices of this vendor: intel"
    second = "another device stands in already: NVIDIA H200"
    assert json.loads(said(REFUSALS)) == [
        *(vendor, False, None, None, True, second, "NVIDIA H200", second),
    ]


def test_every_interface_tells_the_same_device() -> None:
    row = json.loads(said(DEVICE))
    assert set(row.pop("available")) == {True}
    assert row.pop("units") == [132] * 4
    assert row == {
        "count": [1, 1],
        "current": [0, 0],
        "name": ["NVIDIA H200"] * 2,
        "capability": [9, 0],
        "compute": 90,
        "memory": [150109880320] * 2,
        "shared": H200.max_shared_bytes,
        "target": "GPUTarget(backend='cuda', arch=90, warp_size=32)",
        "big": True,
    }


def test_every_interface_tells_the_same_device_of_amd() -> None:
    row = json.loads(said(DEVICE, "mi355x"))
    assert set(row.pop("available")) == {True}
    assert row.pop("units") == [256] * 4
    assert row == {
        "count": [1, 1],
        "current": [0, 0],
        "name": ["AMD Instinct MI355X"] * 2,
        "capability": [9, 5],
        "compute": "gfx950",
        "memory": [309220868096] * 2,
        "shared": MI355X.max_shared_bytes,
        "target": "GPUTarget(backend='hip', arch='gfx950', warp_size=64)",
        "big": True,
    }


def test_inductor_takes_torch_for_a_build_for_amd() -> None:
    before, after = map(json.loads, said(AMD, "mi355x").splitlines())
    assert before[0] is None
    hip, rocm = (MI355X.captured_with[name] for name in ("hip", "rocm"))
    assert after == {
        "early": [],
        "versions": [hip, rocm, None],
        "properties": ["hip", "gfx950", 9, 64],
        "device": {"name": "gfx950:sramecc+:xnack-"},
        "hip": hip,
        "refused": "another device stands in already: AMD Instinct MI355X",
    }


def test_amd_stands_in_before_inductor_or_not_at_all() -> None:
    late = (
        "AMD Instinct MI355X cannot stand in: Inductor is imported already and took "
        "this torch for a build for another vendor"
    )
    assert said(LATE, "mi355x") == f"{late} {late} None\n"


@pytest.mark.parametrize("arch", ["", "gfx942"])
def test_flydsl_must_be_told_the_architecture(arch: str) -> None:
    code = START.format(name="mi350x") + "print(refusal(profile))"
    line = run_python(code, env={"FLYDSL_GPU_ARCH": arch})
    assert line == (
        "FLYDSL_GPU_ARCH must be gfx950 for AMD Instinct MI350X to stand in\n"
    )


def test_a_process_is_told_what_it_needs() -> None:
    assert stand_in_environment(H200) == {"CUDA_VISIBLE_DEVICES": ""}
    assert stand_in_environment(MI355X) == {
        "CUDA_VISIBLE_DEVICES": "",
        "FLYDSL_GPU_ARCH": "gfx950",
    }


def test_tensors_have_no_memory_and_attention_is_the_fused_kernel() -> None:
    assert said(TENSORS).splitlines() == [
        "cuda:0 cuda:0 (4, 256) torch.bfloat16",
        *("(1, 8, 16, 64)", "(1, 8, 16, 64)"),
        "(1, 8, 16, 64)",
        # Outside, a tensor is a tensor.
        "Tensor",
    ]


def test_a_torch_that_lacks_an_interface_is_told() -> None:
    line = said(LACKING)
    assert "changed a private interface that flytune uses" in line
    assert "`torch.cuda.mem_get_info`" in line


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_the_module_itself_imports_neither(name: str) -> None:
    assert said(f"print({name!r} in sys.modules)") == "False\n"

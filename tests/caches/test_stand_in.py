"""What torch and Triton say of a device that is not here, in processes of their own."""

import json

import pytest
from builds import run_python

from flytune.caches.device_profile import find_profile

H200 = find_profile("h200")
# No process of these tests can see a device.
BLIND = {"CUDA_VISIBLE_DEVICES": ""}
START = """
import json, sys
from dataclasses import replace
from flytune.caches.device_profile import find_profile
from flytune.caches.stand_in import fake_tensors, stand_in
from flytune.shapes.errors import FlytuneError
profile = find_profile("h200")
"""

REFUSALS = """
def refusal(of):
    try:
        stand_in(of)
    except FlytuneError as error:
        return str(error)

other = {**profile.properties, "name": "NVIDIA H100"}
import torch
said = [refusal(replace(profile, vendor="amd")), torch.cuda.is_available()]
said += [refusal(profile), refusal(profile), torch.cuda.is_available()]
said += [refusal(replace(profile, properties=other)), torch.cuda.get_device_name()]
said += [refusal(replace(profile, vendor="amd"))]
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
    "capability": [list(torch.cuda.get_device_capability()),
                   list(divmod(interface.get_compute_capability(), 10))],
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
    try:
        attention(q, q, q, attn_mask=torch.ones(16, 16, device="cuda"))
    except FlytuneError as error:
        print(error)
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


def said(code: str) -> str:
    return run_python(START + code, env=BLIND)


def test_what_cannot_stand_in_is_refused() -> None:
    amd = "no stand-in for devices of this vendor: amd"
    second = "another device stands in already: NVIDIA H200"
    assert json.loads(said(REFUSALS)) == [
        *(amd, False, None, None, True, second, "NVIDIA H200", second),
    ]


def test_every_interface_tells_the_same_device() -> None:
    row = json.loads(said(DEVICE))
    assert set(row.pop("available")) == {True}
    assert row.pop("units") == [132] * 4
    assert row == {
        "count": [1, 1],
        "current": [0, 0],
        "name": ["NVIDIA H200"] * 2,
        "capability": [[9, 0]] * 2,
        "memory": [150109880320] * 2,
        "shared": H200.max_shared_bytes,
        "target": "GPUTarget(backend='cuda', arch=90, warp_size=32)",
        "big": True,
    }


def test_tensors_have_no_memory_and_attention_is_the_fused_kernel() -> None:
    assert said(TENSORS).splitlines() == [
        "cuda:0 cuda:0 (4, 256) torch.bfloat16",
        *("(1, 8, 16, 64)", "(1, 8, 16, 64)"),
        "no stand-in for attention with a mask",
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

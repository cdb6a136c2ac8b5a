from dataclasses import replace
from pathlib import Path

import pytest

from flytune.caches.device_profile import find_profile
from flytune.shapes.errors import FlytuneError
from flytune.tuner.masks import CUDA, HIP, MASKS, ROCR
from flytune.tuner.vendors import AMD, NVIDIA, VENDORS, DeviceId, Vendor

BOTH = pytest.mark.parametrize("vendor", VENDORS.values(), ids=list(VENDORS))
MIB = 2**20


@BOTH
def test_one_device_behind_one_mask_is_taken(vendor: Vendor) -> None:
    for value in ("0", "7", "GPU-5f0c"):
        vendor.require_mask({vendor.mask: value, "HOME": "/root"})


@BOTH
@pytest.mark.parametrize(
    ("value", "said"), [(None, "unset"), ("", "``"), ("0,1", "`0,1`")]
)
def test_a_mask_that_shows_no_one_device_is_refused(
    vendor: Vendor, value: str | None, said: str
) -> None:
    environ = {} if value is None else {vendor.mask: value}
    with pytest.raises(FlytuneError) as caught:
        vendor.require_mask(environ)
    assert str(caught.value) == f"{vendor.mask} must name one device: {said}"


@pytest.mark.parametrize(
    ("others", "unset"), [((CUDA,), CUDA), ((ROCR,), ROCR), ((CUDA, ROCR), None)]
)
def test_on_amd_another_mask_beside_its_own_is_refused(
    others: tuple[str, ...], unset: str | None
) -> None:
    environ = {HIP: "0"} | dict.fromkeys(others, "0")
    for check in (AMD.require_mask, AMD.refuse_other_masks):
        with pytest.raises(FlytuneError) as caught:
            check(environ)
        words = ", ".join(f"{name}=0" for name in others)
        assert str(caught.value) == f"devices are hidden by more than {HIP}: {words}"
        hint = f"name them by {HIP}, and unset {unset or f'{CUDA} and {ROCR}'}"
        assert caught.value.hint == hint


def test_an_nvidia_gpu_obeys_no_mask_of_amds() -> None:
    NVIDIA.require_mask(dict.fromkeys(MASKS, "0"))


def test_weights_must_beat_the_cache_behind_l2() -> None:
    h200, mi355x = find_profile("h200"), find_profile("mi355x")
    assert NVIDIA.cache_bytes(h200) == h200.properties["L2_cache_size"] == 60 * MIB
    assert AMD.cache_bytes(mi355x) == 256 * MIB
    larger = {**mi355x.properties, "L2_cache_size": 512 * MIB}
    assert AMD.cache_bytes(replace(mi355x, properties=larger)) == 512 * MIB


def test_partitions_of_one_gpu_are_locked_together() -> None:
    first, second = (DeviceId(f"GPU-{n}", "0000:c1:00.0") for n in (1, 2))
    assert AMD.lock_name(first) == AMD.lock_name(second)
    assert NVIDIA.lock_name(first) != NVIDIA.lock_name(second)
    assert Path(AMD.lock_name(first)).name == AMD.lock_name(first)


@BOTH
def test_without_a_vendors_library_readings_are_empty(vendor: Vendor) -> None:
    # With the real libraries, or with the real lack of them.
    nowhere = DeviceId("GPU-00000000-0000-0000-0000-000000000000", "ffff:ff:1f.0")
    assert str(vendor.telemetry(nowhere).read()) == ""

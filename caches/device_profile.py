"""What a kernel's source and key hold of an accelerator, as data.

Captured on a real device, a profile lets a host without one list and compile the very
candidates that the device will be asked for (`stand_in`). One that was written by hand
lets it list and compile as well; whether the device asks for these very kernels is
known once it has been asked.

`python -m flytune.caches.device_profile RESULT` writes the profile of device 0.
"""

import functools
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, get_args

from flytune.caches.amd_device import BOARD, board_of, product_of
from flytune.caches.child import plain_environment, run_module
from flytune.caches.host import Part, installed
from flytune.shapes.errors import FlytuneError

MODULE = "flytune.caches.device_profile"
Origin = Literal["device", "written"]
_SIMPLE = (bool, int, float, str)
# Of a driver that a process of this host could open.
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
# Properties that hold how much of something the device has.
_COUNTS = (
    *("major", "warp_size", "multi_processor_count"),
    *("L2_cache_size", "total_memory"),
)
# Parts of the hardware that Inductor's and Triton's keys and sources hold.
_SAME = ("kind", "vendor", "product", "arch", "compute_units")
# Fields that a profile may lack.
_OPTIONAL = frozenset({"origin", "board"})
# Of the one device, not of its kind.
_OF_ONE_DEVICE = frozenset({"uuid", "pci_bus_id", "pci_device_id", "pci_domain_id"})


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One kind of accelerator as torch describes it."""

    kind: str
    """torch's device type: "cuda"."""
    vendor: str
    """"nvidia" or "amd"."""
    arch: str
    """"sm_90", or "gfx950"."""
    properties: Mapping[str, Any]
    """The public fields of `torch.cuda.get_device_properties`; sizes in bytes."""
    max_shared_bytes: int
    """Shared memory that one block may opt in to."""
    captured_with: Mapping[str, str]
    """The software at the capture: `python_abi`, versions and keys of torch and
    Triton; for AMD the versions `hip` and `rocm`, which a written profile has too."""
    origin: Origin = "device"
    """Whether it was captured on a device or written by hand."""
    board: Mapping[str, str | int] = field(default_factory=dict)
    """What the vendor's own library tells besides, as `AmdDevice.board` has it."""

    @property
    def product(self) -> str:
        """The device's name, part of Inductor's keys."""
        return str(self.properties["name"])

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA's compute capability."""
        return int(self.properties["major"]), int(self.properties["minor"])

    def hardware(self) -> dict[str, Part]:
        """Return the parts of a target that has this device."""
        return {
            "kind": self.kind,
            "vendor": self.vendor,
            "product": self.product,
            "arch": self.arch,
            "compute_units": int(self.properties["multi_processor_count"]),
            "l2_bytes": int(self.properties["L2_cache_size"]),
            "memory_bytes": int(self.properties["total_memory"]),
            **self.board,
        }

    def is_same(self, other: "DeviceProfile") -> bool:
        """Whether the other's kernels are this one's too, under the same keys.

        Its memory may differ: drivers keep more or less of it to themselves.
        """
        mine, theirs = self.hardware(), other.hardware()
        return all(mine[name] == theirs[name] for name in _SAME)

    def to_json(self) -> dict[str, Any]:
        """Return the file's form."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Any) -> Self:
        """Read the file's form.

        Raises:
            FlytuneError: it is not the form of a profile.
        """
        needed = {field.name for field in fields(cls)} - _OPTIONAL
        if not isinstance(row, Mapping) or set(row) - _OPTIONAL != needed:
            names = ", ".join(sorted(needed))
            raise FlytuneError(f"device profile is malformed: it holds {names}")
        profile = cls(**row)
        for name, sound in profile._parts():
            if not sound:
                raise FlytuneError(f"device profile is malformed: `{name}`")
        return profile

    def _parts(self) -> Iterator[tuple[str, bool]]:
        """Yield what others rely on, by name, and whether it is as they need it."""
        yield "kind", self.kind == "cuda"
        for name in ("vendor", "arch"):
            yield name, _is_text(getattr(self, name))
        yield "max_shared_bytes", _is_count(self.max_shared_bytes)
        software = self.captured_with
        texts = isinstance(software, Mapping) and all(map(_is_text, software.values()))
        yield "captured_with", texts
        yield "origin", self.origin in get_args(Origin)
        board = self.board
        yield "board", isinstance(board, Mapping) and board.keys() <= BOARD
        yield "board", all(_is_text(part) or _is_count(part) for part in board.values())
        yield "captured_with.hip", self.vendor != "amd" or (texts and "hip" in software)
        properties = self.properties
        yield "properties", isinstance(properties, Mapping)
        yield "name", _is_text(properties.get("name"))
        minor = properties.get("minor")
        yield "minor", minor == 0 or _is_count(minor)
        for name in _COUNTS:
            yield name, _is_count(properties.get(name))


def shipped_profiles() -> dict[str, Path]:
    """Return the profiles that come with flytune, by the name that --target takes."""
    folder = Path(str(resources.files("flytune.caches"))) / "profiles"
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def find_profile(target: str) -> DeviceProfile:
    """Return the profile of a shipped name, any case, or of a file.

    Raises:
        FlytuneError: there is none, or the file is no profile.
    """
    shipped = shipped_profiles()
    path = shipped.get(target.lower(), Path(target))
    try:
        row = json.loads(path.read_text())
    except OSError as error:
        raise FlytuneError(
            f"no such target: `{target}`",
            hint=f"known are {', '.join(shipped)}, or give a file that "
            "`flytune doctor --profile` wrote",
        ) from error
    except (ValueError, RecursionError) as error:
        raise FlytuneError(f"device profile is not JSON: {path}") from error
    return DeviceProfile.from_json(row)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def may_have_accelerator() -> bool:
    """Whether this host has the driver of one; asked without torch."""
    return any(map(os.path.exists, _DEVICE_FILES))


@functools.cache
def live_profile() -> DeviceProfile | None:
    """Return the profile of this process's first visible accelerator, if any.

    Asked in a child: a process that has begun to use a device cannot let go of it.

    Raises:
        FlytuneError: torch cannot be asked.
    """
    if not may_have_accelerator():
        return None
    with tempfile.TemporaryDirectory(prefix="flytune-device-") as directory:
        result = Path(directory) / "profile.json"
        run_module(MODULE, {}, result, plain_environment(), what="asking for devices")
        row = json.loads(result.read_text())
    return None if row is None else DeviceProfile.from_json(row)


def capture() -> DeviceProfile:
    """Return the profile of the first device that this process can use.

    Raises:
        RuntimeError: CUDA cannot use the device.
    """
    import torch

    from flytune.caches import inductor

    raw = torch.cuda.get_device_properties(0)
    properties = {
        name: value
        for name in dir(raw)
        if not name.startswith("_") and name not in _OF_ONE_DEVICE
        if isinstance(value := getattr(raw, name), _SIMPLE)
    }
    hip = torch.version.hip is not None
    # AMD's may be empty there; its keys do not hold it.
    properties["name"] = product_of(raw)
    return DeviceProfile(
        kind="cuda",
        vendor="amd" if hip else "nvidia",
        arch=_arch(properties, hip),
        properties=properties,
        max_shared_bytes=_max_shared(properties),
        captured_with={
            "python_abi": str(sysconfig.get_config_var("SOABI")),
            "torch": str(torch.__version__),
            "torch_key": inductor.torch_key(),
            "triton": installed("triton"),
            "triton_key": inductor.triton_key(),
            **_hip_versions(),
        },
        board=board_of(raw) if hip else {},
    )


def _hip_versions() -> dict[str, str]:
    """Return what torch was built with for AMD; nothing for NVIDIA."""
    import torch

    # torch 2.11 does not tell ROCm's.
    versions = {name: getattr(torch.version, name, None) for name in ("hip", "rocm")}
    return {name: str(value) for name, value in versions.items() if value is not None}


def _max_shared(properties: Mapping[str, Any]) -> int:
    """Return what Triton's driver asks for, which needs a C compiler to be asked."""
    opt_in = properties.get("shared_memory_per_block_optin")
    return int(opt_in or properties["shared_memory_per_block"])


def _arch(properties: Mapping[str, Any], hip: bool) -> str:
    if hip:
        return str(properties["gcnArchName"]).partition(":")[0]
    return f"sm_{properties['major']}{properties['minor']}"


def main() -> None:
    """Write the profile of the first visible device, or null, to the file named."""
    import torch

    found = capture() if torch.cuda.is_available() else None
    text = json.dumps(None if found is None else found.to_json())
    Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()

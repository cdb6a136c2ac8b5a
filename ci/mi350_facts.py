"""What `ci/mi350.sh` asks of files that flytune wrote; each exits 1 with a reason."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from flytune.caches.bundle import Bundle
from flytune.caches.device_profile import DeviceProfile, find_profile
from flytune.caches.held import records_of
from flytune.tuner.candidate import ATEN, FLYDSL, TRITON

ARCH = "gfx950"
SHIPPED = ("mi355x", "mi350x")


def not_gfx950(captured: Path) -> Iterator[str]:
    """Yield why a captured profile is of no MI350."""
    found = find_profile(str(captured))
    if found.arch != ARCH:
        yield f"no MI350 or MI355X: {found.product} is {found.arch}, not {ARCH}"


def differs(captured: Path) -> Iterator[str]:
    """Yield each value in which a captured profile is not the shipped one's.

    Another value in a kernel's source or key, and serving finds none of the kernels
    that were compiled for the shipped one.
    """
    found = find_profile(str(captured))
    shipped = {one.product: one for one in map(find_profile, SHIPPED)}
    if found.product not in shipped:
        yield f"no shipped profile is of this name: {found.product}"
    expected = _values(shipped.get(found.product, find_profile(SHIPPED[0])))
    here = _values(found)
    for name, value in expected.items():
        if here.get(name) != value:
            yield f"{name}: shipped {value}, here {here.get(name)}"


def _values(profile: DeviceProfile) -> dict[str, object]:
    versions = {name: profile.captured_with.get(name) for name in ("hip", "rocm")}
    own = {"arch": profile.arch, "max_shared_bytes": profile.max_shared_bytes}
    return {**own, **profile.properties, **versions}


def not_of_program(bundle: Path) -> Iterator[str]:
    """Yield why a bundle was not tuned from its program, with all three backends."""
    opened = Bundle.open(bundle)
    enumerated = opened.manifest.coverage["enumerated"]
    if enumerated != "program":
        yield f"its lists are of the {enumerated}, not of the program"
    records = records_of(opened)
    timed = {record.backend for record in records if record.median_us is not None}
    for backend in (ATEN, TRITON, FLYDSL):
        if backend not in timed:
            yield f"no candidate of this backend was timed: {backend}"


QUESTIONS: dict[str, Callable[[Path], Iterator[str]]] = {
    "arch": not_gfx950,
    "profile": differs,
    "program": not_of_program,
}


def main() -> None:
    """Answer `QUESTION FILE`."""
    question, path = sys.argv[1:]
    reasons = list(QUESTIONS[question](Path(path)))
    for reason in reasons:
        print(f"error: {reason}")
    sys.exit(1 if reasons else 0)


if __name__ == "__main__":
    main()

"""`flytune doctor`: what of this host decides a build, before hours are spent."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flytune.caches.words import counted

if TYPE_CHECKING:
    from flytune.caches.device_profile import DeviceProfile
    from flytune.caches.target import PartResult
    from flytune.tuner.findings import Finding


@click.command("doctor")
@click.argument("bundle", required=False)
@click.option(
    "--profile",
    type=click.Path(readable=False, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the first accelerator's profile, which --target takes on a host "
    "without one.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line")
def doctor_command(bundle: str | None, profile: Path | None, as_json: bool) -> None:
    """Say what this host is, what would be tuned, and whether flytune can work here.

    Of BUNDLE say part by part whether it is for this host, and in the last line whether
    it is; nothing is placed.

    Exits 1 if something is wrong, with a line for each; what is only to be known is
    a note. Of BUNDLE it exits 1 if a part misses, and if it cannot be read.
    """
    from flytune.caches.device_profile import live_profile
    from flytune.tuner.findings import findings

    if bundle is not None:
        _compare(bundle, as_json)
        return
    live = live_profile()
    if profile is not None:
        _write_profile(profile, live)
        return
    found = findings(live)
    _tell_host(live, as_json)
    _tell_findings(found, as_json)
    if any(finding.level == "wrong" for finding in found):
        raise click.exceptions.Exit(1)


def _write_profile(path: Path, live: "DeviceProfile | None") -> None:
    from flytune.caches.output import write_through
    from flytune.shapes.errors import FlytuneError

    if live is None:
        raise FlytuneError("no accelerator here, or torch cannot use it")
    if path.exists():
        raise FlytuneError(f"output exists: {path}", hint="remove it")
    write_through(path, f"{json.dumps(live.to_json(), indent=2)}\n".encode())
    click.echo(f"profile  {live.product}: {path}")


def _tell_host(live: "DeviceProfile | None", as_json: bool) -> None:
    from flytune.caches.target import Target
    from flytune.tuner.support import support_lines

    target = Target.live("cpu" if live is None else live.kind, threads=None)
    tuned = would_tune(live)
    if as_json:
        click.echo(json.dumps({"row": "host", **target.to_json()}))
        click.echo(json.dumps({"row": "build", **tuned}))
        return
    for name, value in {**target.hardware, **target.software}.items():
        if value is not None:
            text = " ".join(value) if isinstance(value, tuple) else value
            click.echo(f"{name:<15} {text}")
    click.echo("\nflytune build --model M would take:")
    for name, value in tuned.items():
        click.echo(f"{name:<15} {value}")
    click.echo("\n" + "\n".join(support_lines()))


def would_tune(live: "DeviceProfile | None") -> Mapping[str, Any]:
    """Return what a build without options tunes here.

    Args:
        live: The accelerator at hand.
    """
    from flytune.caches.home import flytune_home
    from flytune.caches.policy import CUDA_POLICY

    device = "the CPU" if live is None else live.product
    candidates = "ATen and C++" if live is None else "ATen and Triton"
    if live is not None and live.vendor == "amd":
        candidates = "ATen, Triton and FlyDSL"
    return {
        "device": device,
        "policy": "unfrozen" if live is None else CUDA_POLICY,
        "candidates": candidates,
        "tokens": "1 to 256 by powers of two",
        "threads": len(os.sched_getaffinity(0)),
        "work": str(flytune_home() / "work"),
    }


def _tell_findings(found: "Sequence[Finding]", as_json: bool) -> None:
    from flytune.caches.codes import EXPLAINED

    for level, code, text in found:
        action = EXPLAINED[code].action
        if as_json:
            row = {"row": level, "code": code, "text": text, "action": action}
            click.echo(json.dumps(row))
        else:
            click.echo(f"{level}: {text} ({code})\nhint: {action}", err=True)


def _compare(path: str, as_json: bool) -> None:
    """Tell how this host stands to a bundle's target; end with 1 if it would miss."""
    from flytune.caches.bundle import Bundle
    from flytune.caches.target import PartStatus
    from flytune.caches.variants import code_of

    parts = compared(Bundle.open(path).manifest)
    for part in parts:
        code = code_of(part)
        if as_json:
            click.echo(
                json.dumps(
                    {
                        **{"row": "part", "part": part.part, "status": part.status},
                        **{"built": part.built, "live": part.live},
                        **{"code": code, "reason": part.reason},
                    }
                )
            )
        elif part.status is PartStatus.HIT:
            click.echo(f"hit      {part.part}")
        elif code is None:
            click.echo(f"{part.status:<8} {part}; {part.reason}")
        else:
            click.echo(f"{part.status:<8} {part} ({code}); {part.reason}")
    missed = [part for part in parts if part.status is PartStatus.MISS]
    codes = sorted({str(code) for part in missed if (code := code_of(part))})
    differing = sum(part.status is PartStatus.WARNING for part in parts)
    if as_json:
        row = {"row": "verdict", "fits": not missed, "misses": len(missed)}
        click.echo(json.dumps({**row, "warnings": differing, "codes": codes}))
    else:
        click.echo(f"verdict  {_verdict(len(missed), differing, codes)}")
    if missed:
        raise click.exceptions.Exit(1)


def _verdict(missed: int, differing: int, codes: Sequence[str]) -> str:
    if missed:
        parts = counted(missed, "part")
        return f"miss: {parts} not as built: not used here ({', '.join(codes)})"
    besides = f"; {counted(differing, 'warning')}" if differing else ""
    return f"hit: the bundle is for this host{besides}"


def compared(manifest: Any) -> "tuple[PartResult, ...]":
    """Compare this host, its torch asked in a process of its own, with a bundle.

    Raises:
        FlytuneError: torch cannot be asked.
    """
    from flytune.caches.target import Target
    from flytune.caches.target_env import asked
    from flytune.caches.variants import compare_parts, refusals

    kind = str(manifest.target["hardware"].get("kind"))
    live = Target.live(kind, threads=manifest.policy.get("threads"))
    keys = asked(Path(sys.executable))
    known = {name: keys.get(name) for name in ("torch_key", "triton_key")}
    live = replace(live, software={**live.software, **known})
    return (*refusals(manifest), *compare_parts(manifest, live))

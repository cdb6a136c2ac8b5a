"""`flytune doctor BUNDLE`: a host against a bundle's target, part by part."""

import json
import sys
from pathlib import Path

import pytest
from bundles import installable
from click.testing import CliRunner, Result

from flytune.caches.target import Target
from flytune.caches.target_env import asked
from flytune.tuner.cli import main


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def test_a_bundle_for_this_host_part_by_part(tmp_path: Path) -> None:
    key = asked(Path(sys.executable))["torch_key"]
    here = Target.here(threads=1, torch_key=key).to_json()
    here["hardware"]["l3_bytes"] = 1
    bundle = installable(tmp_path, target=here)
    result = doctor(bundle)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert "hit      hardware.isa" in lines
    assert "hit      software.torch_key" in lines
    (warning,) = (line for line in lines if line.startswith("warning"))
    assert warning.startswith("warning  hardware.l3_bytes: built for `1`, here `")
    assert warning.endswith("; no key holds it, times depend on it")
    assert lines[-1] == "verdict  hit: the bundle is for this host; 1 warning"
    assert list(tmp_path.glob("home/*")) == []


def test_a_bundle_for_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"torch_key": "cd" * 32, "triton_key": None}
    monkeypatch.setattr("flytune.caches.target_env.asked", lambda _: keys)
    target = Target.here(threads=1, torch_key="ab" * 32).to_json()
    target["hardware"]["isa"] = ["amx_tile"]
    rows, verdicts = {}, {}
    for name, more in (("b", {}), ("s", {"software": "stand-in"})):
        result = doctor(installable(tmp_path, name, target=target, **more), "--json")
        assert result.exit_code == 1
        *parts, verdict = map(json.loads, result.stdout.splitlines())
        rows[name] = {row["part"]: row for row in parts}
        verdicts[name] = verdict
    missed = {k: r["code"] for k, r in rows["b"].items() if r["status"] == "miss"}
    assert missed == {"hardware.isa": "FT101", "software.torch_key": "FT102"}
    assert rows["b"]["software.torch_key"]["built"] == "ab" * 32
    assert rows["s"]["software"]["code"] == "FT104"
    told = {"row": "verdict", "fits": False, "misses": 2, "warnings": 0}
    assert verdicts["b"] == {**told, "codes": ["FT101", "FT102"]}
    assert verdicts["s"]["codes"] == ["FT101", "FT102", "FT104"]
    # In words too, and of what is only compiled that it serves nothing.
    bake = {"passes": [], "settled": False, "remaining": {}}
    only = doctor(installable(tmp_path, "c", target=target, bake=bake))
    assert only.stdout.splitlines()[0].startswith(
        "miss     bundle: built for `another build`, here `serving` (FT103)"
    )
    assert only.stdout.splitlines()[-1] == (
        "verdict  miss: 3 parts not as built: not used here (FT101, FT102, FT103)"
    )

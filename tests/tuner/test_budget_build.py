"""A real build whose budget is too small, and the same one with a bigger budget."""

from pathlib import Path

import pytest
from builds import LLAMA, arguments_of, flytune, run_build, verified

from flytune.caches.bundle import Bundle
from flytune.caches.held import records_of


# Two builds and their verifications: on a busy host ten minutes are not enough.
@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_a_bundle_in_any_case_and_the_rest_with_the_same_command(
    tmp_path: Path,
) -> None:
    out, home = tmp_path / "b.tar.zst", tmp_path / "home"
    fixed = arguments_of(LLAMA, "1,8", "unfrozen", tmp_path / "work")
    cut = run_build((*fixed, "--budget", "1s"), out, home)
    assert "budget: 1s is less than it takes to tune nothing" in cut.log
    assert "budget  1s is too little: 2 of 2 lists were not reached" in cut.stdout
    assert verified(out)["ok"]
    bundle = Bundle.open(out)
    assert len(bundle.manifest.coverage["over_budget"]) == 2
    choices = [r for r in records_of(bundle) if r.pruned_by == "budget"]
    assert [r.backend for r in choices if r.winner] == ["aten", "aten"]
    explained = flytune(home, "explain", out, "8x64x8")
    assert "none was timed (the budget ended before it was timed)" in explained.stdout
    page = tmp_path / "r.html"
    assert flytune(home, "report", out, "--html", page).returncode == 0
    assert "not reached within the budget" in page.read_text()

    again = run_build((*fixed, "--budget", "1h"), out, home)
    assert "enumerate: lowering" not in again.log
    assert "tune: 2 lists to time, 0 known" in again.log
    assert "by 1 earlier build on this device" in again.log
    assert verified(out)["ok"]
    manifest = Bundle.open(out).manifest
    assert manifest.coverage["over_budget"] == []
    assert manifest.provenance["budget"]["unreached"] == 0
    # What is whole is in nobody's way to be replaced.
    refused = flytune(home, *fixed, "--budget", "1h", "--out", out)
    assert "error: output exists" in refused.stderr

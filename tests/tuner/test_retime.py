"""Both bundles' winners found here, compiled and raced, by workers that are fakes."""

import datetime
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from builds import flytune
from fakes import candidate, offered
from tuned_bundles import (
    HARDWARE,
    POLICY,
    SOFTWARE,
    Made,
    Tune,
    aten,
    bundle,
    shape,
    triton,
)

from flytune.caches.bundle import Bundle
from flytune.caches.columns import Status
from flytune.caches.held import records_of
from flytune.caches.keyring import own_key
from flytune.caches.lists import lists_of
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, TuningRecord, write_records
from flytune.caches.regression.check import Check, Outcome, Settings, check
from flytune.caches.regression.finding import Kind
from flytune.caches.regression.raced import LOOKS
from flytune.caches.regression.sides import Side, Sides
from flytune.caches.target import Target
from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import (
    BuildResult,
    Candidate,
    CandidateList,
    Enumeration,
    RunResult,
    TuneTask,
)
from flytune.tuner.progress import Progress
from flytune.tuner.relist import relisted, winners_in
from flytune.tuner.retime import Retimer
from flytune.tuner.timing import TimingPlan

TODAY = datetime.date(2026, 11, 30)
GEMM, BESIDE = shape(0), shape(1)
OLD, NEW = triton(20.0, 64), triton(30.0, 128)
TAKES = {OLD.name: 20.0, NEW.name: 20.0}
"""What kernels take here, in microseconds, by name."""


@dataclass
class Device:
    """Workers and a device of fakes: kernels take what they are said to."""

    takes: Mapping[str, float] = field(default_factory=lambda: TAKES)
    broken: Mapping[str, BuildResult] = field(default_factory=dict)
    fails: str = ""
    """A kernel that fails when it is run."""
    same_files: bool = False
    started: int = 0
    stopped: int = 0
    firsts: list[str] = field(default_factory=list)
    built: list[str] = field(default_factory=list)

    def build_all(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[BuildResult | None]:
        yield None
        for one in candidates:
            name = one.choice_hash
            self.built.append(name)
            content = b"kernel" if self.same_files else name.encode()
            done = BuildResult(name, Status.OK, files={"a/k.cubin": content})
            yield self.broken.get(name, done)

    def runners(self, device: Any, threads: int) -> tuple["Device"]:
        return (self,)

    def start(self) -> None:
        self.started += 1

    def stop(self) -> None:
        self.stopped += 1

    def run(
        self, task: TuneTask, builds: Sequence[BuildResult], plan: TimingPlan
    ) -> tuple[RunResult, ...]:
        names = {candidate.choice_hash for candidate in task.offered.candidates}
        assert names >= {build.choice_hash for build in builds}
        self.firsts.append(builds[0].choice_hash)
        return tuple(map(self._run, builds))

    def _run(self, one: BuildResult) -> RunResult:
        name = one.choice_hash.removesuffix(f"-{GEMM}")
        if name == self.fails:
            return RunResult(one.choice_hash, Status.FAULT, "it crashed")
        # A little off in each process.
        time_us = self.takes[name] * (1 + self.started / 1e4)
        samples = tuple(time_us + n / 1e3 for n in range(9))
        return RunResult(one.choice_hash, Status.OK, samples_us=samples)


def of_list(gemm: GemmShape, kernels: Sequence[Made]) -> CandidateList:
    """What Inductor would offer here."""
    found = []
    for made in kernels:
        one = candidate(f"{made.name}-{gemm}", made.backend, str(made.template))
        (row,) = Tune(0).list_of(gemm, [made])
        found.append(replace(one, config=row.config, packing=None))
    return offered(found, m=gemm.m, n=gemm.n, k=gemm.k)


def columns(gemm: GemmShape) -> dict[str, Any]:
    return {"strides": ((gemm.k, 1), (1, gemm.k)), "offsets": (0, 0)}


def bundle_of(folder: Path, kernel: Made, tune: Tune, **changes: Any) -> Path:
    """Two lists, of which the second never changes, tuned on this CPU."""
    records = [
        *tune.list_of(GEMM, [kernel], **columns(GEMM)),
        *tune.list_of(BESIDE, [triton(40.0)], **columns(BESIDE)),
    ]
    whole = {
        "policy": {**POLICY, "device": "cpu"},
        "target": Target.here(threads=1).to_json(),
        "timed_on": "this CPU",
    }
    return bundle(folder, records, **(whole | changes))


def retimed(
    tmp_path: Path,
    device: Device,
    *,
    here: Sequence[Made] = (OLD, NEW),
    new: Made = NEW,
    **changes: Any,
) -> Check:
    """Compare a bundle whose first list NEW won with one that OLD won.

    Their canaries differ, so that the records decide nothing.
    """
    was = Side.open(bundle_of(tmp_path / "old", OLD, Tune(1)))
    warm = Tune(2, canary_us=104.0)
    now = Side.open(bundle_of(tmp_path / "new", new, warm, **changes))
    lists = [of_list(GEMM, here), of_list(BESIDE, [triton(40.0)])]
    retimer = Retimer(
        *(now, was, Progress()),
        lists=lambda _side, _search: lists,
        farm=lambda *_, **__: nullcontext(device),
    )
    return check(now, was, Settings(), TODAY, retimer)


def why(checked: Check) -> str:
    (finding,) = (f for f in checked.findings if f.kind is Kind.RETIME)
    assert checked.outcome is Outcome.UNDECIDED
    assert finding.subject.startswith(str(GEMM))
    return finding.text


def test_winners_race_in_processes_of_their_own_each_first_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    device = Device()
    # By the records it is slower by half.
    checked = retimed(tmp_path, device)
    assert checked.outcome is Outcome.FINE
    assert checked.retimed is not None
    assert (checked.retimed.raced, checked.retimed.same) == (1, 1)
    assert device.started == device.stopped == LOOKS[0]
    assert sorted(device.built) == sorted(f"{k.name}-{GEMM}" for k in (OLD, NEW))
    assert device.firsts.count(f"{OLD.name}-{GEMM}") == LOOKS[0]
    assert len(device.firsts) == 2 * LOOKS[0]
    said = capfd.readouterr()
    assert said.out == ""
    assert "race: 4 of 4" in said.err


@pytest.mark.parametrize(("new_us", "outcome"), [(21.0, 1), (20.2, 0), (15.0, 0)])
def test_the_race_and_not_the_record_decides(
    tmp_path: Path, new_us: float, outcome: int
) -> None:
    checked = retimed(tmp_path, Device({**TAKES, NEW.name: new_us}))
    assert int(checked.outcome) == outcome
    (one,) = (one for one in checked.times.lists if one.shift and one.shift.error)
    assert one.ratio == pytest.approx(new_us / 20.0, rel=1e-3)
    assert one.old_us == pytest.approx(20.0, rel=1e-2)


@pytest.mark.parametrize("which", ["old", "new"])
def test_what_is_no_candidate_here_is_named(tmp_path: Path, which: str) -> None:
    device = Device()
    here = [NEW if which == "old" else OLD, aten(50.0)]
    said = why(retimed(tmp_path, device, here=here))
    assert said.startswith(f"the {which} winner is no candidate here: triton triton_mm")
    assert device.started == 0


def test_a_list_that_nothing_here_offers_is_named(tmp_path: Path) -> None:
    was = Side.open(bundle_of(tmp_path / "old", OLD, Tune(1)))
    now = Side.open(bundle_of(tmp_path / "new", NEW, Tune(2, canary_us=104.0)))
    retimer = Retimer(now, was, Progress(), lists=lambda _side, _search: ())
    said = why(check(now, was, Settings(), TODAY, retimer))
    assert said == "no list of the kind is offered here: mm"


def test_what_does_not_compile_or_run_here_is_named(tmp_path: Path) -> None:
    name = f"{OLD.name}-{GEMM}"
    broken = {name: BuildResult(name, Status.COMPILE_ERROR, "no such flag")}
    said = why(retimed(tmp_path / "a", Device(broken=broken)))
    assert said == (
        "the old winner cannot be compiled here: compile_error: no such flag"
    )
    device = Device(fails=NEW.name)
    said = why(retimed(tmp_path / "b", device))
    assert said == "the new winner fails here: fault: it crashed"
    assert device.started == device.stopped


def test_a_process_is_ended_whatever_happens(tmp_path: Path) -> None:
    device = Device({})
    with pytest.raises(KeyError):
        retimed(tmp_path, device)
    assert device.started == device.stopped == 1


def test_one_kernel_is_not_raced_against_itself(tmp_path: Path) -> None:
    device = Device(same_files=True)
    compiled_alike = retimed(tmp_path / "a", device)
    assert compiled_alike.outcome is Outcome.FINE
    same_choice = retimed(tmp_path / "b", device, new=replace(OLD, digest=None))
    assert same_choice.outcome is Outcome.FINE
    assert device.started == 0


def test_one_choice_of_two_compilers_cannot_be_told_by_one(tmp_path: Path) -> None:
    target = Target.here(threads=1).to_json()
    software = {**target["software"], "triton": "1.0"}
    anew = replace(OLD, digest="0" * 64)
    changes = {"target": {**target, "software": software}}
    said = why(retimed(tmp_path, Device(), new=anew, **changes))
    assert said.startswith("one choice, which other software has made another kernel")


def test_a_matching_choice_is_found_under_another_hash(tmp_path: Path) -> None:
    lists = [of_list(GEMM, [aten(50.0), OLD, NEW]), of_list(BESIDE, [triton(40.0)])]
    renamed = replace(
        lists[0],
        inputs_key="of another torch",
        candidates=tuple(
            replace(one, choice_hash=f"{number}")
            for number, one in enumerate(lists[0].candidates)
        ),
    )
    was = Side.open(bundle_of(tmp_path / "old", OLD, Tune(1)))
    now = Side.open(bundle_of(tmp_path / "new", NEW, Tune(2)))
    (pair,) = (p for p in Sides.of(now, was).pairs if p.new.shape.n == GEMM.n)
    winners, said = winners_in(pair, [lists[1], renamed])
    assert said == ""
    assert winners is not None
    assert [c.choice_hash for c in winners.candidates] == ["1", "2"]
    # Without the library's nobody knows what is fused.
    assert [c.choice_hash for c in winners.task.offered.candidates] == ["1", "2", "0"]


def test_without_an_accelerator_here_its_bundles_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flytune.tuner.retime.live_profile", lambda: None)
    gpu = {"policy": POLICY, "target": {"hardware": HARDWARE, "software": SOFTWARE}}
    was = Side.open(bundle_of(tmp_path / "old", OLD, Tune(1), **gpu))
    now = Side.open(bundle_of(tmp_path / "new", NEW, Tune(2, canary_us=104.0), **gpu))
    checked = check(now, was, Settings(), TODAY, Retimer(now, was, Progress()))
    # The other list has one kernel in both.
    assert why(checked) == "no accelerator here to time on"


def test_the_bundles_program_is_lowered_and_its_shapes_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mapping[str, Any]] = []

    def run(module: str, request: Any, result: Path, env: Any, *, what: str) -> None:
        asked.append({"module": module, **request})
        result.write_bytes(pickle.dumps(Enumeration((), "", None, {})))

    monkeypatch.setattr("flytune.tuner.relist.run_module", run)
    program = {"kind": "transformers", "config": {}}
    for number, given in enumerate((program, {"kind": "command"})):
        made = bundle_of(tmp_path / str(number), OLD, Tune(1), program=given)
        assert relisted(Side.open(made), "default") == ()
    first, second = asked
    assert first["program"] == program
    assert "program" not in second
    assert [(row["m"], row["n"]) for row in second["shapes"]] == [
        (one.m, one.n) for one in (GEMM, BESIDE)
    ]


def records_alone(folder: Path, like: Bundle, records: Sequence[TuningRecord]) -> Path:
    """A bundle of a real program that holds nothing but these records."""
    folder.mkdir()
    write_records(records, folder / RECORDS_NAME)
    manifest = replace(like.manifest, files={}, winners=())
    out = folder.with_suffix(".tar.zst")
    return pack(folder, manifest, out, keys=[own_key()])


@pytest.mark.slow
def test_both_winners_of_a_real_program_race_on_this_cpu(
    tmp_path: Path, frozen_bundle: Path
) -> None:
    like = Bundle.open(frozen_bundle)
    records = records_of(like)
    first = next(
        one
        for one in lists_of(records)
        if one.shape.op != "bmm" and len(list(one.timed())) > 1
    )
    # As if the next tune had taken the other, on a warmer device.
    changed = [
        replace(
            record,
            winner=record.winner != any(record is one for one in first.records),
            canary_us=1.04 * (record.canary_us or 1.0),
            samples_us=tuple(1.04 * sample for sample in record.samples_us),
        )
        for record in records
    ]
    old = records_alone(tmp_path / "old", like, records)
    new = records_alone(tmp_path / "new", like, changed)
    done = flytune(tmp_path, "check", new, "--baseline", old, "--retime", "--json")
    whole, *rows = map(json.loads, done.stdout.splitlines())
    lists = len(lists_of(records))
    assert whole["retimed"]["raced"] == 1, done.stderr
    assert whole["retimed"]["one_kernel"] == lists - 1
    assert whole["retimed"]["same_device"]
    (raced,) = (row for row in rows if row.get("processes"))
    assert raced["processes"] in LOOKS
    backends = {raced[f"{which}_winner"]["backend"] for which in ("old", "new")}
    assert backends == {"aten", "cpp"}
    # Which is the faster is the CPU's to say.
    fails = {row["kind"] for row in rows if row.get("standing") == "fails"}
    assert fails <= {"slower", "slower pass"}

"""What holds for the runner of an accelerator, whichever vendor's it is.

The device is `fake_cuda`, and each vendor's library is absent or a fake. What only a
device can show, such as a HIP graph, is in tests/gpu.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from amdsmi_fake import PCI_ID, AmdSmi
from fake_cuda import PRODUCT, Event, FakeCuda, Graph, properties
from fakes import FLYDSL_MODULE, candidate, flydsl, library, task

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner import accelerator_runner
from flytune.tuner.accelerator_runner import AcceleratorRunner
from flytune.tuner.accelerator_timing import graph_samplers
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.device_process import local_runner
from flytune.tuner.runner import Device, DeviceLostError
from flytune.tuner.timing import TimingPlan
from flytune.tuner.vendors import VENDORS, Vendor

QUICK = TimingPlan(warm_up=1, rounds=9, max_rounds=9, min_sample_us=1.0)
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"


@pytest.fixture(scope="module", params=VENDORS.values(), ids=list(VENDORS))
def vendor(request: pytest.FixtureRequest) -> Vendor:
    made: Vendor = request.param
    return made


def device(vendor: Vendor, name: str = PRODUCT) -> Device:
    return Device(name, 2**16, 2**20, kind="cpu", vendor=vendor.name)


@pytest.fixture(scope="module")
def patched(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[pytest.MonkeyPatch, FakeCuda]]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("accelerator")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        patch.setattr("tempfile.tempdir", str(folder))
        patch.setattr(accelerator_runner, "_LOCK_S", 0.1)
        patch.setitem(sys.modules, "pynvml", None)
        patch.setitem(sys.modules, "amdsmi", AmdSmi(active=("active_ppt_pwr",)))
        cuda = FakeCuda()
        cuda.install(patch)
        yield patch, cuda


@pytest.fixture(scope="module")
def runner(
    vendor: Vendor, patched: tuple[pytest.MonkeyPatch, FakeCuda]
) -> Iterator[AcceleratorRunner]:
    made = AcceleratorRunner(device(vendor))
    yield made
    made._lock.close()


@pytest.fixture
def cuda(patched: tuple[pytest.MonkeyPatch, FakeCuda]) -> Iterator[FakeCuda]:
    """The device, which is well again afterwards."""
    fake = patched[1]
    whole = fake.devices
    yield fake
    fake.devices, fake.lost = whole, ""


def checked(
    runner: AcceleratorRunner, made: TuneTask, **files: bytes
) -> list[RunResult]:
    runner.begin(made)
    return [
        runner.check(BuildResult(c.choice_hash, Status.OK, files=files))
        for c in made.offered.candidates
    ]


def test_candidates_are_checked_and_timed_in_the_order_given(
    runner: AcceleratorRunner, vendor: Vendor
) -> None:
    made = task([library("a"), library("b"), library("c")])
    assert [r.status for r in checked(runner, made)] == [Status.OK] * 3
    timed = runner.measure(["b", "a", "c"], QUICK)
    assert [r.choice_hash for r in timed] == ["b", "a", "c"]
    for result in timed:
        assert (result.status, result.device_uuid) == (Status.OK, UUID)
        assert all(sample > 0 for sample in result.samples_us)
        graph, warm, *notes = result.method.split("; ")
        # A weight of 16 KiB must beat a cache of 64 KiB: each copy is launched alike.
        kind, _, launches = graph.partition(" of ")
        assert kind == vendor.graph
        assert int(launches.removesuffix(" launches")) % 9 == 0
        assert warm == "9 weight copies in turn"
        told = vendor.name == "amd"
        assert (result.clock_mhz == 2100.0) is told
        words = "61 C, throttled: power cap, partition SPX/NPS1"
        assert (words in notes) is told


@pytest.mark.parametrize(
    ("in_run", "status"),
    [
        ("raise", Status.FAULT),
        ("over resources", Status.OVER_RESOURCES),
        ("python memory", Status.OUT_OF_MEMORY),
        ("nan", Status.WRONG_RESULT),
        ("tail", Status.WRONG_RESULT),
        ("tile", Status.WRONG_RESULT),
        ("second", Status.WRONG_RESULT),
        ("once", Status.WRONG_RESULT),
    ],
)
def test_a_candidate_that_fails_is_a_row_and_the_others_run(
    runner: AcceleratorRunner, in_run: str, status: Status
) -> None:
    bad, good = checked(runner, task([library("bad", in_run=in_run), library()]))
    assert (bad.status, good.status) == (status, Status.OK)
    assert bad.reason


def test_an_unknown_backend_and_an_unbuilt_candidate_are_rows(
    runner: AcceleratorRunner,
) -> None:
    made = task([candidate("cpp"), library()])
    unknown, good = checked(runner, made)
    assert unknown == RunResult("cpp", Status.UNSUPPORTED, "no runner for backend: cpp")
    assert good.status is Status.OK
    failed = BuildResult("cpp", Status.COMPILE_ERROR, "no such register")
    assert runner.check(failed) == RunResult(
        "cpp", Status.COMPILE_ERROR, "no such register"
    )


def test_what_cannot_be_captured_is_timed_between_events(
    runner: AcceleratorRunner, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = task([library()])
    checked(runner, made)

    def refuses(*_: Any, **__: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuses)
    (timed,) = runner.measure(["library"], QUICK)
    assert timed.status is Status.OK
    assert timed.method.startswith("events of ")


def test_a_sample_begins_when_the_same_launches_have_just_been_made(
    runner: AcceleratorRunner, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(runner, task([library("a"), library("b")]))
    done: list[object] = []

    def tell(thing: type, method: str) -> None:
        inner = getattr(thing, method)

        def told(self: object, *args: Any) -> None:
            done.append(self if method == "replay" else "event")
            inner(self, *args)

        monkeypatch.setattr(thing, method, told)

    tell(Graph, "replay")
    tell(Event, "record")
    samplers = graph_samplers(runner._kernels, QUICK, runner._stream).samplers
    done.clear()
    graphs = []
    for name in ("a", "b", "a"):
        samplers[name]()
        first, *rest = done
        assert rest == ["event", first, "event"]
        graphs.append(first)
        done.clear()
    assert graphs[0] is graphs[2]
    assert graphs[0] is not graphs[1]


def test_a_candidate_that_spoils_the_device_costs_the_process(
    runner: AcceleratorRunner, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = task([library(), library("bad", in_run="raise")])
    # After a fault the device is asked, and where it answers nothing else is lost.
    assert [r.status for r in checked(runner, made)] == [Status.OK, Status.FAULT]
    bad = BuildResult("bad", Status.OK)
    said = "ValueError: a candidate's own error"
    with monkeypatch.context() as patch:
        patch.setattr(runner._canary, "is_right", lambda: False)
        with pytest.raises(DeviceLostError) as caught:
            runner.check(bad)
        assert str(caught.value) == f"{said}; the device multiplies wrongly since"
    cuda.lost = "HIP error: unspecified launch failure"
    for call in (
        lambda: runner.check(BuildResult("library", Status.OK)),
        lambda: runner.measure(["library"], QUICK),
    ):
        with pytest.raises(DeviceLostError, match=cuda.lost):
            call()


def test_a_canary_that_moves_is_noted(
    runner: AcceleratorRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(runner, task([library()]))
    times = iter(range(1, 1000))
    monkeypatch.setattr(runner._canary, "time_us", lambda: float(next(times)))
    (timed,) = runner.measure(["library"], QUICK)
    assert timed.disturbed
    assert "; canary moved by " in timed.method
    # A device that is itself is not disturbed.
    monkeypatch.setattr(runner._canary, "time_us", lambda: 1.0)
    assert not runner.measure(["library"], QUICK)[0].disturbed


def of_flydsl(*sources: str) -> TuneTask:
    plain = task([library()])
    fly = [flydsl(f"fly{n}", plain, source) for n, source in enumerate(sources)]
    return task([library(), *fly])


def test_a_flydsl_candidate_runs_by_inductors_own_request(
    runner: AcceleratorRunner,
) -> None:
    made = of_flydsl(FLYDSL_MODULE, FLYDSL_MODULE.replace("matmul", "add"))
    assert [r.status for r in checked(runner, made)] == [
        *(Status.OK, Status.OK, Status.FAULT),
    ]
    library_, fly = runner.measure(["library", "fly0"], QUICK)
    assert (library_.status, fly.status) == (Status.OK, Status.OK)
    assert fly.method.split("; ")[:2][1] == "9 weight copies in turn"


def test_a_flydsl_candidate_that_compiles_here_has_no_build(
    runner: AcceleratorRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit = pytest.importorskip("flydsl.compiler.jit_function")
    # The ledger watches the method itself; what is compiled is of no matter here.
    source = FLYDSL_MODULE.replace(
        "    assert",
        "    from flydsl.compiler.jit_function import MlirCompiler\n"
        "    try:\n"
        "        MlirCompiler.compile(None)\n"
        "    except Exception:\n"
        "        pass\n"
        "    assert",
    )
    assert jit.MlirCompiler is not None
    _, fly = checked(runner, of_flydsl(source))
    assert (fly.status, fly.reason) == (
        Status.FAULT,
        "reached the runner without a build",
    )


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ((), "a runner must see one device, and sees none"),
        (
            (properties(), properties(pci_bus_id=0xC2)),
            "a runner must see one device, and sees 0000:c1:00.0, 0000:c2:00.0",
        ),
        # Partitions of one GPU.
        (
            (properties(), properties()),
            "a runner must see one device, and sees 0000:c1:00.0, 0000:c1:00.0",
        ),
        ((properties(name="another"),), f"a device is no {PRODUCT}: another"),
    ],
)
def test_what_is_not_the_one_device_is_refused(
    vendor: Vendor, cuda: FakeCuda, devices: Sequence[Any], said: str
) -> None:
    cuda.devices = list(devices)
    with pytest.raises(FlytuneError) as caught:
        AcceleratorRunner(device(vendor))
    assert str(caught.value) == said


def test_a_device_is_timed_on_by_one_process(
    runner: AcceleratorRunner, vendor: Vendor
) -> None:
    with pytest.raises(FlytuneError) as caught:
        AcceleratorRunner(device(vendor))
    name = PCI_ID if vendor.name == "amd" else UUID
    assert str(caught.value) == f"another flytune times on this device: {name}"
    assert caught.value.hint is not None


def test_a_device_that_torch_has_no_name_for_has_amdsmis(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda.devices = [properties(name="", pci_bus_id=0xC1)]
    with pytest.raises(FlytuneError, match=r"is no another: AMD Instinct MI355X"):
        AcceleratorRunner(device(VENDORS["amd"], "another"))


@pytest.mark.parametrize("masks", [{}, {"HIP_VISIBLE_DEVICES": "0,1"}])
def test_an_actor_refuses_a_device_that_no_mask_shows_it(
    masks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    for name, value in masks.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        FlytuneError, match=r"^HIP_VISIBLE_DEVICES must name one device"
    ):
        local_runner(Device(PRODUCT, 2**16, 2**20, "cuda", "amd"))


def test_an_actors_mask_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    with pytest.raises(FlytuneError, match=r"^devices are hidden by more than HIP_"):
        local_runner(Device(PRODUCT, 2**16, 2**20, "cuda", "amd"))

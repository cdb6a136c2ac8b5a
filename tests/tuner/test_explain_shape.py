"""`flytune explain B SHAPE`, on bundles of made-up records."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from small_bundles import bare_manifest

from flytune.caches.inductor import Timing, write_timings
from flytune.caches.manifest import sha256_hex
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, Status, TuningRecord, write_records
from flytune.caches.ties import spread
from flytune.shapes.gemm import GemmShape
from flytune.tuner.cli import main

SHAPE = GemmShape("mm", 16, 4096, 1024, module="layers.*.mlp.up_proj", count=32)
GATE = "layers.*.mlp.gate_proj"
KERNEL = b"machine code"


def record(name: str, *samples_us: float, **more: Any) -> TuningRecord:
    """A candidate of Triton's, where nothing else is said."""
    summary = spread(samples_us) if samples_us else None
    columns: dict[str, Any] = {
        "backend": "triton",
        "template": "mm",
        "config": json.dumps({"num_stages": "4", "tile": name}),
        "choice_hash": f"mm-{name}",
        "status": Status.OK,
        "median_us": summary.median_us if summary else None,
        "mad_us": summary.mad_us if summary else None,
        "rounds": len(samples_us) or None,
        "samples_us": samples_us,
        "source": "timed" if samples_us else None,
        "inductor_op": "mm",
        "inputs_key": "[16, 4096, 1024]",
        "precision": "highest",
    }
    return TuningRecord.of_shape(more.pop("shape", SHAPE), **(columns | more))


def library(*samples_us: float, **more: Any) -> TuningRecord:
    columns = {"backend": "aten", "config": "{}"}
    return record("library", *samples_us, **(columns | more))


WON = record(
    "fast", *[10.0, 10.2] * 8, winner=True, baked=True, kernel_digest=sha256_hex(KERNEL)
)
SLOW = record("slow", *[15.0, 15.3] * 8)
LEFT = record("left", *[30.0] * 5, pruned_by="race")
FAILED = record("failed", status=Status.COMPILE_ERROR, reason="CompileError: no")
LIBRARY = library(*[12.0, 12.4] * 8)
LIST = (LIBRARY, SLOW, WON, LEFT, FAILED)
LEAST = (("mm-fast", 0.01), ("mm-library", 0.012), ("mm-slow", 0.015))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def packed(
        records: Iterable[TuningRecord] = LIST,
        times: Sequence[tuple[str, float]] = (
            *LEAST,
            ("mm-left", 0.03),
            ("mm-failed", math.inf),
        ),
        missing: dict[str, list[str]] | None = None,
    ) -> Path:
        staged = tmp_path / "staged"
        (staged / "inductor" / "triton").mkdir(parents=True)
        (staged / "inductor" / "triton" / "mm.cubin").write_bytes(KERNEL)
        write_records(records, staged / RECORDS_NAME)
        key = ("mm", "[16, 4096, 1024]", "highest")
        timings = (Timing(*key, name, ms) for name, ms in times)
        write_timings(staged / "inductor", {"hash": "5ystem"}, timings)
        manifest = bare_manifest(
            model={"name": "tiny"},
            timed_on="a device",
            coverage={"missing": missing or {}},
            winners=(
                {
                    "shape": "mm (16, 4096, 1024)",
                    "op": "mm",
                    "inputs_key": "[16, 4096, 1024]",
                    "choice_hash": "mm-fast",
                    "modules": ["layers.*.mlp.up_proj", GATE],
                },
            ),
        )
        return pack(staged, manifest, tmp_path / "b.tar.zst")

    return packed


def run(bundle: Path, *words: str) -> Result:
    result = CliRunner().invoke(main, ["explain", str(bundle), *words])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


def said(result: Result, name: str) -> str:
    """The text after a line's name."""
    (line,) = (li for li in result.stdout.splitlines() if li.startswith(f"{name} "))
    return line.removeprefix(name).strip()


def test_a_list_in_words(make: Callable[..., Path]) -> None:
    result = run(make(), "mm (16, 4096, 1024)")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "mm (16, 4096, 1024) at layers.*.mlp.up_proj",
        "computes     bfloat16 x bfloat16 -> bfloat16, layout TN",
        f"asked by     layers.*.mlp.up_proj, {GATE}; 64 calls in a forward pass",
        "won          triton mm (num_stages=4 tile=fast): 10.1 us, the fastest of 4 by "
        "median; the next, aten mm, takes 20.8% longer",
        "others       aten: 12.2 us at best, +20.8%",
        "baked        a graph of the bundle holds the winner",
        "serving      a graph that hits asks for none of this; one that is lowered "
        "anew looks up the time of each candidate, and takes the least",
        "  op         mm",
        "  inputs     [16, 4096, 1024]",
        "  precision  highest",
        "  file       inductor/cache/5ystem: the least of 5 is the winner's",
        "  choice     mm-fast",
        f"  kernel     {sha256_hex(KERNEL)[:16]}: inductor/triton/mm.cubin",
        "",
        "   us    over     spread  rounds  candidate",
        "1  10.1           1.0%    16      triton mm tile=fast    won, baked",
        "2  12.2  +20.8%   1.6%    16      aten mm",
        "3  15.2  +50.0%   1.0%    16      triton mm tile=slow",
        "4  30.0  +197.0%  0.0%    5       triton mm tile=left    left the race, "
        "surely slower",
        "5  -                              triton mm tile=failed  compile_error: "
        "CompileError: no",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("16x4096x1024",),
        ("16,4096,1024",),
        ("mm", "16x4096x1024"),
        ("mm (16, 4096, 1024) at layers.*.mlp.up_proj",),
        ("mm (16, 4096, 1024) at gate_proj",),
        ("up_proj",),
        ("layers.7.mlp.up_proj",),
        ("*.mlp.*",),
        ("mlp.*",),
        (GATE,),
        ("mm-slow",),
        ("mm-lib",),
    ],
)
def test_the_words_for_a_list(
    make: Callable[..., Path], words: tuple[str, ...]
) -> None:
    result = run(make(), *words)
    assert result.stdout.startswith("mm (16, 4096, 1024) at layers.*.mlp.up_proj\n")


def test_no_list(make: Callable[..., Path]) -> None:
    result = run(make(), "own_proj")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: bundle has no list of: `own_proj`",
        f"hint: near it: {SHAPE.module}; all 1 list: flytune explain B --list",
    ]


@pytest.mark.parametrize("options", [("--trust", "nofile"), ("--allow-unsigned",)])
def test_nobody_need_be_trusted(
    make: Callable[..., Path], options: tuple[str, ...]
) -> None:
    result = run(make(), "up_proj", *options)
    assert result.exit_code == 2
    assert "whom to trust is asked with --engine alone" in result.stderr
    assert result.stdout == ""


def test_a_planned_gemm_without_a_list_says_why(make: Callable[..., Path]) -> None:
    bundle = make(missing={"its size is 1": ["bmm 32x(1, 1, 128) at attn"]})
    for words in ("bmm 32x(1, 1, 128)", "1x1x128", "bmm 32x(1, 1, 128) at attn"):
        assert run(bundle, words).stderr.splitlines()[1] == (
            "hint: planned, and lowered without a list: bmm 32x(1, 1, 128) at attn: "
            "its size is 1"
        )


def of(size: int) -> TuningRecord:
    return record(
        str(size),
        1.0,
        winner=True,
        shape=replace(SHAPE, n=size),
        inputs_key=str(size),
    )


def test_every_list_is_listed(make: Callable[..., Path]) -> None:
    bundle = make([of(size) for size in range(8, 48, 8)])
    result = run(bundle, "--list")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0].split() == ["list", "winner", "us", "of"]
    assert result.stdout.count("mm (16, ") == 5
    rows = list(map(json.loads, run(bundle, "--list", "--json").stdout.splitlines()))
    assert [row["row"] for row in rows] == ["list"] * 5
    assert run(bundle, "--list", "up_proj").exit_code == 2


def test_what_a_bundle_says_cannot_colour_a_terminal(
    make: Callable[..., Path],
) -> None:
    wild = "\x1b]0;owned\x07\x1b[31mred\n"
    shape = replace(SHAPE, module=f"up{wild}")
    candidates = [
        record("a", *[1.0, 1.1] * 8, shape=shape, winner=True, template=wild),
        record("b", shape=shape, status=Status.FAULT, reason=wild, config=wild),
    ]
    other = [of(size) for size in range(8, 40, 8)]
    bundle = make([*candidates, *other], missing={wild: [f"bmm (1, 1, 128) at {wild}"]})
    for words in ("16x4096x1024", "*", "1x1x128", "--list", "16x4096x1000"):
        result = run(bundle, words)
        lines = (result.stdout + result.stderr).splitlines()
        assert [line for line in lines if not line.isprintable()] == []
    assert "up?]0;owned??[31mred?" in run(bundle, "16x4096x1024").stdout


def test_several_lists_are_listed_and_explained(make: Callable[..., Path]) -> None:
    result = run(make([of(64), of(128)]), "up_proj")
    assert result.stdout.splitlines()[:4] == [
        "2 lists are of `up_proj`:",
        "list                                        winner     us   of",
        "mm (16, 64, 1024) at layers.*.mlp.up_proj   triton mm  1.0  1",
        "mm (16, 128, 1024) at layers.*.mlp.up_proj  triton mm  1.0  1",
    ]
    assert result.stdout.count("\ncomputes  ") == 2


def test_many_lists_are_named(make: Callable[..., Path]) -> None:
    bundle = make([of(size) for size in range(8, 48, 8)])
    result = run(bundle, "*")
    assert result.exit_code == 1
    assert result.stdout.startswith("5 lists are of `*`:\n")
    assert "computes" not in result.stdout
    assert result.stderr.splitlines() == [
        "error: explained at once are 4 lists at most, and 5 are of: `*`",
        "hint: name one, such as `mm (16, 8, 1024) at layers.*.mlp.up_proj`, or take "
        "--json",
    ]
    rows = list(map(json.loads, run(bundle, "*", "--json").stdout.splitlines()))
    assert [row["row"] for row in rows] == ["list", "candidate"] * 5


@pytest.mark.parametrize(
    ("records", "why", "words"),
    [
        (
            [library(winner=True)],
            "only",
            "aten mm: the only candidate, so that there was nothing to time",
        ),
        ([library(), record("a")], "undecided", "nobody: the candidates were compiled"),
        (
            [
                library(winner=True, status=Status.UNSUPPORTED, reason="no inputs"),
                record("a", status=Status.UNSUPPORTED, reason="no inputs"),
            ],
            "untimed",
            "aten mm: none was timed (no inputs), and it is first in the fixed order",
        ),
        (
            [
                library(status=Status.FAULT, reason="died"),
                record("a", 5.0, winner=True),
            ],
            "survived",
            "5.0 us, alone of 2 with a time",
        ),
        (
            [library(*[10.1, 10.2] * 8, winner=True), record("a", *[10.0, 10.2] * 8)],
            "tied",
            "10.1 us, tied with 1 other: none is surely slower than the fastest by "
            "more than 1%; of them it is first in the fixed order: the library's, then "
            "by backend, template and configuration; triton mm has the shortest "
            "median, 10.1 us",
        ),
        (
            [library(*[20.0, 20.1] * 8, winner=True), record("a", *[10.0, 10.1] * 8)],
            "other",
            "20.1 us, and triton mm has a shorter median, 10.1 us: the stored times do "
            "not say why",
        ),
        (
            [
                library(10.0, 10.0, winner=True, method="recorded", source="t.csv"),
                record("a", 20.0, 20.0, method="recorded", source="t.csv"),
            ],
            "fastest",
            "10.0 us, the fastest of 2 by median, in times that others recorded",
        ),
    ],
)
def test_why(
    make: Callable[..., Path], records: list[TuningRecord], why: str, words: str
) -> None:
    bundle = make(records, times=())
    assert words in said(run(bundle, "16x4096x1024"), "won")
    row = json.loads(run(bundle, "16x4096x1024", "--json").stdout.splitlines()[0])
    assert row["why"] == why


def test_what_was_only_compiled_is_counted(make: Callable[..., Path]) -> None:
    failed = record("b", status=Status.COMPILE_ERROR, reason="no")
    result = run(make([library(), record("a"), failed]), "16x4096x1024")
    counts = [li for li in result.stdout.splitlines() if li.startswith("compiled ")]
    assert sorted(counts) == [
        "compiled     aten: 1 ok",
        "compiled     triton: 1 ok, 1 compile_error",
    ]


def test_a_backend_without_a_time(make: Callable[..., Path]) -> None:
    flydsl = record("f", backend="flydsl", status=Status.TIMEOUT, reason="90 s")
    other = record("g", backend="flydsl", status=Status.FAULT, reason="died")
    result = run(make([*LIST, flydsl, other]), "16x4096x1024")
    assert "others       without a time, flydsl: 1 timeout, 1 fault" in result.stdout


def test_what_an_upgrade_has_left_out(make: Callable[..., Path]) -> None:
    old = record("old", pruned_by="older", predicted_us=20.04)
    result = run(make([*LIST, old]), "16x4096x1024")
    (line,) = (li for li in result.stdout.splitlines() if "tile=old" in li)
    assert line.split("tile=old")[1].strip() == ("left out: 20.0 us in an older bundle")


def test_what_a_graph_holds_instead(make: Callable[..., Path]) -> None:
    records = [replace(LIBRARY, baked=True), replace(WON, baked=False)]
    assert said(run(make(records), "16x4096x1024"), "baked") == (
        "a graph holds aten mm: Inductor had the last word on what is fused to it"
    )


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (LEAST, "2 of 5 candidates have no time in it, so that Inductor would time"),
        (
            [*LEAST[1:], ("mm-fast", 1.0), ("mm-left", 1.0), ("mm-failed", math.inf)],
            "the least of 5 is that of aten mm",
        ),
    ],
)
def test_timings_that_would_not_choose_the_winner(
    make: Callable[..., Path], times: Sequence[tuple[str, float]], words: str
) -> None:
    assert words in said(run(make(times=times), "16x4096x1024"), "  file")


def test_rows(make: Callable[..., Path]) -> None:
    result = run(make(), "up_proj", "--json")
    first, *rest = map(json.loads, result.stdout.splitlines())
    assert (first["row"], first["winner"], first["why"]) == (
        "list",
        "mm-fast",
        "fastest",
    )
    assert first["modules"] == ["layers.*.mlp.up_proj", GATE]
    assert first["backends"] == [
        {
            **{"backend": "aten", "choice_hash": "mm-library", "median_us": 12.2},
            **{"over": pytest.approx(0.2079, abs=1e-4), "failed": {}},
        }
    ]
    (timings,) = first["lookup"]["timings"]
    assert timings["path"] == "inductor/cache/5ystem"
    assert timings["ms"]["mm-failed"] is None
    assert first["lookup"]["kernels"] == ["inductor/triton/mm.cubin"]
    assert [row["place"] for row in rest] == [1, 2, 3, 4, 5]
    assert [row["choice_hash"] for row in rest][::4] == ["mm-fast", "mm-failed"]
    assert rest[4]["over"] is None
    assert rest[1]["samples_us"] == list(LIBRARY.samples_us)


def test_a_pin_is_held(make: Callable[..., Path]) -> None:
    bundle = make()
    result = run(Path(f"{bundle}@sha256:{'0' * 64}"), "16x4096x1024")
    assert result.exit_code == 1
    assert "FT601" in result.stderr
    assert result.stdout == ""

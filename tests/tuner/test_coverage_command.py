"""What of a log a bundle holds: real bundles with real records."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from builds import DATA, unpacked
from click.testing import CliRunner, Result
from small_bundles import small_bundle

from flytune.caches.manifest import Manifest
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, Status, TuningRecord, write_records
from flytune.caches.target import Target
from flytune.shapes.gemm import GemmShape
from flytune.tuner.cli import main

MOE = "E=128,N=384,device_name=AMD_Instinct_MI355_OAM.json"
LINEAR = GemmShape("mm", 16, 10240, 5120)


def bundle(
    folder: Path,
    shapes: Iterable[GemmShape],
    *,
    tokens: Sequence[int] = (16,),
    missing: Sequence[str] = (),
    enumerated: str = "program",
    status: Status = Status.OK,
) -> Path:
    """A bundle with one candidate of each shape on record."""
    staged = folder / "staged"
    staged.mkdir(parents=True)
    common: dict[str, Any] = {"backend": "aten", "template": None, "config": "{}"}
    common |= {"status": status, "winner": status is Status.OK}
    common |= {"reason": None if status is Status.OK else "it failed"}
    records = (
        TuningRecord.of_shape(shape, choice_hash=str(at), **common)
        for at, shape in enumerate(shapes)
    )
    write_records(records, staged / RECORDS_NAME)
    manifest = Manifest(
        created="2026-01-02T03:04:05Z",
        flytune="0.1.0",
        model={"name": "tiny"},
        program={},
        policy={"threads": 1, "tokens": list(tokens)},
        inductor_config={},
        target=Target.here(threads=1).to_json(),
        software="serving",
        timed_on=None,
        coverage={"enumerated": enumerated, "missing": {"a reason": list(missing)}},
        winners=(),
        bake={},
    )
    return pack(staged, manifest, folder / "b.tar.zst")


def coverage(made: Path, log: Path, *options: str) -> Result:
    return CliRunner().invoke(
        main, ["coverage", str(made), "--log", str(log), *options]
    )


def test_what_is_held_and_what_is_missing(tmp_path: Path) -> None:
    made = bundle(tmp_path, [LINEAR])
    result = coverage(made, DATA / "logs" / "tunableop_untuned0.csv")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "held     1 of 4 GEMMs, 25.0% of 4 calls",
        "missing  1 x mm/addmm (16, 5120, 8192) bfloat16 TN",
        "missing  1 x mm/addmm (512, 1024, 2048) float16 NN",
        "missing  1 x bmm 16x(64, 128, 512) bfloat16 NT",
        "aside    1 rows: unknown operation: "
        "ScaledGemmTunableOp_Float8_e4m3fn_BFloat16_TN",
    ]


def test_calls_weigh(tmp_path: Path) -> None:
    log = tmp_path / "captured.jsonl"
    rows = ({"n": 10240, "k": 5120, "m": 16, "count": 95}, {"n": 8, "k": 8, "m": 8})
    log.write_text(
        "".join(json.dumps(row) + "\n" for row in (rows[1] | {"count": 5}, rows[0]))
    )
    made = bundle(tmp_path, [LINEAR])
    result = coverage(made, log, "--min", "0.95")
    assert (result.exit_code, result.stderr) == (0, "")
    result = coverage(made, log, "--min", "0.951")
    assert result.exit_code == 1
    assert "held     1 of 2 GEMMs, 95.0% of 100 calls" in result.stdout
    assert result.stderr == "held 0.9500 of the calls, below 0.951\n"


def test_as_json(tmp_path: Path) -> None:
    made = bundle(tmp_path, [LINEAR])
    result = coverage(made, DATA / "logs" / "autotune_mm.log", "--json", "--min", "1")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["ops"], row["count"], row["holding"]) for row in rows] == [
        (["mm"], 1, "held"),
        (["addmm"], 1, "missing"),
    ]
    assert result.exit_code == 1


def test_another_type_or_layout_is_another_gemm(tmp_path: Path) -> None:
    other = GemmShape("mm", 16, 10240, 5120, layout="NN")
    half = GemmShape("mm", 16, 10240, 5120, a_dtype="float16")
    result = coverage(
        bundle(tmp_path, [other, half]), DATA / "logs" / "autotune_mm.log"
    )
    assert result.stdout.startswith("held     0 of 2 GEMMs, 0.0% of 2 calls")


def test_candidates_that_failed_hold_nothing(tmp_path: Path) -> None:
    made = bundle(tmp_path, [LINEAR], status=Status.COMPILE_ERROR)
    result = coverage(made, DATA / "logs" / "autotune_mm.log")
    assert result.stdout.startswith("held     0 of 2 GEMMs")


def test_what_the_program_lowers_without_a_choice_is_held(tmp_path: Path) -> None:
    said = ("mm (16, 10240, 5120) at model.layers.*.mlp", "bmm 4x(1, 1, 8) at x")
    log = DATA / "logs" / "autotune_mm.log"
    result = coverage(bundle(tmp_path / "a", [], missing=said), log)
    assert result.stdout.splitlines()[:2] == [
        "held     1 of 2 GEMMs, 50.0% of 2 calls",
        "         1 of them lowered without a choice",
    ]
    # Shapes one by one are in no graph.
    result = coverage(
        bundle(tmp_path / "b", [], missing=said, enumerated="isolated"), log
    )
    assert result.stdout.startswith("held     0 of 2 GEMMs")


def expert(m: int, n: int, k: int) -> GemmShape:
    return GemmShape("grouped_mm", m, n, k, groups=128)


def test_experts_are_found_by_tokens(tmp_path: Path) -> None:
    shapes = [expert(m, *nk) for m in (8, 512) for nk in ((768, 4096), (4096, 384))]
    made = bundle(tmp_path / "a", shapes, tokens=(1, 64))
    result = coverage(made, DATA / "logs" / MOE)
    assert result.stdout.splitlines() == [
        "held     4 of 6 GEMMs, 66.7% of 6 calls",
        "missing  1 x grouped_mm (1024 tokens, 768, ?) of 128 experts "
        "bfloat16/float16/float32",
        "missing  1 x grouped_mm (1024 tokens, ?, 384) of 128 experts "
        "bfloat16/float16/float32",
    ]
    # Rows that are no multiple of the tokens do not say how many experts a token has.
    made = bundle(tmp_path / "b", shapes, tokens=(1, 60))
    result = coverage(made, DATA / "logs" / MOE)
    assert result.stdout.startswith("held     0 of 6 GEMMs")
    assert (
        "aside    the bundle does not tell how many experts a token has"
        in result.stdout
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--min", "1.5"), "Invalid value for '--min'"),
        (("--min", "nan"), "Invalid value for '--min': nan is not a share"),
        (("--format", "x"), "Invalid value for '--format'"),
        (("--format", "inductor"), "error: no GEMMs of the form inductor in log: "),
    ],
)
def test_what_cannot_be_compared(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    made = bundle(tmp_path, [LINEAR])
    result = coverage(made, DATA / "logs" / "bf16_untuned_gemm.csv", *options)
    assert result.exit_code in (1, 2)
    assert said in result.stderr


@pytest.mark.parametrize("missing", [3, [3], {"a reason": 3}, {"a reason": [3]}])
def test_a_manifest_that_says_nothing_of_use(tmp_path: Path, missing: Any) -> None:
    made = unpacked(bundle(tmp_path, [LINEAR]), tmp_path / "unpacked")
    path = made / "manifest.json"
    row = json.loads(path.read_text())
    row["coverage"] = {"enumerated": "program", "missing": missing}
    path.write_text(json.dumps(row))
    result = coverage(made, DATA / "logs" / "autotune_mm.log")
    assert result.exit_code == 1
    assert "policy of the manifest is malformed" in result.stderr


@pytest.mark.parametrize("schema", [1, 2])
def test_stored_bundles_are_compared_too(tmp_path: Path, schema: int) -> None:
    log = tmp_path / "shapes.csv"
    log.write_text("op,m,n,k,count\nmm,1,1000,256,2\nmm,1,5,256,1\n")
    result = coverage(DATA / "bundles" / f"schema-{schema}.tar.zst", log)
    assert result.stdout.startswith("held     1 of 2 GEMMs, 66.7% of 3 calls\n")


def test_a_bundle_without_records(tmp_path: Path) -> None:
    made = small_bundle(tmp_path)
    result = coverage(made, DATA / "logs" / "autotune_mm.log")
    assert result.stderr == f"error: bundle has no records: {made}\n"


def test_a_real_bundle_holds_what_its_program_calls(
    tmp_path: Path, unfrozen_bundle: Path
) -> None:
    shapes = [
        "shapes",
        "--model",
        str(DATA / "tiny-llama.json"),
        "--attention",
        "eager",
    ]
    printed = CliRunner().invoke(main, [*shapes, "--tokens", "1,8", "--json"]).stdout
    log = tmp_path / "shapes.jsonl"
    log.write_text(printed)
    result = coverage(unfrozen_bundle, log, "--min", "1")
    assert result.exit_code == 0, result.output
    assert "100.0% of" in result.stdout

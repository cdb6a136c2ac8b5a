"""What becomes of bundles when processes race, die, and meet damaged files.

`python ci/bench/faults.py [--bundle B] [--loaders 64] [--serve 64] [--kills 216]`

Loaders install one bundle at once into an empty home and serve from it; installing,
publishing, signing and clearing away are killed at random moments; and files are
damaged before they are installed and after. Nothing may be lost of what was there, and
nothing served but what the bundle holds. Exits with 1 where something was.
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from builds import build_bundle
from corrupt import OUTCOMES
from kills import LOST, NEW, OLD, PARTLY, WRONG, killed, scenes
from limits import Limits
from loader import at_once, loads_that_fit, of_loaders, unlike_files
from pieces import in_pieces
from processes import fresh, threads
from results import RESULTS, write_result

from flytune.caches.bundle import Bundle
from flytune.caches.keyring import own_key
from flytune.caches.packing import pack
from flytune.caches.program import ProgramSpec
from flytune.caches.session import tolerance
from flytune.caches.target import Target

MODEL = Path(__file__).parents[2] / "tests" / "data" / "tiny-llama.json"
# A kernel of Triton's, which a CPU's bundle lacks: its list is rewritten where it lies.
_KERNEL = "inductor/triton/0/KEY"
TRITON = {
    f"{_KERNEL}/k.cubin": b"kernel",
    f"{_KERNEL}/__grp__k.json": b'{"child_paths": {}}',
}
_SEED = 20_000
"""Of weights, other than a bake's."""


def corrupted(
    folder: Path,
    bundles: Mapping[str, Path],
    few: int,
    seed: int,
    *,
    thorough: bool = True,
) -> list[dict[str, Any]]:
    """Damage copies of a bundle; return a row for each kind.

    Args:
        bundles: as `prepared` makes them.
        few, seed, thorough: as for `Corruption`.
    """
    sources = (bundles[name] for name in ("directory", "archive", "other"))
    corruption = Limits(folder, *sources, few, seed, thorough)
    corruption.before()
    corruption.after()
    corruption.limits()
    return [
        {
            "where": where,
            "kind": kind,
            "inputs": counts.total(),
            **{outcome: counts[outcome] for outcome in OUTCOMES},
            "codes": sorted(corruption.codes.get((where, kind), ())),
        }
        for (where, kind), counts in corruption.rows.items()
    ]


def killed_all(
    folder: Path, bundles: Mapping[str, Path], kills: int, seed: int
) -> list[dict[str, Any]]:
    """Kill each kind of work its share of `kills` times; return a row for each."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    moments = random.Random(seed)
    os.environ["FLYTUNE_STATUS_DIR"] = ""
    others = [bundles[name] for name in ("archive", "other")]
    found = scenes(
        folder,
        bundles["directory"],
        bundles["archive"],
        others,
        Ed25519PrivateKey.generate(),
    )
    rows = []
    for left, scene in zip(range(9, 0, -1), found, strict=True):
        done = sum(row["inputs"] for row in rows)
        rows.append(killed(scene, -(-(kills - done) // left), moments))
        shutil.rmtree(scene.folder)
    return rows


def prepared(bundle: Bundle, folder: Path) -> dict[str, Path]:
    """Return a bundle with Triton's files, as directory and archive, and another."""
    folder.chmod(0o755)
    bundle.place(folder / "staged")
    for name, content in TRITON.items():
        path = folder / "staged" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    other = replace(bundle.manifest, model={**bundle.manifest.model, "name": "other"})
    return {
        name: pack(folder / "staged", manifest, folder / file, keys=[own_key()])
        for name, manifest, file in (
            ("directory", bundle.manifest, "whole"),
            ("archive", bundle.manifest, "whole.tar.zst"),
            ("other", other, "other.tar.zst"),
        )
    }


@click.command()
@click.option("--bundle", type=click.Path(path_type=Path), help="[default: built]")
@click.option("--loaders", default=64, show_default=True)
@click.option("--serve", default=64, show_default=True, help="How many serve, too.")
@click.option("--kills", default=216, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--minutes", type=float, help="Begin nothing that ends later.")
@click.option("--state", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, show_default=False
)
def main(
    bundle: Path | None,
    loaders: int,
    serve: int,
    kills: int,
    seed: int,
    minutes: float | None,
    state: Path | None,
    results: Path,
) -> None:
    """Make every kind of fault, and write the result file."""
    slug = Target.here(threads=threads()).slug
    root = Path(tempfile.gettempdir(), "flytune-bench")
    state = state or root / f"faults.{slug}.json"
    identity = {
        **{"benchmark": "faults", "kills": kills, "seed": seed, "loaders": loaders},
        "serve": serve,
    }
    work = root / f"faults.{slug}.work"
    with in_pieces(state, identity, minutes) as pieces:
        if bundle is None:
            bundle = work / "bundle"
            pieces.unit(
                "build",
                lambda: str(_built(work).path),
                expected_s=180,
                made=work,
            )
        opened = Bundle.open(bundle)
        loads = {
            **{"program": dict(opened.manifest.program), "seed": _SEED},
            **{"policy": dict(opened.manifest.policy), "again": False},
            **{"variants": False},
        }

        def within(work: Callable[[Path], Any]) -> Callable[[], Any]:
            return lambda: in_memory(work)

        raced = pieces.unit(
            "loaders",
            within(lambda folder: _raced(opened, folder, loaders, serve, loads)),
            expected_s=400,
        )
        ended = pieces.unit(
            "kills",
            within(
                lambda folder: killed_all(
                    folder / "scenes", prepared(opened, folder), kills, seed
                )
            ),
            expected_s=90,
        )
        damaged = pieces.unit(
            "damages",
            within(lambda folder: _corrupted(opened, folder, seed)),
            expected_s=90,
        )
        served = pieces.unit(
            "loads",
            within(lambda folder: _served(opened, folder, loads, seed)),
            expected_s=120,
        )
    figures = _figures(raced, ended, damaged, served, slug, results) | {"seed": seed}
    rows = [
        *({"fault": "loaders", **row} for row in [raced]),
        *({"fault": "kill", **row} for row in ended),
        *({"fault": "damage", **row} for row in damaged),
        *({"fault": "damaged load", **row} for row in served),
    ]
    print(f"{figures['lost']} lost, {figures['wrong']} wrong; {figures}")
    print(f"wrote {write_result('faults', slug, figures, rows, results)}")
    if figures["lost"] or figures["wrong"]:
        raise SystemExit(1)


def _built(work: Path) -> Bundle:
    more = ("--threads", "1")
    return build_bundle(
        str(MODEL), "8", "unfrozen", work / "bundle", work / "build", more
    )


def in_memory(work: Callable[[Path], Any]) -> Any:
    """Call `work` with an empty folder, in memory where there is such a place."""
    shared = Path("/dev/shm")
    root = shared if os.access(shared, os.W_OK) else None
    before = dict(os.environ)
    try:
        with tempfile.TemporaryDirectory(prefix="flytune-faults-", dir=root) as folder:
            return work(Path(folder))
    finally:
        os.environ.clear()
        os.environ.update(before)


def _raced(
    bundle: Bundle, folder: Path, count: int, serve: int, loads: Mapping[str, Any]
) -> dict[str, Any]:
    loads = {**loads, "install": [str(bundle.path), None]}
    slots = loads_that_fit()
    rows = at_once(bundle.path, folder, count, loads=loads, serve=serve, slots=slots)
    limit = tolerance(ProgramSpec.from_json(dict(bundle.manifest.program)))
    unlike = unlike_files(bundle.path, next((folder / "installed").glob("[!.]*")))
    row = of_loaders(rows, limit)
    return {**row, "at_a_time": min(slots, serve), "files_unlike": len(unlike)}


def _corrupted(bundle: Bundle, folder: Path, seed: int) -> list[dict[str, Any]]:
    (folder / "damaged").mkdir()
    return corrupted(folder / "damaged", prepared(bundle, folder), 12, seed)


def _served(
    bundle: Bundle, folder: Path, loads: Mapping[str, Any], seed: int
) -> list[dict[str, Any]]:
    request = {
        **{"bundle": str(bundle.path), "folder": str(folder), "loads": loads},
        "seed": seed,
    }
    rows: list[dict[str, Any]] = fresh("damaged_loads", request, what="damaged loads")
    return rows


def _figures(
    raced: Mapping[str, Any],
    ended: list[dict[str, Any]],
    damaged: list[dict[str, Any]],
    served: list[dict[str, Any]],
    slug: str,
    results: Path,
) -> dict[str, Any]:
    fuzzed = results / f"fuzz.{slug}.json"
    inputs = 0
    if fuzzed.exists():
        inputs = json.loads(fuzzed.read_text())["figures"]["fuzz_inputs"]
    both = [*ended, *damaged]
    unserved = sum(not (row.get("right") and row["expected"]) for row in served)
    silent = raced["failed"] + raced["misses"]
    return {
        "kills": sum(row["inputs"] for row in ended),
        "loaders": raced["loaders"],
        "served": raced["served"],
        "at_a_time": raced["at_a_time"],
        "fuzz_inputs": inputs,
        "damages": sum(row["inputs"] for row in damaged),
        "damaged_loads": len(served),
        "lost": sum(row[LOST] for row in both) + silent,
        "wrong": sum(row[WRONG] for row in both)
        + unserved
        + sum(raced[name] for name in ("wrong", "work", "files_unlike", "mended"))
        + sum(len(row["left"]) for row in ended),
        **{
            name.replace(" ", "_"): sum(row[name] for row in ended)
            for name in (OLD, NEW, PARTLY)
        },
    }


if __name__ == "__main__":
    main()

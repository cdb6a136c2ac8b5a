"""How long an engine of vLLM's takes to start: cold, with its own cache, with a bundle.

`python ci/bench/vllm_start.py [--model tiny] [--model wide] [--seconds 10]`, by the
Python of an environment with vLLM and flytune (`make test-vllm` makes `.venv-vllm`).

Each engine is a fresh process in a HOME of its own, under a ledger. With its own cache
is the third start on one directory: the second still compiles. The bundle is what
`flytune build --bake vllm` makes, in a HOME where nothing is. The CPU platform compiles
as its GPU platforms do, by the switch of the tests.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from results import ROOT, write_result

from flytune.caches.child import plain_environment
from flytune.caches.command import run_watched
from flytune.caches.install import exec_environment
from flytune.caches.ledger import ASIDE, Kind, summary
from flytune.caches.prepare import prepare
from flytune.caches.target import Target
from flytune.caches.trust import Trust
from flytune.caches.watch import Watch

SWITCH = ROOT / "tests" / "vllm" / "switch"
TINY = ROOT / "tests" / "vllm" / "tiny"
ENGINE = Path(__file__).parent / "vllm_engine.py"
MAIN = "from flytune.tuner.cli import main; main()"
COMMON = ("--dtype", "bfloat16", "--max-model-len", "512", "--max-num-seqs", "8")
SIZES = ("--compilation-config", '{"compile_sizes": [1, 8]}')
# Of a config that is the tests' own, what Llama-3.1-8B's is.
WIDE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "num_hidden_layers": 2,
}
MODELS: Mapping[str, Mapping[str, Any]] = {"tiny": {}, "wide": WIDE}
STARTS = ("cold", "warm", "bundle")


@click.command()
@click.option(
    "--model",
    "models",
    type=click.Choice(tuple(MODELS)),
    multiple=True,
    default=tuple(MODELS),
    show_default=True,
    help="wide: two layers of Llama-3.1-8B.",
)
@click.option("--seconds", default=10.0, show_default=True, help="Of steady state.")
def main(models: tuple[str, ...], seconds: float) -> None:
    """Measure, print, and write the result file."""
    rows = []
    for name in models:
        # Short, for vLLM's sockets lie there.
        with tempfile.TemporaryDirectory(prefix="vb-", dir="/tmp") as directory:
            rows += Starts(Path(directory), name, seconds).measured()
    figures = figures_of(rows)
    slug = Target.here(threads=len(os.sched_getaffinity(0))).slug
    print(f"wrote {write_result('vllm_start', slug, figures, rows)}")


class Starts:
    """The starts of one model's engine."""

    def __init__(self, folder: Path, model: str, seconds: float) -> None:
        self._folder, self._model, self._seconds = folder, model, seconds
        config = {**json.loads((TINY / "config.json").read_text()), **MODELS[model]}
        path = folder / "model"
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config))
        batch = ("--max-num-batched-tokens", "512")
        self._arguments = (str(path), *COMMON, *batch, *SIZES)

    def measured(self) -> list[dict[str, Any]]:
        """Return a row a start: cold, settled (the second), warm and bundle."""
        own = self._home("own")
        # Built first: so that no start finds the files of vLLM cold on disk.
        bundle = self._build()
        rows = [self._start(name, own) for name in ("cold", "second", "warm")]
        home = self._home("served")
        placed = prepare(
            bundle, self._folder / "i", strict=True, command=True, trust=Trust((), True)
        )
        return [*rows, self._start("bundle", {**exec_environment(placed), **home})]

    def _build(self) -> Path:
        out = self._folder / "bundle"
        words = ("build", "--engine", "vllm", "--bake", "vllm", "--no-sign")
        places = ("--work", str(self._folder / "work"), "--out", str(out))
        command = [sys.executable, "-c", MAIN, *words, *places, "--", *self._arguments]
        subprocess.run(command, check=True, env=self._home("built"))
        return out

    def _home(self, name: str) -> dict[str, str]:
        home = self._folder / name
        home.mkdir()
        env = {k: v for k, v in plain_environment().items() if k[:5] != "VLLM_"}
        paths = [str(SWITCH), *filter(None, [env.get("PYTHONPATH")])]
        return {
            **env,
            "PYTHONPATH": os.pathsep.join(paths),
            "HOME": str(home),
            "FLYTUNE_HOME": str(home / "flytune"),
            "TMPDIR": str(home),
            "SWITCH_BACKEND": "vllm",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        }

    def _start(self, name: str, env: Mapping[str, str]) -> dict[str, Any]:
        result = self._folder / f"{name}.json"
        words: Sequence[str] = (
            *(sys.executable, str(ENGINE), str(result), str(self._seconds)),
            *self._arguments,
        )
        with (self._folder / f"{name}.log").open("wb") as log:
            run = run_watched(words, env, Watch(), log)
        if run.code:
            tail = (self._folder / f"{name}.log").read_text()[-2000:]
            raise click.ClickException(f"the engine failed, {run.code}: {tail}")
        events = [event for one in run.processes for event in one.events]
        work = summary(e for e in events if e.kind not in ASIDE | {Kind.DYNAMIC})
        row = json.loads(result.read_text())
        shown = {key: round(value, 2) for key, value in row.items()}
        graphs = sum(one.graphs for one in run.processes)
        print(
            f"{self._model} {name}: {shown}, {graphs} graphs, work {work}", flush=True
        )
        return {
            **{"model": self._model, "start": name, **shown},
            **{"graphs": graphs, "work": work, "peak_gib": round(run.peak_gib, 2)},
        }


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each model's seconds to its first tokens, and its tokens a second."""
    figures: dict[str, Any] = {}
    for row in rows:
        name = f"{row['model']}_{row['start']}"
        figures[f"{name}_s"] = round(row["engine_s"] + row["first_s"], 2)
        figures[f"{name}_tokens_per_s"] = row["tokens_per_s"]
        figures[f"{name}_work"] = sum(row["work"].values())
    return figures


if __name__ == "__main__":
    main()

"""How long an engine of vLLM's takes to start: cold, with its own cache, with a bundle.

`python ci/bench/vllm_start.py [--model tiny] [--model wide] [--rounds 3]`, by the
Python of an environment with vLLM and flytune (`make test-vllm` makes `.venv-vllm`).

Each engine is a fresh process in a HOME of its own, under a ledger. With its own cache
are the starts after the second on one directory, which may still compile. The bundle is
what `flytune build --bake vllm` makes, in a HOME where nothing is. Those two take
turns, for a shared host's speed drifts by more than what is between them. The CPU
platform compiles as its GPU platforms do, by the switch of the tests.
"""

import json
import os
import statistics
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
@click.option("--rounds", default=3, show_default=True, help="Of warm and bundle.")
def main(models: tuple[str, ...], seconds: float, rounds: int) -> None:
    """Measure, print, and write the result file."""
    rows = []
    for name in models:
        # Short, for vLLM's sockets lie there.
        with tempfile.TemporaryDirectory(prefix="vb-", dir="/tmp") as directory:
            rows += Starts(Path(directory), name, seconds).measured(rounds)
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

    def measured(self, rounds: int) -> list[dict[str, Any]]:
        """Return a row a start: cold, the second, then warm and bundle in turn."""
        own = self._home("own")
        # Built first: so that no start finds the files of vLLM cold on disk.
        bundle = self._build()
        rows = [self._start(name, own) for name in ("cold", "second")]
        for number in range(rounds):
            rows += [self._start("warm", own), self._served(bundle, str(number))]
        return rows

    def _served(self, bundle: Path, number: str) -> dict[str, Any]:
        """Start with the bundle on a host that has had nothing of it."""
        home, into = self._home(f"served{number}"), self._folder / f"i{number}"
        trust = Trust((), True)
        placed = prepare(bundle, into, strict=True, command=True, trust=trust)
        return self._start("bundle", {**exec_environment(placed), **home})

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
    """Return each model's seconds to its first tokens, and its tokens a second.

    Medians of the starts of a kind; of their work the most that one did.
    """
    figures: dict[str, Any] = {}
    for model, start in dict.fromkeys((row["model"], row["start"]) for row in rows):
        same = [r for r in rows if (r["model"], r["start"]) == (model, start)]
        name = f"{model}_{start}"
        seconds = statistics.median(r["engine_s"] + r["first_s"] for r in same)
        rate = statistics.median(r["tokens_per_s"] for r in same)
        figures[f"{name}_s"] = round(seconds, 2)
        figures[f"{name}_tokens_per_s"] = round(rate, 1)
        figures[f"{name}_lowered"] = max(r["work"].get("lowered", 0) for r in same)
        figures[f"{name}_compiled"] = max(_compiled(r["work"]) for r in same)
        figures[f"{name}_starts"] = len(same)
    return figures


def _compiled(work: Mapping[str, int]) -> int:
    return sum(count for kind, count in work.items() if "compiled" in kind)


if __name__ == "__main__":
    main()

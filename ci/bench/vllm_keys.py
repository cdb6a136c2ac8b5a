"""Whether a changed factor of vLLM's key is named, and the key that of an engine.

`python ci/bench/vllm_keys.py [--only CHANGE]...`, by the Python of an environment with
vLLM and flytune (`make test-vllm` makes `.venv-vllm`).

Each change is made twice: the key is computed without an engine and compared with the
unchanged one, and an engine is started, which ends where it looks for its key.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from results import ROOT, write_result

from flytune.caches.target import Target
from flytune.caches.vllm_factors import AHEAD_DIR, VllmFactors, ask
from flytune.caches.vllm_why import predict

# Its CPU platform then compiles as its GPU platforms do.
SWITCH = ROOT / "tests" / "vllm" / "switch"
TINY = ROOT / "tests" / "vllm" / "tiny"
SERVE = {
    **{"--dtype": "bfloat16", "--max-model-len": "512", "--max-num-seqs": "8"},
    **{"--max-num-batched-tokens": "512"},
    **{"--compilation-config": '{"compile_sizes": [1, 8]}'},
}
STOP = """
import os

def register():
    import vllm.compilation.decorators as decorators

    def stop(model, path):
        with open(os.environ["STOP_FILE"], "a") as file:
            file.write(path + chr(10))
        os._exit(3)

    decorators._try_load_aot_compiled_fn = stop
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One factor, changed as one would change it without a thought."""

    what: str
    factor: str
    """The one that must be named."""
    options: Mapping[str, str] | None = None
    env: Mapping[str, str] | None = None
    config: tuple[str, str] | None = None
    """Text of the model's config.json, and what it becomes."""
    elsewhere: bool = False
    """Whether the model lies in another folder."""


SIZES = '{"compile_sizes": [8, 1]}'
CHANGES = (
    Change("the model lies in another folder", "model_config.model", elsewhere=True),
    Change(
        "another `rope_theta` in its config.json",
        "model_config.hf_config.rope_parameters.rope_theta",
        config=('"rope_theta": 5', '"rope_theta": 6'),
    ),
    Change(
        "the sizes in another order",
        "compilation_config.compile_sizes",
        {"--compilation-config": SIZES},
    ),
    Change(
        "`--max-model-len 256`",
        "model_config.max_model_len",
        {"--max-model-len": "256"},
    ),
    Change(
        "`--max-num-seqs 4`", "scheduler_config.max_num_seqs", {"--max-num-seqs": "4"}
    ),
    Change(
        "`--max-num-batched-tokens 256`",
        "scheduler_config.max_num_batched_tokens",
        {"--max-num-batched-tokens": "256"},
    ),
    Change("`--block-size 64`", "cache_config.block_size", {"--block-size": "64"}),
    Change("`--dtype float32`", "model_config.dtype", {"--dtype": "float32"}),
    Change(
        "`CUDA_HOME=/usr/local/cuda`",
        "environment.CUDA_HOME",
        env={"CUDA_HOME": "/usr/local/cuda"},
    ),
    Change(
        "a variable that Ray sets",
        "environment.RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
        env={"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"},
    ),
    Change(
        "`TORCHINDUCTOR_MAX_AUTOTUNE=1`",
        "inductor.max_autotune",
        env={"TORCHINDUCTOR_MAX_AUTOTUNE": "1"},
    ),
    Change(
        "`VLLM_USE_MEGA_AOT_ARTIFACT=0`",
        "environment.VLLM_USE_MEGA_AOT_ARTIFACT",
        env={"VLLM_USE_MEGA_AOT_ARTIFACT": "0"},
    ),
)
UNCHANGED = Change("nothing", "")


@click.command()
@click.option("--only", type=int, multiple=True, help="Number of a change, from 0.")
def main(only: tuple[int, ...]) -> None:
    """Make the changes, and print and write what came of them."""
    with tempfile.TemporaryDirectory(prefix="keys-") as directory:
        host = Host(Path(directory))
        baked, key, _ = host.tried(UNCHANGED)
        if set(baked.folders) != {key}:
            raise SystemExit(f"computed {baked.folders}, and the engine has {key}")
        rows = []
        for change in [CHANGES[at] for at in only] or CHANGES:
            rows.append(_row(host, change, replace(baked, exact=True)))
            # At once: an hour of engines is not lost with the last of them.
            _write(rows, key)


def _write(rows: list[dict[str, Any]], key: str) -> None:
    figures = {
        "changes": len(rows),
        "missed": sum(row["engine"] != key for row in rows),
        "foreseen": sum(not row["hit"] for row in rows),
        "named": sum(row["named"] for row in rows),
        "same_key": sum(row["engine"] == row["computed"] for row in rows),
        "compute_s": round(statistics.median(row["compute_s"] for row in rows), 1),
    }
    slug = Target.here(threads=len(os.sched_getaffinity(0))).slug
    path = write_result("vllm_keys", slug, figures, rows)
    print(f"wrote {path}: {figures}", flush=True)


class Host:
    """A home of its own, where nothing was ever compiled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        stop = folder / "stop"
        (stop / "stop-0.dist-info").mkdir(parents=True)
        (stop / "stop_at_key.py").write_text(STOP)
        info = stop / "stop-0.dist-info"
        info.joinpath("METADATA").write_text(
            "Metadata-Version: 2.1\nName: stop\nVersion: 0\n"
        )
        info.joinpath("entry_points.txt").write_text(
            "[vllm.general_plugins]\nstop = stop_at_key:register\n"
        )
        (folder / "home").mkdir()
        shutil.copytree(TINY, folder / "tiny")

    def tried(self, change: Change) -> tuple[VllmFactors, str, float]:
        """Return the factors, the engine's own key, and the seconds of the first."""
        env = self._environment(change.env or {})
        model = self.folder / "tiny"
        if change.elsewhere:
            model = Path(shutil.copytree(model, self.folder / "other" / "tiny"))
        options = {**SERVE, **(change.options or {})}
        words = [str(model), *(word for pair in options.items() for word in pair)]
        config = model / "config.json"
        text = config.read_text()
        if change.config is not None:
            assert change.config[0] in text
            config.write_text(text.replace(*change.config))
        try:
            start = time.perf_counter()
            factors = ask(words, env)
            seconds = time.perf_counter() - start
            return factors, self._engines_key(words, env), seconds
        finally:
            config.write_text(text)

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        foreign = ("VLLM_", "TORCHINDUCTOR_", "FLYTUNE_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        paths = [str(SWITCH), *filter(None, [kept.get("PYTHONPATH")])]
        return {
            **kept,
            **{"PYTHONPATH": os.pathsep.join(paths), "SWITCH_BACKEND": "vllm"},
            **{"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder)},
            **{"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **more},
        }

    def _engines_key(self, words: list[str], env: dict[str, str]) -> str:
        found = self.folder / "path"
        found.unlink(missing_ok=True)
        paths = f"{self.folder / 'stop'}{os.pathsep}{env['PYTHONPATH']}"
        done = subprocess.run(
            [sys.executable, "-m", "flytune.caches.vllm_session", *words],
            env={**env, "PYTHONPATH": paths, "STOP_FILE": str(found)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not found.exists():
            raise SystemExit(done.stdout[-4000:])
        (path,) = map(Path, found.read_text().splitlines())
        assert path.parents[2].match(f"*/{AHEAD_DIR}")
        return path.parents[1].name


def _row(host: Host, change: Change, baked: VllmFactors) -> dict[str, Any]:
    live, key, seconds = host.tried(change)
    prediction = predict(baked, live)
    names = {one.name: one for one in prediction.differences}
    row = {
        "change": change.what,
        "factor": change.factor,
        "named": change.factor in names,
        "line": names[change.factor].line if change.factor in names else "",
        "follows": [name for name in names if name != change.factor],
        "hit": prediction.hit,
        "computed": next(iter(live.keys.values())),
        "engine": key,
        "compute_s": round(seconds, 1),
    }
    # The model's folder is another one at each run.
    row["line"] = str(row["line"]).replace(str(host.folder), "/models")
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()

"""What each forward pass of a running engine asks for, module by module, against what
is derived: every linear with its sizes, type, bias and calls, and nothing besides.

The configs are real ones cut small. Experts' GEMMs are in one operator of vLLM's on a
CPU, whose arguments say them.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from engines import HERE, environment
from small_models import MODELS, REFUSED

from flytune.shapes.derive import derive_shapes
from flytune.shapes.gemm import GemmShape
from flytune.shapes.model_config import parse_config

pytestmark = pytest.mark.vllm

ARGUMENTS = (
    *("--dtype", "bfloat16", "--max-model-len", "512", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "512", "--enforce-eager"),
)
# Module, op, m, n, k, products or experts, A's type, bias.
Asked = tuple[str, str, int, int, int, int, str, bool]
# Where vLLM's parts of an MLA layer ask for their GEMMs.
LATENT = "self_attn.mla_attn.mla_attn"
PHASES = ("prefill alone", "decoding: kv_b absorbed")


def folder_of(folder: Path, name: str) -> Path:
    return folder / re.sub(r"\W+", "-", name)


@dataclass(frozen=True, slots=True)
class Models:
    """Models that are run one after another, in the order of the tests."""

    folder: Path
    process: subprocess.Popen[bytes]

    def ended(self, name: str) -> Path:
        """Wait until a model's engine has ended, and return the model's folder."""
        own = folder_of(self.folder, name)
        while self.process.poll() is None and not (own / "ended").exists():
            time.sleep(0.2)
        assert (own / "ended").exists(), (self.folder / "log").read_text()[-3000:]
        return own


@contextmanager
def running(folder: Path, names: Sequence[str], *more: str) -> Iterator[Models]:
    """Run the models of these names, each in a folder of its own."""
    configs = {**MODELS, **{name: config for name, (config, _) in REFUSED.items()}}
    for name in names:
        own = folder_of(folder, name)
        own.mkdir()
        (own / "config.json").write_text(json.dumps(configs[name]))
    folders = [str(folder_of(folder, name)) for name in names]
    words = [str(HERE / "model_passes.py"), *folders, "--", *ARGUMENTS, *more]
    with (
        tempfile.TemporaryDirectory(prefix="host-") as home,
        (folder / "log").open("wb") as log,
    ):
        env = environment(
            Path(home),
            "vllm",
            # In one process, and with no graph that would hide a call.
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            TORCHDYNAMO_DISABLE="1",
            # Several ranks may share a core.
            VLLM_CPU_OMP_THREADS_BIND="nobind",
        )
        process = subprocess.Popen(
            [sys.executable, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        try:
            yield Models(folder, process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def chosen(request: pytest.FixtureRequest) -> list[str]:
    """Return the models that this run's tests are of, by this fixture."""
    return [
        item.callspec.params["name"]
        for item in request.session.items
        if request.fixturename in getattr(item, "fixturenames", ())
        and item.path == request.path
    ]


@pytest.fixture(scope="module")
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Models]:
    with running(tmp_path_factory.mktemp("models"), chosen(request)) as models:
        yield models


@pytest.fixture(scope="module")
def ran_on_two_ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Models]:
    more = ("--tensor-parallel-size", "2")
    with running(tmp_path_factory.mktemp("ranks"), chosen(request), *more) as models:
        yield models


def passes(folder: Path, rank: int = 0) -> list[Counter[Asked]]:
    """Read what each pass asked for; layers are counted together."""
    refused = folder / "refused.txt"
    assert not refused.exists(), refused.read_text()[-3000:]
    found = []
    for line in (folder / f"{rank}.jsonl").read_text().splitlines():
        asked: Counter[Asked] = Counter()
        for name, *key, calls in json.loads(line):
            asked[re.sub(r"\.\d+(?=\.)", ".*", name), *key] += calls
        found.append(asked)
    return found


def without_scores(asked: Counter[Asked]) -> Counter[Asked]:
    """Leave out what MLA's attention itself asks for where a CPU has it in two bmm."""
    return Counter(
        {
            key: calls
            for key, calls in asked.items()
            if not (key[0].endswith(LATENT) and key[2] in key[3:5])
        }
    )


def wanted(rows: Iterable[GemmShape]) -> Counter[Asked]:
    asked: Counter[Asked] = Counter()
    for row in rows:
        name = re.sub(r"\.w(13|2)$", "", row.module)
        name = re.sub(r"self_attn\.W_U(K_T|V)$", LATENT, name)
        name = "logits_processor" if name == "lm_head" else name
        many = row.groups or row.batch
        key = (name, row.op, row.m, row.n, row.k, many, row.a_dtype, row.bias)
        asked[key] += row.count
    return asked


def ways(rows: tuple[GemmShape, ...]) -> Mapping[str, Counter[Asked]]:
    """Return what a pass may ask for, by its name.

    MLA's attention runs kv_b in prefill and what absorbs it in decoding; neither where
    memory is measured.
    """
    layers = [row for row in rows if row.module != "lm_head"]
    told = [tuple(one for one in PHASES if one in row.rule) for row in layers]
    found = {"head": wanted(row for row in rows if row.module == "lm_head")}
    for phase in ("no attention", *PHASES):
        kept = (row for row, own in zip(layers, told, strict=True) if phase in own)
        both = (row for row, own in zip(layers, told, strict=True) if not own)
        found[phase] = wanted(both) + wanted(kept)
    return found


def check(folder: Path, tp: int = 1, rank: int = 0) -> None:
    """Hold each pass of a rank against the rows of as many tokens."""
    text = (folder / "config.json").read_text()
    config = parse_config(text, name=folder.name, source=str(folder))
    seen, most = set(), 0
    for asked in passes(folder, rank):
        counted = Counter(key[2] for key in asked if key[1] in ("mm", "addmm"))
        ((tokens, _),) = counted.most_common(1)
        rows = derive_shapes(
            config, tp=tp, engine="vllm", tokens=(tokens,), platform="cpu"
        )
        bare = "no bias on the other ranks" if rank else "bias on rank 0"
        rows = tuple(
            row for row in rows if " bias on " not in row.rule or bare in row.rule
        )
        left = without_scores(asked)
        fits = [way for way, gemms in ways(rows).items() if gemms == left]
        nearest = min(
            ways(rows).values(), key=lambda gemms: len(gemms.items() ^ left.items())
        )
        assert fits, sorted(nearest.items() ^ left.items())
        seen.update(fits)
        most = max(most, tokens)
    latent = any(PHASES[0] in row.rule for row in rows)
    assert seen >= ({"head", *PHASES} if latent else {"head"}), seen
    assert most >= 32


@pytest.mark.parametrize("name", MODELS)
def test_passes_ask_for_what_is_derived(name: str, ran: Models) -> None:
    check(ran.ended(name))


@pytest.mark.parametrize(
    "name", ["Llama 3.1", "DeepSeek V3", "StarCoder2", "GPT-BigCode"]
)
def test_each_rank_asks_for_what_is_derived(
    name: str, ran_on_two_ranks: Models
) -> None:
    folder = ran_on_two_ranks.ended(name)
    for rank in (0, 1):
        check(folder, tp=2, rank=rank)


@pytest.mark.parametrize("name", REFUSED)
def test_engine_says_why_it_runs_no_such_model(name: str, ran: Models) -> None:
    said = (ran.ended(name) / "refused.txt").read_text()
    assert REFUSED[name][1] in said

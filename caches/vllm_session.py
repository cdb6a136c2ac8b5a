"""Run an engine of vLLM's once, as `vllm serve` would, with weights that are dummies.

`python -m flytune.caches.vllm_session ARGUMENTS`, as `vllm serve` takes them. Prompts
are run until each size that is compiled ahead was served, in prefill and in decode.
With FLYTUNE_VLLM_REPORT naming a file, what it took goes there, as one JSON line.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flytune.caches.child import die_with_parent
from flytune.caches.compat import private
from flytune.caches.vllm_key import engine_config
from flytune.caches.vllm_plugin import COUNTS_VARIABLE

REPORT_VARIABLE = "FLYTUNE_VLLM_REPORT"
"""Names the file."""
_SEED = 10_000
# One token comes of the prefill, and one of a decode.
_NEW_TOKENS = 2
_ONE_EACH = ("rank", "mode")
# Neither is in any key.
_WITHOUT_A_MODEL = ("--load-format=dummy", "--skip-tokenizer-init")


def main() -> None:
    """Run the engine of this command's arguments and end."""
    die_with_parent()
    # As the command `vllm` does.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    with tempfile.TemporaryDirectory(prefix="flytune-vllm-") as folder:
        os.environ[COUNTS_VARIABLE] = folder
        row = _run(sys.argv[1:])
        workers = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    if report := os.environ.get(REPORT_VARIABLE):
        _write(Path(report), row, workers)


def _write(report: Path, row: dict[str, Any], workers: list[dict[str, Any]]) -> None:
    """Write what it took, and of the workers their sums and each by itself."""
    workers.sort(key=lambda worker: int(worker["rank"]))
    total: Counter[str] = Counter()
    for worker in workers:
        total.update({k: v for k, v in worker.items() if k not in _ONE_EACH})
    line = json.dumps({**row, **total, "workers": workers}) + "\n"
    part = report.with_suffix(".part")
    part.write_text(line)
    part.replace(report)


def _run(words: Sequence[str]) -> dict[str, Any]:
    """Start the engine, serve every size, end it; return seconds and sizes."""
    start = time.perf_counter()
    imports()
    imported = time.perf_counter()
    engine = started_engine(words)
    started = time.perf_counter()
    try:
        sizes = served_sizes(engine.vllm_config)
        for size in sizes:
            serve(engine, size)
    finally:
        engine.engine_core.shutdown()
    return {
        "import_s": round(imported - start, 2),
        "engine_s": round(started - imported, 2),
        "serve_s": round(time.perf_counter() - started, 2),
        "sizes": sizes,
    }


def imports() -> None:
    """Import what an engine is made by."""
    private("vllm.v1.engine.llm_engine", "LLMEngine.from_vllm_config")


def started_engine(words: Sequence[str]) -> Any:
    """Return an engine with dummy weights, of the arguments of `vllm serve`."""
    engine_of = private("vllm.v1.engine.llm_engine", "LLMEngine.from_vllm_config")[2]
    return engine_of(engine_config([*words, *_WITHOUT_A_MODEL]))


def served_sizes(config: Any) -> list[int]:
    """Return the token counts to serve: those compiled or captured, and the largest.

    Args:
        config: a `VllmConfig`.
    """
    compilation = config.compilation_config
    fixed = {
        *(compilation.compile_sizes or ()),
        *(compilation.cudagraph_capture_sizes or ()),
    }
    largest = config.scheduler_config.max_num_batched_tokens
    sizes = {size for size in fixed if isinstance(size, int)} | {largest}
    return sorted(size for size in sizes if 0 < size <= largest)


def serve(engine: Any, size: int, new_tokens: int = _NEW_TOKENS, seed: int = 0) -> int:
    """Run prompts of so many tokens together, and as many decodes as there is room.

    Args:
        seed: Of the prompts: one that was seen is not run again.

    Returns:
        The tokens that were generated.
    """
    sampling = private("vllm.sampling_params", "SamplingParams")[2]
    params = sampling(max_tokens=new_tokens, ignore_eos=True, detokenize=False)
    config = engine.vllm_config
    vocabulary = config.model_config.get_vocab_size()
    chosen = random.Random(_SEED + size + seed)
    lengths = tuple(prompt_lengths(config, size))
    for number, length in enumerate(lengths):
        tokens = [chosen.randrange(vocabulary) for _ in range(length)]
        prompt = {"prompt_token_ids": tokens}
        engine.add_request(f"{size}-{number}", prompt, params)
    while engine.has_unfinished_requests():
        engine.step()
    return new_tokens * len(lengths)


def prompt_lengths(config: Any, size: int) -> Iterator[int]:
    """Yield the lengths of as many prompts as can run together, `size` tokens in all.

    Args:
        config: a `VllmConfig`.
    """
    room = config.model_config.max_model_len - _NEW_TOKENS
    count = min(size, config.scheduler_config.max_num_seqs)
    for left in range(count, 0, -1):
        length = min(-(-size // left), max(room, 1))
        yield length
        size -= length


if __name__ == "__main__":
    main()

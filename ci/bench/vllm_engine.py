"""One engine of vLLM's, timed: `python vllm_engine.py RESULT SECONDS ARGUMENTS`.

Arguments are those of `vllm serve`. The result is JSON: seconds to import vLLM, to
start the engine and to the first tokens, and tokens a second for so many seconds after.
"""

import json
import sys
import time
from pathlib import Path

from flytune.caches.vllm_session import imports, serve, served_sizes, started_engine

# Tokens of each sequence in a round of the steady state.
_NEW_TOKENS = 32


def main() -> None:
    """Time the engine of this command's arguments and write the result."""
    result, seconds, words = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    begin = time.perf_counter()
    imports()
    imported = time.perf_counter()
    engine = started_engine(words)
    started = time.perf_counter()
    try:
        sizes = served_sizes(engine.vllm_config)
        serve(engine, sizes[0])
        first = time.perf_counter()
        for size in sizes:
            serve(engine, size, seed=1)
        tokens, round_ = 0, 2
        steady = time.perf_counter()
        while (taken := time.perf_counter() - steady) < seconds:
            batch = engine.vllm_config.scheduler_config.max_num_seqs
            tokens += serve(engine, batch, _NEW_TOKENS, seed=round_)
            round_ += 1
    finally:
        engine.engine_core.shutdown()
    row = {
        "import_s": imported - begin,
        "engine_s": started - imported,
        "first_s": first - started,
        "tokens_per_s": tokens / taken,
    }
    result.write_text(json.dumps(row))


if __name__ == "__main__":
    main()

"""What the ledger of a watched command costs the process that it watches.

`python ci/bench/ledger.py [--sizes 8] [--calls 2000] [--rounds 15]`

The process times the ledger itself: what it imports, what it writes, and what it adds
to a call of a compiled graph, by calls with its wrapper and without, in turns. The
graphs are as small as they get, so that the share is an upper bound.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from results import write_result

from flytune.caches.command import command_environment, run_watched
from flytune.caches.policy import cpu_policy
from flytune.caches.target import Target
from flytune.caches.watch import Watch

PROGRAM = """
import json, statistics, sys, time

begin = time.perf_counter()
spent = {"start_s": 0.0, "write_s": 0.0}

def timed(owner, name, key):
    inner = getattr(owner, name)
    def call(*args):
        before = time.perf_counter()
        try:
            return inner(*args)
        finally:
            spent[key] += time.perf_counter() - before
    setattr(owner, name, call)

before = time.perf_counter()
import flytune.caches.watched as watched
spent["start_s"] += time.perf_counter() - before
timed(watched, "start", "start_s")
timed(watched.FileLedger, "_write", "write_s")

import torch
from torch._inductor.output_code import CompiledFxGraph

sizes, calls, rounds = map(int, sys.argv[2:])
linear = torch.nn.Linear(16, 16)
compiled = torch.compile(lambda x: torch.relu(linear(x)), dynamic=False)
inputs = [torch.randn(size + 1, 16) for size in range(sizes)]
torch._dynamo.config.recompile_limit = sizes
with torch.no_grad():
    for value in inputs:
        compiled(value)
    process_s = time.perf_counter() - begin
    watching, plain = CompiledFxGraph.__call__, CompiledFxGraph.__call__.__wrapped__

    def us(call):
        CompiledFxGraph.__call__ = call
        before = time.perf_counter()
        for _ in range(calls):
            compiled(inputs[0])
        return (time.perf_counter() - before) / calls * 1e6

    pairs = []
    for number in range(rounds):
        # In turns, for whoever comes second finds the caches warm.
        second = us(watching) if number % 2 else None
        first = us(plain)
        pairs.append((first, us(watching) if second is None else second))
with open(sys.argv[1], "w") as file:
    json.dump({
        **spent, "process_s": process_s,
        "call_us": statistics.median(one for one, _ in pairs),
        "added_us": statistics.median(two - one for one, two in pairs),
    }, file)
"""


@click.command()
@click.option("--sizes", default=8, show_default=True, help="Graphs that are compiled.")
@click.option("--calls", default=2000, show_default=True, help="Of a graph, a round.")
@click.option("--rounds", default=15, show_default=True)
def main(sizes: int, calls: int, rounds: int) -> None:
    """Measure, print, and write the result file."""
    row = _measured(sizes, calls, rounds)
    own_s = row["start_s"] + row["write_s"]
    figures = {
        "graphs": sizes,
        "process_s": round(row["process_s"], 3),
        "ledger_s": round(own_s, 4),
        "share_pct": round(100 * own_s / row["process_s"], 3),
        "call_us": round(row["call_us"], 3),
        "call_added_us": round(row["added_us"], 3),
        "call_share_pct": round(100 * row["added_us"] / row["call_us"], 3),
    }
    print(
        f"{sizes} graphs compiled in {figures['process_s']} s, of it the ledger took "
        f"{figures['ledger_s']} s: {figures['share_pct']} %; a call takes "
        f"{figures['call_us']} us and the ledger adds {figures['call_added_us']} us: "
        f"{figures['call_share_pct']} %"
    )
    slug = Target.here(threads=1).slug
    print(f"wrote {write_result('ledger', slug, figures, [row])}")


def _measured(sizes: int, calls: int, rounds: int) -> dict[str, Any]:
    """Run the program once, watched, on one thread and an empty cache directory."""
    policy = cpu_policy("unfrozen", tokens=(1,), threads=1, attention="sdpa")
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        folder = Path(directory)
        program, result = folder / "program.py", folder / "result.json"
        program.write_text(PROGRAM)
        numbers = map(str, (sizes, calls, rounds))
        words = [sys.executable, str(program), str(result), *numbers]
        env = command_environment(policy.for_command(), folder / "cache")
        run = run_watched(words, env, Watch(), sys.stderr)
        if run.code:
            raise click.ClickException(f"the program failed with exit {run.code}")
        row: dict[str, Any] = json.loads(result.read_text())
        return row


if __name__ == "__main__":
    main()

"""What a person reads after a build or a verification."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flytune.caches.ledger import Kind
from flytune.caches.manifest import Manifest
from flytune.caches.policy import CUDA_POLICY
from flytune.caches.verdict import Verdict
from flytune.shapes.reach import reach_words
from flytune.tuner.spent_words import spent_lines

if TYPE_CHECKING:
    from flytune.tuner.publish import Built

# What each policy can tune, for the person who chose one.
POLICY_NOTES = {
    "unfrozen": "graphs are cached; linears offer one candidate, bmm two",
    "frozen": "linears and bmm offer two candidates; torch caches no such graph "
    "and lowers each again at every start",
    CUDA_POLICY: "as torch.compile's mode of that name",
}


def built_text(built: "Built") -> str:
    """Return the summary of a build: winners, then the verdict."""
    manifest = built.manifest
    policy = str(manifest.policy["name"])
    lines = [
        f"{manifest.model['name']} for {manifest.target['hardware']['product']}",
        f"policy {policy}: {POLICY_NOTES.get(policy, '')}",
        "",
        *_result_lines(built),
        *_attention_lines(manifest),
        *spent_lines(manifest),
        f"bundle  {built.out}",
    ]
    return "\n".join(lines)


def _result_lines(built: "Built") -> list[str]:
    manifest = built.manifest
    if manifest.compiled_only:
        return _compiled_lines(built)
    assert built.verdict is not None, "what is baked is verified"
    return [
        *_winner_lines(manifest.winners),
        "",
        *_coverage_lines(manifest),
        *verdict_lines(built.verdict),
    ]


def _attention_lines(manifest: Manifest) -> list[str]:
    """Say whose the attention of an AMD GPU is, which is no GEMM of a plan."""
    hardware = manifest.target["hardware"]
    if (hardware.get("kind"), hardware.get("vendor")) != ("cuda", "amd"):
        return []
    return [
        "attention is not ours: AOTriton's kernels come tuned and prebuilt with torch"
    ]


def _compiled_lines(built: "Built") -> list[str]:
    row = built.manifest.coverage
    lines = []
    if row["sources"]:
        times = sum(row["sources"].values())
        lines += [*_winner_lines(built.manifest.winners), ""]
        lines.append(
            f"tuned   {row['tuned']} of {row['lists']} lists, by {times} times that "
            "others recorded; none was timed here"
        )
    lines.append(
        f"compiled for {row['lists']} lists: {_counted(row['candidates'])}; none was "
        "timed"
    )
    lines += [
        f"        {kind}: {_counted(some)}" for kind, some in row["by_kind"].items()
    ]
    lines += [f"        {name}: {said}" for name, said in row["eager"].items()]
    lines += [*_reach_lines(row), *_missing_lines(row)]
    if built.verdict is not None:
        hits = built.verdict.lookups.get("flydsl hit", 0)
        lines.append(f"verify  {hits} kernels of FlyDSL's found, compiling nothing")
        lines += [f"        {line}" for line in built.verdict.failures]
    return [*lines, "        where the device is: flytune build --from BUNDLE"]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _winner_lines(winners: Iterable[Mapping[str, Any]]) -> list[str]:
    rows = [("shape", "module", "winner", "us", "of")]
    for row in winners:
        if row["candidates"] < 2:
            continue
        modules = row["modules"]
        module = modules[0] + (f" +{len(modules) - 1}" if len(modules) > 1 else "")
        time = "-" if row["median_us"] is None else f"{row['median_us']:.1f}"
        winner = f"{row['backend']} {row['template']}"
        rows.append((row["shape"], module, winner, time, str(row["candidates"])))
    if len(rows) == 1:
        return ["no list had more than one candidate: nothing to tune"]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _coverage_lines(manifest: Manifest) -> list[str]:
    row = manifest.coverage
    lines = [
        f"tuned   {row['tuned']} of {row['lists']} lists; {row['without_choice']} "
        f"offer one candidate"
    ]
    for name, words in (
        ("untimed", "cannot be tried here, left to the library"),
        ("unplanned", "offered, and in no plan"),
    ):
        if row[name]:
            lines.append(f"        {len(row[name])} {words}: {'; '.join(row[name])}")
    lines += [*_reach_lines(row), *_missing_lines(row)]
    passes = manifest.bake["passes"]
    settled = "the last compiled nothing" if manifest.bake["settled"] else "not settled"
    lines.append(f"baked   {len(passes)} passes, {settled}")
    dropped = manifest.bake.get("dropped_guards")
    if dropped is not None:
        lines.append(
            f"        with precompiled entries, which lack {len(dropped)} of Dynamo's "
            "guards; `flytune inspect` names them"
        )
    return lines


def _reach_lines(coverage: Mapping[str, Any]) -> list[str]:
    """Say how many GEMMs serving asks Inductor for, where it is not all."""
    if not coverage["unreached"]:
        return []
    return [f"        {reach_words(coverage['reached'], coverage['unreached'])}"]


def _missing_lines(coverage: Mapping[str, Any]) -> list[str]:
    return [
        f"        {len(some)} planned, and lowered without a list: {'; '.join(some)}: "
        f"{why}"
        for why, some in coverage["missing"].items()
    ]


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the lines that say whether a bundle hits, and why not."""
    counts = {
        "lowered": verdict.work.get("lowered", 0),
        "tuned": verdict.work.get("tuned", 0),
        "compiled": sum(n for kind, n in verdict.work.items() if "compiled" in kind),
    }
    words = ", ".join(f"{count} {name}" for name, count in counts.items())
    lookups = ", ".join(f"{n} {name}" for name, n in verdict.lookups.items())
    result = "hit" if verdict.ok(strict=False) else "MISS"
    # Nobody times the calls of a command.
    timed = "" if verdict.processes else f"; first calls {verdict.first_call_s:.2f} s"
    lines = [
        f"verify  {result}: {words}{timed}",
        f"        graph lookups: {lookups or 'none'}",
    ]
    if verdict.worst_error is not None:
        lines.append(f"        largest difference from eager {verdict.worst_error:.4f}")
    if dynamic := verdict.aside.get(Kind.DYNAMIC):
        which = "hit" if verdict.ok(strict=False) else "were looked for"
        lines.append(f"        {dynamic} of the graphs that {which} have dynamic sizes")
    kinds = {kind: n for kind, n in verdict.aside.items() if kind != Kind.DYNAMIC}
    if kinds:
        aside = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in kinds.items())
        lines.append(f"        besides, as on every hit: {aside}")
    # Others only started them.
    did = (row for row in verdict.processes if row["graphs"] or row["work"])
    lines += map(_process_line, did)
    lines += [f"        uncacheable: {line}" for line in verdict.uncacheable]
    lines += [f"        {line}" for line in verdict.failures]
    return lines


def _process_line(row: Mapping[str, Any]) -> str:
    words = [f"{n} {kind.replace('_', ' ')}" for kind, n in row["work"].items()]
    words += [f"{n} {name}" for name, n in row["lookups"].items()]
    command = " ".join(row["command"])
    rank = "rank {} of {}, ".format(*row["rank"]) if row["rank"] else ""
    return (
        f"        {rank}process {row['pid']}: {row['graphs']} graphs called; "
        f"{', '.join(words) or 'nothing else'}: {command[:60]}"
    )

"""Choose the winner of one list from its samples.

Candidates that cannot be told from the fastest are a tie, and a tie is broken by a
fixed order: so independent builds agree. A build from an older bundle keeps its winner.
"""

from collections.abc import Mapping, Sequence

from flytune.caches.records import TuningRecord
from flytune.caches.ties import tied_with_fastest
from flytune.tuner.candidate import ATEN, Candidate


def choose(
    candidates: Sequence[Candidate],
    samples_us: Mapping[str, Sequence[float]],
    last: str = "",
) -> Candidate:
    """Return the winner among the candidates that have samples.

    Args:
        candidates: Those that survived, with a hash in `samples_us` each.
        samples_us: By choice hash, one sample a round, rounds aligned.
        last: The hash of an older bundle's winner, which a tie goes to.

    Raises:
        ValueError: there is no candidate.
    """
    if not candidates:
        raise ValueError("no candidate survived")
    tied = tied_with_fastest(
        {c.choice_hash: samples_us[c.choice_hash] for c in candidates}
    )
    if last in tied:
        return next(c for c in candidates if c.choice_hash == last)
    return min((c for c in candidates if c.choice_hash in tied), key=fixed_order)


def fixed_order(candidate: Candidate | TuningRecord) -> tuple[bool, str, str, str]:
    """Return the key that breaks ties: library kernels first, then the config."""
    return (
        candidate.backend != ATEN,
        candidate.backend,
        candidate.template or "",
        candidate.config,
    )

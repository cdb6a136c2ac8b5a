import json
import math
from pathlib import Path

import pytest

from flytune.caches.inductor import Timing, decision_ms, timings_file, write_timings
from flytune.shapes.errors import FlytuneError

SYSTEM = {"hash": "5e1f", "version": {"triton": "3"}, "device": {"name": None}}


def test_the_file_is_where_and_what_inductor_reads(tmp_path: Path) -> None:
    timings = [
        Timing("bmm", "key", "highest", "a", 0.5),
        Timing("bmm", "key", "highest", "b", math.inf),
        Timing("bmm", "other", "highest", "a", 0.25),
        Timing("mm", "key", "highest", "a", 2.0),
        Timing("mm", "key", "highest", "a", 2.0),
    ]
    path = write_timings(tmp_path, SYSTEM, timings)
    assert path == timings_file(tmp_path, "5e1f") == tmp_path / "cache" / "5e1f"
    assert [p.name for p in path.parent.iterdir()] == ["5e1f"]
    assert json.loads(path.read_text()) == {
        "system": SYSTEM,
        "cache": {
            "bmm": {
                "key": {"highest": {"a": 0.5, "b": math.inf}},
                "other": {"highest": {"a": 0.25}},
            },
            "mm": {"key": {"highest": {"a": 2.0}}},
        },
    }


def test_one_candidate_has_one_time(tmp_path: Path) -> None:
    timings = [Timing("mm", "key", "highest", "a", ms) for ms in (1.0, 2.0)]
    with pytest.raises(FlytuneError, match="two times in one list: `a`"):
        write_timings(tmp_path, SYSTEM, timings)
    assert not (tmp_path / "cache").exists()


def test_the_winner_leads() -> None:
    # Within the tie band the search may prefer the slower one.
    medians = {"library": 10.2, "template": 10.0, "slow": 20.0, "failed": None}
    assert decision_ms("library", medians) == {
        "library": pytest.approx(0.0102),
        "template": pytest.approx(0.0102102),
        "slow": 0.02,
        "failed": math.inf,
    }


def test_a_winner_without_a_time_still_leads() -> None:
    medians = {"a": None, "b": None}
    assert decision_ms("a", medians) == {"a": 1.0, "b": math.inf}

import os

import pytest

from flytune.tuner import quiet
from flytune.tuner.quiet import crowded


@pytest.mark.parametrize(
    ("busy", "threads", "warns"),
    [
        ((0.0, 0.0), 2, False),
        ((0.2, 0.2), 2, False),
        ((1.0, 0.0), 2, True),
        ((0.3, 0.3), 2, True),
        ((1.0, 0.0), 1, False),
        ((1.0, 1.0), 1, True),
        ((1.0,) * 4 + (0.0,) * 60, 32, False),
        ((0.9,) * 40 + (0.0,) * 24, 32, True),
        ((0.0,), 2, True),
    ],
)
def test_a_crowded_machine_is_told_of(
    busy: tuple[float, ...], threads: int, warns: bool
) -> None:
    assert bool(crowded(busy, threads)) == warns


def test_warning_says_who_takes_what() -> None:
    assert crowded((1.0, 0.4), 2) == (
        "time: warning: other processes use 1.4 of 2 cores, and 2 threads are timed: "
        "wait until they end, or times mean little"
    )


def test_cores_in_use_are_those_of_this_process() -> None:
    shares = quiet._busy_cores()
    assert len(shares) == len(os.sched_getaffinity(0))
    assert all(0 <= share <= 1 for share in shares)

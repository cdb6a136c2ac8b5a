import time
from types import SimpleNamespace

import pytest
from builds import run_python

from flytune.tuner import others
from flytune.tuner.others import Others


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_what_another_process_takes_is_counted() -> None:
    counted, start = Others(), time.monotonic()
    run_python("import time\nwhile time.process_time() < 2.0: pass")
    # Whatever else the host does comes to it.
    assert counted.cores() * (time.monotonic() - start) > 1.5


def test_what_this_process_takes_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own, wall = iter((10.0, 13.02)), iter((5.0, 6.5)), iter((0.0, 2.0))
    monkeypatch.setattr(others, "_busy_s", lambda: next(busy))
    monkeypatch.setattr(others, "_own_s", lambda: next(own))
    clock = SimpleNamespace(monotonic=lambda: next(wall))
    monkeypatch.setattr(others, "time", clock)
    assert Others().cores() == pytest.approx(0.75)


def test_own_seconds_are_the_kernels() -> None:
    before = others._own_s()
    spin(0.3)
    assert others._own_s() - before > 0.2

import multiprocessing
import time

from flytune.tuner.others import Others


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_own_work_is_no_others() -> None:
    others = Others()
    spin(0.5)
    quiet = others.cores()
    # Whatever else the host does, this process's own half second is not in it.
    process = multiprocessing.get_context("spawn").Process(target=spin, args=(2.0,))
    with_another = Others()
    process.start()
    process.join()
    assert process.exitcode == 0
    assert with_another.cores() > quiet

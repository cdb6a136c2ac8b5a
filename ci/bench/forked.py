"""Work in forked processes, which begin with all that this one has imported.

So a moment of the work itself can be picked, and not of an interpreter's start.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Work = Callable[[], int | None]
KILLED = -signal.SIGKILL
ENDED, CRASHED = 0, 99
# Audit events of what may change a file system.
_CHANGING = ("open", "os.", "shutil.", "fcntl.")


def start(work: Work) -> int:
    """Begin a process that ends with what `work` returns; return its number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = CRASHED
    try:
        code = work() or ENDED
    # Whatever it is, the parent sees that it did not end well.
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def run(work: Work) -> int:
    """Run `work` in a process to its end; return its exit code, or minus a signal."""
    return ended(start(work))


def ended(pid: int) -> int:
    """Wait for a process; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def took_s(work: Work) -> float:
    """Return the seconds of a run that must end well."""
    begun = time.monotonic()
    code = run(work)
    assert code == ENDED, f"it does not even work without a fault: exit {code}"
    return time.monotonic() - begun


def steps(work: Work) -> int:
    """Return how often `work` is about to touch the file system."""
    source, sink = os.pipe()

    def counted() -> None:
        counts = [0]
        _at_each_step(lambda: counts.append(counts.pop() + 1))
        work()
        os.write(sink, str(counts[0]).encode())

    code = run(counted)
    os.close(sink)
    with os.fdopen(source, "rb") as file:
        text = file.read()
    assert code == ENDED, f"it does not even work without a fault: exit {code}"
    return int(text)


def kill_after(work: Work, seconds: float) -> int:
    """Kill `work` after so long; return what ended it: KILLED, or its code."""
    pid = start(work)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return ended(pid)


def kill_before(work: Work, step: int) -> int:
    """Kill `work` just before it touches the file system for the `step`-th time."""

    def doomed() -> int | None:
        left = [step]

        def count() -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        _at_each_step(count)
        return work()

    return run(doomed)


def kill(work: Work, seconds: float, touches: int, moments: random.Random) -> int:
    """Kill `work` at a random moment of its time, or of what it does to files."""
    if moments.random() < 0.5:
        return kill_after(work, moments.uniform(0, seconds))
    return kill_before(work, moments.randint(1, touches))


def _at_each_step(call: Callable[[], Any]) -> None:
    # A hook stays for as long as its process, which is a child.
    def watch(event: str, _: tuple[Any, ...]) -> None:
        if event.startswith(_CHANGING):
            call()

    sys.addaudithook(watch)

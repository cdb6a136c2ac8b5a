import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from flytune.caches.child import clean_environment, run_module
from flytune.caches.policy import cpu_policy
from flytune.shapes.errors import FlytuneError

POLICY = cpu_policy("unfrozen", tokens=(1,), threads=3, attention="eager")


def run(body: str, folder: Path) -> dict[str, object]:
    """Run a child that has `request` and `result`, two paths."""
    (folder / "made_child.py").write_text(
        "import json, sys\n"
        "from pathlib import Path\n"
        "request, result = map(Path, sys.argv[1:])\n"
        f"{body}\n"
    )
    env = {**os.environ, "PYTHONPATH": str(folder)}
    path = folder / "result.json"
    run_module("made_child", {"number": 7}, path, env, what="the run")
    return {"text": path.read_text()}


def test_a_child_reads_its_request_and_writes_its_result(tmp_path: Path) -> None:
    body = "result.write_text(str(json.loads(request.read_text())['number']))"
    assert run(body, tmp_path) == {"text": "7"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "from flytune.shapes.errors import FlytuneError\n"
            "raise FlytuneError('no memory: `x`')",
            "the run failed: no memory: `x`",
        ),
        (
            # As torch does it: pages after the error itself.
            "import atexit\n"
            "atexit.register(print, 'hint\\n' * 40, file=sys.stderr)\n"
            "raise ValueError('a bug')",
            "the run failed: ValueError: a bug",
        ),
        ("print('one\\n\\ntwo'); sys.exit(3)", "the run failed with exit 3: one | two"),
        ("sys.exit(4)", "the run failed with exit 4: no output"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "the run was killed, most likely for want of memory",
        ),
    ],
)
def test_a_failed_child_is_one_line(body: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(FlytuneError) as caught:
        run(body, tmp_path)
    assert str(caught.value) == said
    assert not (tmp_path / "result.json").exists()


def test_an_interrupt_ends_the_child_and_its_children(tmp_path: Path) -> None:
    body = (
        "import subprocess, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(99)']\n"
        "child = subprocess.Popen(sleep)\n"
        f"Path({str(tmp_path / 'part')!r}).write_text(str(child.pid))\n"
        f"Path({str(tmp_path / 'part')!r}).rename({str(tmp_path / 'pid')!r})\n"
        "time.sleep(99)"
    )

    def interrupt() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(body, tmp_path)
    thread.join()
    grandchild = int((tmp_path / "pid").read_text())
    assert ends(grandchild)


def ends(pid: int) -> bool:
    """Wait for a process that was killed; its parent may never ask for it."""
    for _ in range(200):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_a_killed_parent_takes_its_child_along(tmp_path: Path) -> None:
    started = tmp_path / "started"
    child = (
        "import os, time\n"
        "from pathlib import Path\n"
        "from flytune.caches.child import die_with_parent\n"
        "die_with_parent()\n"
        f"Path({str(started)!r} + '.part').write_text(str(os.getpid()))\n"
        f"os.replace({str(started)!r} + '.part', {str(started)!r})\n"
        "time.sleep(99)"
    )
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], start_new_session=True)
    while not started.exists():
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert ends(int(started.read_text()))


def test_only_the_policys_settings_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = (
        "TORCHINDUCTOR_FREEZING",
        "TORCHDYNAMO_DISABLE",
        "TORCH_COMPILE_DEBUG",
        "TORCH_CACHING_PRECOMPILE",
        "TRITON_PRINT_AUTOTUNING",
        "FLYDSL_AUTOTUNE",
        "FLYTUNE_INSTALLED",
    )
    for name in foreign:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("KEPT", "yes")
    env = clean_environment(POLICY, tmp_path, MORE="too")
    assert [name for name in foreign if name in env] == []
    assert env["OMP_NUM_THREADS"] == "3"
    assert env["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert env["TRITON_CACHE_DIR"] == str(tmp_path / "triton" / "0")
    assert (env["KEPT"], env["MORE"]) == ("yes", "too")
    assert os.environ["TORCHINDUCTOR_FREEZING"] == "1"
    monkeypatch.chdir(tmp_path)
    env = clean_environment(POLICY, Path("relative"))
    assert env["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "relative")

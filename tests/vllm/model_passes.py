"""Run an engine of each of some models, which `flytune_passes` watches.

`python model_passes.py FOLDER... -- ARGUMENTS`: each folder is a model's. Its engine
writes there what its passes ask for, and `refused.txt` where it cannot be run, which
holds the engine's own words. Each model runs in a child of the one process that has
imported vLLM, which takes longer than a small model does.
"""

import os
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from vllm.model_executor.models import registry

from flytune.caches import vllm_session

ENDED = "ended"
"""What a model's folder holds when its engine has ended, whichever way."""


def main() -> None:
    """Run each model, one after another."""
    words = sys.argv[1:]
    folders, arguments = words[: words.index("--")], words[words.index("--") + 1 :]
    vllm_session.imports()
    # vLLM looks at a model's class in a process of its own, which imports vLLM anew.
    registry._run_in_subprocess = lambda work: work()
    _stand_in_for_torchvision()
    for folder in folders:
        child = os.fork()
        if not child:
            _run(Path(folder), arguments)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            (Path(folder) / "refused.txt").write_text(f"died of signal {-code}")
        (Path(folder) / ENDED).touch()


def _stand_in_for_torchvision() -> None:
    """Let models that also see be imported: their text models call none of it, and
    PyPI has no build of it for torch's CPU build."""
    if find_spec("torchvision") is None:
        transforms = ModuleType("torchvision.transforms.v2")
        transforms.functional = None  # type: ignore[attr-defined]
        sys.modules[transforms.__name__] = transforms


def _run(folder: Path, arguments: list[str]) -> NoReturn:
    os.environ["SWITCH_PASSES"] = str(folder)
    code = 0
    try:
        engine = vllm_session.started_engine([str(folder), *arguments])
        # A convolution of gated delta nets takes no single token.
        for size in (2, 8, 32):
            vllm_session.serve(engine, size)
        engine.engine_core.shutdown()
    # Whatever the engine says is what is asked for.
    except BaseException:
        (folder / "refused.txt").write_text(traceback.format_exc())
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

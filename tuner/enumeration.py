"""Stage 2: the lists of candidates that a program offers."""

import pickle
import tempfile
from pathlib import Path
from typing import Any

from flytune.caches.child import clean_environment, run_module
from flytune.caches.command import CommandSpec
from flytune.caches.device_profile import DeviceProfile, live_profile
from flytune.caches.hook.flytune_files import exposed
from flytune.caches.stand_in import stand_in_environment
from flytune.caches.vllm_program import VllmSpec
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import Enumeration
from flytune.tuner.command_stages import list_command
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.work import StartFarm

LISTS = "lists.pickle"
"""The file that keeps them, in a build's own directory."""
_PROBE = "flytune.tuner.probe"


def enumerate_lists(
    plan: Plan, options: BuildOptions, start: StartFarm, progress: Progress
) -> Enumeration:
    """Return the lists that the program offers; kept for a build that goes on.

    While they are made the workers start, which takes them as long.

    Raises:
        FlytuneError: the program cannot be lowered, or other users can write what is
            kept.
    """
    if isinstance(plan.program, CommandSpec):
        # What it does may have changed since: it is asked in each build.
        what = "vLLM's engine" if isinstance(plan.program, VllmSpec) else "the command"
        progress.say(f"enumerate: running {what} to list its candidates")
        start().warm()
        return list_command(plan, plan.program, options.space)
    path = plan.work / LISTS
    if not path.exists():
        what = "the program" if plan.program is not None else "each shape by itself"
        progress.say(f"enumerate: lowering {what} to list its candidates")
        with tempfile.TemporaryDirectory(prefix="flytune-enumerate-") as directory:
            absent = _absent(plan)
            request: dict[str, Any] = {
                "policy": plan.policy.to_json(),
                "search": options.space,
                "profile": None if absent is None else absent.to_json(),
                "shapes": [shape.to_row() for shape in plan.shapes],
            }
            if plan.program is not None:
                request["program"] = plan.program.to_json()
            # The C++ templates need the instruction set's name, not its trial builds.
            more = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
            if absent is not None:
                more |= stand_in_environment(absent)
            env = clean_environment(plan.policy, Path(directory), **more)
            start().warm()
            run_module(_PROBE, request, path, env, what="enumeration")
    elif (open_to := exposed(str(plan.work))) is not None:
        # A pickle is code, and so are the kernels beside it.
        raise FlytuneError(
            f"work directory can be written by other users: {open_to}",
            hint="make it your own and chmod go-w, or name another --work",
        )
    found: Enumeration = pickle.loads(path.read_bytes())
    return found


def _absent(plan: Plan) -> DeviceProfile | None:
    """Return the profile of an accelerator that this host lacks."""
    if plan.profile is None:
        return None
    live = live_profile()
    here = live is not None and live.is_same(plan.profile)
    return None if here else plan.profile

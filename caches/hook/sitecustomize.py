"""Runs in every Python child of `flytune exec`; arms the hook, then stands aside."""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def _next_sitecustomize() -> None:
    """Run the environment's own, which this file hides."""
    here = os.path.realpath(os.path.dirname(__file__))
    others = [path for path in sys.path if os.path.realpath(path or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


# An older Python holds no torch that a bundle is for, and cannot read the hook.
if sys.hexversion >= 0x030A0000:
    importlib.import_module("flytune_start").start()
_next_sitecustomize()

"""The plugin by which a plain vLLM serves from a bundle.

vLLM calls `register` in every process of an engine before it makes its configuration,
and so before anything is compiled. Where no bundle is named nothing happens.
"""

import os

BUNDLE_VARIABLE = "FLYTUNE_BUNDLE"
"""Names the bundle, as `flytune exec` takes it."""
STRICT_VARIABLE = "FLYTUNE_STRICT"
"""Set, and not to 0: what the bundle does not hold is an error, and not compiled."""
COUNTS_VARIABLE = "FLYTUNE_VLLM_COUNTS"
"""Names a folder that each process that runs a model writes its counts into."""


def register() -> None:
    """Serve this process of vLLM's from the bundle that its environment names.

    Raises:
        FlytuneError: strict, and the bundle is not used.
    """
    bundle = os.environ.get(BUNDLE_VARIABLE)
    if not bundle and not os.environ.get(COUNTS_VARIABLE):
        return
    from flytune.caches.vllm_watch import EngineWatch

    strict = os.environ.get(STRICT_VARIABLE, "") not in ("", "0")
    if not bundle:
        EngineWatch(None, strict=False).arm()
        return
    from flytune.caches.install import install_imported

    installed = install_imported(bundle, strict=strict)
    if installed.directory is not None:
        EngineWatch(installed.directory, strict=strict).arm()

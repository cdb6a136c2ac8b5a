"""Which FlyDSL candidates are one build."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from flytune.tuner.candidate import TensorSpec


def build_key(source: str, inputs: Sequence[TensorSpec]) -> str:
    """Return the same for candidates that compile to one artifact, as hex.

    Args:
        source: The rendered template.
        inputs: Of the list that offers it.
    """
    text = json.dumps([source, [asdict(spec) for spec in inputs]])
    return hashlib.sha256(text.encode()).hexdigest()

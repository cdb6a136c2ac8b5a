"""`flytune explain`: what an engine would find of a bundle, before it is started."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flytune.caches.bundle import Bundle
from flytune.caches.prepare import environment_of
from flytune.caches.trust import Trust, admit
from flytune.tuner.trust_options import trust_options

if TYPE_CHECKING:
    from flytune.caches.vllm_factors import VllmFactors
    from flytune.caches.vllm_why import Prediction

_LORA = "--enable-lora"


@click.command("explain")
@click.argument("bundle", type=click.Path(readable=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--engine",
    type=click.Choice(["vllm"]),
    required=True,
    help="Whose key is computed.",
)
@click.option("--lora", is_flag=True, help="Say what `--enable-lora` would change.")
@trust_options
@click.option("--json", "as_json", is_flag=True, help="JSON lines, one a factor.")
def explain_command(
    bundle: Path,
    arguments: tuple[str, ...],
    engine: str,
    lora: bool,
    trust: Trust,
    as_json: bool,
) -> None:
    """Predict whether an engine hits BUNDLE, and say each factor by which it would not.

    ARGUMENTS, after `--`, are those of `vllm serve`, the model first; left out, the
    bundle's own. The environment is this one. No engine is started.

    Exits 1 if it would miss.
    """
    from flytune.caches.vllm_factors import ask
    from flytune.caches.vllm_program import VllmSpec
    from flytune.caches.vllm_why import baked_factors, predict

    opened = Bundle.open(bundle)
    # Its arguments and its environment are those of a process that runs here.
    admit(opened, trust)
    manifest = opened.manifest
    baked = baked_factors(manifest)
    words = list(arguments or VllmSpec.from_json(manifest.program).arguments)
    if lora and _LORA not in words:
        words.append(_LORA)
    policy = manifest.policy
    env = {**os.environ, **environment_of(manifest)}
    live = ask(words, env, policy.get("inductor", {}))
    prediction = predict(baked, live)
    if as_json:
        for row in _rows(prediction, live):
            click.echo(json.dumps(row))
    else:
        click.echo("\n".join(_lines(prediction, live)))
    if not prediction.hit:
        raise click.exceptions.Exit(1)


def _rows(prediction: "Prediction", live: "VllmFactors") -> Iterator[dict[str, object]]:
    yield {
        "row": "prediction",
        "hit": prediction.hit,
        "exact": prediction.exact,
        "folders": list(prediction.folders),
        "baked": list(prediction.baked),
        "reason": prediction.reason,
        "version": live.version,
    }
    for difference in prediction.differences:
        yield {"row": "difference", **difference.to_json()}


def _lines(prediction: "Prediction", live: "VllmFactors") -> Iterator[str]:
    from flytune.caches.vllm_estimate import estimate_lines
    from flytune.caches.vllm_factors import places

    wanted, held = _short(prediction.folders), _short(prediction.baked)
    looks = f"vLLM {live.version} looks for {wanted}"
    if prediction.hit:
        yield f"hit      {looks}, which the bundle holds"
    else:
        yield f"miss     {looks}; the bundle holds {held}"
    for difference in prediction.differences:
        yield f"differs  {difference.line}"
    if prediction.reason:
        yield f"why      {prediction.reason}"
    if not prediction.exact:
        yield "note     the key itself is the engine's: what it is made of was compared"
    if prediction.hit:
        for place in places(live):
            yield f"note     the key holds a path: {place.name}: {place.value}"
        return
    for line in estimate_lines(live):
        yield f"bake     {line}"


def _short(folders: tuple[str, ...]) -> str:
    return ", ".join(folder[:16] for folder in folders) or "torch's own keys"

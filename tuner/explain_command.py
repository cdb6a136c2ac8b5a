"""`flytune explain`: why a GEMM's winner won, or what an engine would find."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flytune.caches.bundle import Bundle
from flytune.caches.held import records_of
from flytune.caches.lists import lists_of
from flytune.caches.prepare import environment_of
from flytune.caches.trust import HERE, Trust, admit
from flytune.caches.words import counted, plain
from flytune.shapes.errors import FlytuneError
from flytune.tuner.explain_shape import explain, rows
from flytune.tuner.explain_words import lines, listing
from flytune.tuner.named_lists import find_lists, is_shape
from flytune.tuner.trust_options import trust_options

if TYPE_CHECKING:
    from flytune.caches.vllm_factors import VllmFactors
    from flytune.caches.vllm_why import Prediction

_LORA = "--enable-lora"
_MOST_EXPLAINED = 4
"""Lists that are explained at once, but for --json."""


@click.command("explain")
@click.argument("bundle", type=click.Path(readable=False, path_type=Path))
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="[SHAPE | -- ARGUMENTS...]"
)
@click.option(
    "--list", "every", is_flag=True, help="List the GEMMs of BUNDLE, and explain none."
)
@click.option(
    "--engine", type=click.Choice(["vllm"]), help="Whose key is computed, not SHAPE's."
)
@click.option("--lora", is_flag=True, help="Say what `--enable-lora` would change.")
@trust_options
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
def explain_command(
    bundle: Path,
    words: tuple[str, ...],
    every: bool,
    engine: str | None,
    lora: bool,
    trust: Trust,
    as_json: bool,
) -> None:
    """Explain the choice of one GEMM, or predict whether an engine hits BUNDLE.

    SHAPE is as tables print it, `mm (16, 4096, 1024)`, or in short, `16x4096x1024`;
    or a module's path, its end or a pattern; or the start of a choice hash, of 6
    characters or more. Nothing of BUNDLE is loaded, so it need not be trusted.

    With --engine ARGUMENTS, after `--`, are those of `vllm serve`, the model first;
    left out, the bundle's own. The environment is this one. No engine is started, but
    what BUNDLE says of it is used: it must be trusted.

    Exits 1 if there is no such list or more than 4, or the engine would miss.
    """
    _check(words, every, engine, lora, trust)
    if every:
        _list(Bundle.open(bundle), as_json)
    elif engine is None:
        _explain_shape(Bundle.open(bundle), " ".join(words), as_json)
    else:
        _explain_engine(bundle, words, lora, trust, as_json)


def _check(
    words: tuple[str, ...], every: bool, engine: str | None, lora: bool, trust: Trust
) -> None:
    """Refuse words that belong to the other form of the command.

    Raises:
        click.UsageError: they do, or there is neither.
    """
    if every and (words or engine is not None):
        raise click.UsageError("--list is of all GEMMs: no SHAPE and no --engine")
    if engine is not None:
        if is_shape(" ".join(words)):
            raise click.UsageError(
                "a SHAPE is explained without --engine, whose ARGUMENTS begin with "
                f"the model: `{' '.join(words)}`"
            )
        return
    if lora:
        raise click.UsageError("--lora is of an engine: --engine vllm")
    if trust != HERE:
        raise click.UsageError("whom to trust is asked with --engine alone")
    if not every and not " ".join(words).strip():
        raise click.UsageError("give SHAPE, --list, or --engine vllm")
    if option := next((word for word in words if word.startswith("--")), None):
        raise click.UsageError(
            f"an engine's arguments need --engine vllm, and no SHAPE has: `{option}`"
        )


def _list(bundle: Bundle, as_json: bool) -> None:
    lists = lists_of(records_of(bundle))
    if not as_json:
        click.echo("\n".join(listing(lists)))
        return
    for one in explain(bundle, lists):
        click.echo(json.dumps(next(rows(one))))


def _explain_shape(bundle: Bundle, words: str, as_json: bool) -> None:
    found = find_lists(lists_of(records_of(bundle)), words, bundle.manifest)
    if as_json:
        for one in explain(bundle, found):
            for row in rows(one):
                click.echo(json.dumps(row))
        return
    if len(found) > 1:
        click.echo(f"{counted(len(found), 'list')} are of `{words}`:")
        click.echo("\n".join(listing(found)))
    if len(found) > _MOST_EXPLAINED:
        raise FlytuneError(
            f"explained at once are {_MOST_EXPLAINED} lists at most, and "
            f"{len(found)} are of: `{words}`",
            hint=f"name one, such as `{plain(found[0].name)}`, or take --json",
        )
    for number, one in enumerate(explain(bundle, found)):
        if number or len(found) > 1:
            click.echo()
        click.echo("\n".join(lines(one)))


def _explain_engine(
    bundle: Path, arguments: tuple[str, ...], lora: bool, trust: Trust, as_json: bool
) -> None:
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
        click.echo("\n".join(map(plain, _lines(prediction, live))))
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

"""The page: one HTML file that holds all that it shows, and asks for nothing.

What comes from a bundle is text wherever it stands: templates escape it, the script
sets it as text, and the page's policy lets no other script run than its own.
"""

import base64
import datetime
import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from flytune.caches.bundle import Bundle
from flytune.caches.keyring import read_keyring
from flytune.caches.report import cost, failures, grids, passes, races, roofline
from flytune.caches.report.beside import beside
from flytune.caches.report.bundles import ReportedBundle, read_bundles
from flytune.caches.report.cost import Cost
from flytune.caches.report.facts import (
    Judgement,
    LeftOut,
    facts,
    judgement,
    left_out,
)
from flytune.caches.report.failures import Fate, Reason
from flytune.caches.report.grids import Grid
from flytune.caches.report.listing import ListRow, columns, list_rows, page_data
from flytune.caches.report.passes import PassChart
from flytune.caches.report.races import Canary, Noise, Races
from flytune.caches.report.roofline import Roofline
from flytune.caches.trust import Signer, signers
from flytune.caches.words import (
    counted,
    percent_text,
    ratio_text,
    seconds_text,
    time_text,
    tokens_text,
)

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

_FILES = resources.files("flytune.caches.report")
_TEMPLATES = ("page.html", "charts.html", "chapter.html", "beside.html")


@dataclass(frozen=True, slots=True)
class Chapter:
    """All that the page says of one bundle."""

    bundle: ReportedBundle
    judgement: Judgement
    facts: tuple[tuple[str, str], ...]
    figures: tuple[tuple[str, str, str], ...]
    """A value, what it is, and what it is beside."""
    passes: PassChart | None
    choice_lead: str
    winners: Grid
    speedups: tuple[Grid, ...]
    roofline: Roofline | None
    races: Races | None
    noise: Noise | None
    canary: Canary | None
    fates: tuple[Fate, ...]
    reasons: tuple[Reason, ...]
    failures_lead: str
    cost: Cost | None
    left_out: tuple[LeftOut, ...]
    columns: tuple[tuple[str, str], ...]
    rows: tuple[ListRow, ...]


def page_of(bundles: Sequence[Bundle]) -> str:
    """Return the report of at least one bundle, as HTML.

    Raises:
        FlytuneError: as `read_bundles`; a user's key cannot be read, or a signature is
            over another manifest.
    """
    from markupsafe import Markup

    keyring = read_keyring()
    reported = read_bundles(bundles)
    chapters = [_chapter(one, signers(one.bundle, keyring)) for one in reported]
    data = [page_data(one.bundle, one.roofline) for one in chapters]
    style, script = map(_text, ("style.css", "script.js"))
    environment = _environment()
    environment.globals.update(
        counted=counted,
        seconds_text=seconds_text,
        time_text=time_text,
        geometry=_GEOMETRY,
    )
    return environment.get_template("page.html").render(
        chapters=chapters,
        beside=beside(reported),
        data=_script_safe(data),
        style=Markup(style),
        script=Markup(script),
        policy=_content_policy(style, script),
        title=", ".join(one.name for one in reported),
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=importlib.metadata.version("flytune"),
    )


_GEOMETRY = {"passes": passes, "roofline": roofline, "races": races, "cost": cost}
"""Modules whose constants say where their charts lie."""


def _text(name: str) -> str:
    """Return a file of this package, which is UTF-8 whatever the locale is."""
    return _FILES.joinpath(name).read_text(encoding="utf-8")


def _environment() -> "jinja2.Environment":
    import jinja2

    return jinja2.Environment(
        loader=jinja2.DictLoader({name: _text(name) for name in _TEMPLATES}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _chapter(bundle: ReportedBundle, signed_by: tuple[Signer, ...]) -> Chapter:
    return Chapter(
        bundle,
        judgement(bundle.manifest),
        facts(bundle, signed_by),
        tuple(_figures(bundle)),
        passes.pass_chart(bundle),
        grids.choice_lead(bundle),
        grids.winners_grid(bundle),
        grids.speedup_grids(bundle),
        roofline.roofline(bundle),
        races.races(bundle),
        races.noise(bundle),
        races.canary(bundle),
        failures.fates(bundle),
        failures.reasons(bundle),
        failures.failures_lead(bundle),
        cost.cost(bundle),
        left_out(bundle.manifest),
        columns(bundle),
        list_rows(bundle),
    )


def _figures(bundle: ReportedBundle) -> list[tuple[str, str, str]]:
    """Return the few numbers that the page begins with."""
    figures = []
    timed = [tokens for tokens in bundle.tokens if passes.pass_us(bundle, tokens)]
    for tokens in dict.fromkeys(timed[:1] + timed[-1:]):
        us, aten = (passes.pass_us(bundle, tokens, name) for name in ("", "aten"))
        beside_it = f"{ratio_text(aten / us)} as fast as ATen" if us and aten else ""
        what = f"GEMMs of a pass, {tokens_text(tokens)}{_part(bundle, tokens)}"
        figures.append((time_text(us), what, beside_it))
    decided = sum(bool(o.us) and len(o.tuned.records) > 1 for o in bundle.lists)
    of = f"of {counted(len(bundle.lists), 'list')}"
    figures.append((str(decided), "lists decided by times", of))
    every = failures.fates(bundle)
    candidates, failed = sum(f.candidates for f in every), sum(f.failed for f in every)
    share = percent_text(failed / candidates) if failed else "none"
    figures.append((f"{candidates:,}", "candidates", f"{share} failed"))
    if device := cost.device_s(bundle):
        figures.append((seconds_text(device), "of the device", "to check and time"))
    return figures


def _part(bundle: ReportedBundle, tokens: int) -> str:
    """Say how many lists of a pass have times; nothing where all have."""
    lists = [one for one in bundle.lists if one.tokens == tokens]
    timed = sum(bool(one.us) for one in lists)
    whole = timed == len(lists)
    return "" if whole else f", of {timed} of {counted(len(lists), 'list')}"


def _script_safe(value: Any) -> "Markup":
    """Return JSON that no text of can end the script element that holds it."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _content_policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy by which nothing runs or loads but the page."""

    def digest(text: str) -> str:
        sha = hashlib.sha256(text.encode()).digest()
        return f"'sha256-{base64.b64encode(sha).decode()}'"

    return (
        f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )

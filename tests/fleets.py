"""Fleets of tiny models, planned for one thread of this host's CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from small_bundles import bare_manifest

from flytune.caches.keyring import own_key
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, write_records
from flytune.caches.verdict import Verdict
from flytune.tuner.build_command import build_command
from flytune.tuner.build_identity import build_identity
from flytune.tuner.fleet_plan import Asked, FleetModel, plan_fleet
from flytune.tuner.progress import Progress
from flytune.tuner.publish import Built


def ask(folder: Path, *models: Path, **changes: Any) -> list[Asked]:
    fixed = ("--tokens", "1,8", "--threads", "1", "--work", str(folder / "work"))
    found = []
    for number, model in enumerate(models, 1):
        options = build_command.options_of(["--model", str(model), *fixed])
        asked = Asked(f"f.toml: [[models]] {number}", options)
        found.append(replace(asked, options=replace(options, **changes)))
    return found


def planned(folder: Path, *models: Path, **changes: Any) -> tuple[FleetModel, ...]:
    return plan_fleet(ask(folder, *models, **changes), folder, "fleet", Progress())


def publish(model: FleetModel, **changes: Any) -> Built:
    """Publish a small bundle that says that it is a model's."""
    manifest = bare_manifest(
        model={"name": model.name, "tp": 1, "ep": 1, "engine": "transformers"},
        program={"kind": "model", "name": model.name},
        policy=model.plan.policy.to_json(),
        target=model.plan.target.to_json(),
        bake={"passes": [{}], "settled": True, "remaining": {}},
        verify={"ok": True},
        provenance={"build": build_identity(model.plan, model.options)},
    )
    staged = model.plan.work.parent / f"staged-{model.name}"
    (staged / "inductor").mkdir(parents=True, exist_ok=True)
    (staged / "inductor" / model.name).write_text(model.name)
    write_records((), staged / RECORDS_NAME)
    keys = [own_key()] if model.options.sign else []
    manifest = replace(manifest, **changes)
    pack(staged, manifest, model.plan.out, keys=keys)
    return Built(model.plan.out, manifest, Verdict((), (), {}, {}, {}, 0.0, None, 0.0))

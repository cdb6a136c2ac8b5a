import hashlib
import tempfile
from pathlib import Path

import pytest
from vllm_sample import KEY, baked_root, factors

from flytune.caches.manifest import canonical_json, parse_object
from flytune.caches.vllm_factors import (
    VllmFactors,
    ask,
    check_portable,
    places,
    portable_environment,
    program_row,
)
from flytune.shapes.errors import FlytuneError

OTHER = "b" * 64
CODE = "57a690b1"


def test_factors_survive_the_manifest() -> None:
    made = factors(code=CODE)
    row = parse_object(canonical_json(made.to_json()), "factors")
    assert VllmFactors.from_json(row) == made


@pytest.mark.parametrize(
    "row",
    [
        None,
        {},
        {**factors().to_json(), "directory": 1},
        {**factors().to_json(), "more": 1},
        {**factors().to_json(), "parts": {"vllm": {"hash": "1"}}},
        {**factors().to_json(), "keys": "key"},
    ],
)
def test_what_is_not_of_the_form(row: object) -> None:
    with pytest.raises(FlytuneError, match="factors of vLLM's key are malformed"):
        VllmFactors.from_json(row)


@pytest.mark.parametrize("place", ["home", "temporary", "working", "flytune"])
def test_no_path_of_the_building_machine_is_stored(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / name for name in ("home", "temporary", "working")}
    for folder in folders.values():
        folder.mkdir()
    folders["flytune"] = tmp_path / "flytune"
    monkeypatch.setenv("HOME", str(folders["home"]))
    monkeypatch.setenv("FLYTUNE_HOME", str(folders["flytune"]))
    monkeypatch.setattr(tempfile, "tempdir", str(folders["temporary"]))
    monkeypatch.chdir(folders["working"])
    path = f"{folders[place]}/cuda"
    for text in (path, str(folders[place]), f'["a", "{path}"]'):
        with pytest.raises(
            FlytuneError, match=r"path of this machine: environment\.CU"
        ):
            check_portable(factors(environment__CUDA_HOME=text), ["m"])
    # Its name only starts alike.
    check_portable(factors(environment__CUDA_HOME=f"{folders[place]}-12"), ["m"])


def test_a_path_that_the_arguments_name_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = str(tmp_path / "llama")
    made = factors(model_config__model=model)
    with pytest.raises(FlytuneError, match="path of this machine"):
        program_row(["--port", "80"], made)
    for arguments in ([model], [f"--model={model}"]):
        row = program_row(arguments, made)
        assert row["kind"] == "vllm"
        assert row["arguments"] == arguments
        assert row["key"] == KEY
        assert VllmFactors.from_json(row["factors"]) == made
    assert places(made) == (("model_config.model", model),)


@pytest.mark.parametrize("value", ["1", "true", "0"])
def test_rays_own_variables_are_not_stored(value: str) -> None:
    name = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    check_portable(factors(), [])
    check_portable(factors(environment__VLLM_RAY_BUNDLE_INDICES=""), [])
    for changed in (
        factors(**{f"environment__{name}": value}),
        factors(environment__VLLM_RAY_BUNDLE_INDICES=value),
    ):
        with pytest.raises(FlytuneError, match="a variable of Ray's"):
            check_portable(changed, [value])
    env = {name: value, "VLLM_RAY_BUNDLE_INDICES": value, "PATH": "/bin"}
    assert portable_environment(env) == {"PATH": "/bin"}


def test_a_bake_that_used_the_key(tmp_path: Path) -> None:
    root = baked_root(tmp_path, KEY, code=CODE)
    baked = factors(exact=False).after_bake(root)
    assert baked.exact
    assert baked.code == CODE
    assert baked.folders == {KEY}


def test_a_class_that_the_engine_did_not_run(tmp_path: Path) -> None:
    keys = {"LlamaModel.forward": KEY, "Vision.forward": OTHER}
    baked = factors(keys=keys, exact=False).after_bake(baked_root(tmp_path, KEY))
    assert baked.exact
    assert baked.keys == {"LlamaModel.forward": KEY}


def test_a_bake_under_another_key(tmp_path: Path) -> None:
    baked = factors(exact=False).after_bake(baked_root(tmp_path, OTHER))
    assert not baked.exact
    assert baked.keys == {}


def test_a_bake_that_kept_nothing(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match=r"vLLM kept nothing .* VLLM_COMPILE"):
        factors().after_bake(tmp_path)


def test_the_directory_beside(tmp_path: Path) -> None:
    """vLLM's way: the first ten digits over environment, configs, code, compiler."""
    made = factors(environment__VLLM_USE_MEGA_AOT_ARTIFACT="false", exact=False)
    assert made.directory_key == ""
    hashed = str(["e" * 64, "c" * 10, CODE, "d" * 10])
    name = hashlib.sha256(hashed.encode()).hexdigest()[:10]
    root = baked_root(tmp_path, KEY, beside=name, code=CODE)
    baked = made.after_bake(root)
    assert baked.exact
    assert baked.folders == {KEY, name}
    # Without compiling ahead of time it is the only one.
    alone = factors(
        environment__VLLM_USE_MEGA_AOT_ARTIFACT="false",
        shapes={"ahead": False},
        exact=False,
    ).after_bake(root)
    assert alone.exact
    assert alone.folders == {name}


def test_torchs_own_caches_alone(tmp_path: Path) -> None:
    shapes = {"ahead": False, "mode": "DYNAMO_TRACE_ONCE"}
    baked = factors(shapes=shapes, exact=False).after_bake(tmp_path)
    assert not baked.exact
    assert baked.folders == frozenset()


def test_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flytune.caches.compat.VLLM_WHEELS", ("no-such-vllm",))
    with pytest.raises(FlytuneError, match="vLLM is not installed") as caught:
        ask(["model"])
    assert caught.value.hint == "run flytune from the environment that serves"

"""What is near to words that no list of a bundle fits."""

from collections.abc import Iterable

import pytest
from small_bundles import bare_manifest

from flytune.caches.lists import lists_of
from flytune.caches.records import Status, TuningRecord
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape
from flytune.tuner.named_lists import find_lists

UP = GemmShape("mm", 16, 4096, 1024, module="layers.*.mlp.up_proj")
MANIFEST = bare_manifest()
NEAR = "near it: mm (16, 4096, 1024)"
NOTHING = "it has nothing near"
UP_PROJ = f"near it: {UP.module}"


def hint(words: str, shapes: Iterable[GemmShape] = (UP,)) -> str:
    """What is said where a bundle of these lists has none of those words."""
    records = [
        TuningRecord.of_shape(
            shape,
            backend="aten",
            template="mm",
            config="{}",
            choice_hash="mm-c5zqk7",
            status=Status.OK,
            inputs_key=str(shape),
        )
        for shape in shapes
    ]
    with pytest.raises(FlytuneError, match="bundle has no list of: ") as caught:
        find_lists(lists_of(records), words, MANIFEST)
    assert caught.value.hint is not None
    return caught.value.hint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("16x4096x1025", NEAR),
        ("8x2048x500", NEAR),
        ("4096x1024", NEAR),
        ("mm", NEAR),
        ("MM (16, 4096, 1000)", NEAR),
        ("0x4096x1024", NEAR),
        ("16x4096x1024 at lm_head", f"{NEAR} at {UP.module}"),
        ("32x16x4096x1024", NOTHING),
        ("1x32x32", NOTHING),
        ("1x2x3x4x5", NOTHING),
        (f"16x4096x{'9' * 5000}", NOTHING),
        ("bmm", NOTHING),
        ("zzz", NOTHING),
        ("lm_head", NOTHING),
        ("UP_PROJ", UP_PROJ),
        ("own_proj", UP_PROJ),
        ("mlp.upproj", UP_PROJ),
    ],
)
def test_what_is_near(words: str, said: str) -> None:
    assert hint(words) == f"{said}; all 1 list: flytune explain B --list"


def test_the_nearest_is_first() -> None:
    sizes = (64, 128, 256, 512, 1024)
    shapes = [GemmShape("mm", 16, n, 1024, module=f"linear_{n}") for n in sizes]
    assert hint("16x300x1024", shapes) == (
        "near it: mm (16, 256, 1024), mm (16, 512, 1024), mm (16, 128, 1024); "
        "all 5 lists: flytune explain B --list"
    )


def test_an_op_comes_before_sizes() -> None:
    shapes = [UP, GemmShape("bmm", 16, 1024, 1024, batch=4)]
    assert hint("bmm (16, 4096, 1024)", shapes).startswith(
        "near it: bmm 4x(16, 1024, 1024), mm (16, 4096, 1024); "
    )
    assert hint("bmm", shapes).startswith("near it: bmm 4x(16, 1024, 1024); ")


@pytest.mark.parametrize("words", ["mm-", "c5zq"])
def test_the_start_of_a_hash_that_is_too_short(words: str) -> None:
    assert hint(words) == (
        f"the start of a choice hash has 6 characters at least, and `{words}` has "
        f"{len(words)}"
    )


def test_a_bundle_of_no_lists() -> None:
    assert hint("16x4096x1024", ()) == "it holds no list at all"

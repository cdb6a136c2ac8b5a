"""Which candidates of two bundles are one kernel."""

from dataclasses import replace

import pytest
from tuned_bundles import Tune, aten, shape, triton

from flytune.caches.lists import lists_of
from flytune.caches.regression.kernels import (
    counterpart,
    is_alike,
    is_same,
    kernel_name,
)

RECORDS = Tune(1).list_of(shape(0), [triton(10.0), triton(11.0, 128), aten(12.0)])
FIRST, SECOND, LIBRARY = RECORDS


@pytest.mark.parametrize("same_software", [True, False])
def test_code_is_known_by_its_bytes(same_software: bool) -> None:
    """Whatever Inductor calls it, and whichever Triton has compiled it."""
    renamed = replace(FIRST, choice_hash="other")
    assert is_same(FIRST, renamed, same_software=same_software)
    compiled_anew = replace(FIRST, kernel_digest="0" * 64)
    assert not is_same(FIRST, compiled_anew, same_software=same_software)
    assert is_alike(FIRST, compiled_anew)
    assert not is_same(FIRST, SECOND, same_software=same_software)
    assert not is_alike(FIRST, SECOND)


def test_a_librarys_kernel_is_that_of_its_release() -> None:
    assert is_same(LIBRARY, LIBRARY, same_software=True)
    assert not is_same(LIBRARY, LIBRARY, same_software=False)
    assert not is_same(LIBRARY, replace(LIBRARY, choice_hash="b"), same_software=True)
    assert not is_same(LIBRARY, FIRST, same_software=True)


def test_the_same_code_goes_before_the_same_choice() -> None:
    alike = replace(FIRST, kernel_digest="0" * 64)
    moved = replace(FIRST, config='{"BLOCK_M":32}')
    (both,) = lists_of([alike, moved])
    assert counterpart(FIRST, both, same_software=True) is moved
    (one,) = lists_of([alike, SECOND])
    assert counterpart(FIRST, one, same_software=True) is alike
    (none,) = lists_of([SECOND, LIBRARY])
    assert counterpart(FIRST, none, same_software=True) is None


def test_a_kernels_name_leaves_out_what_says_nothing() -> None:
    assert kernel_name(LIBRARY) == "aten mm"
    assert kernel_name(FIRST) == 'triton triton_mm {"BLOCK_M":64}'

import json

from fakes import library
from flydsl_candidates import Rendered
from long_lists import triton

from flytune.tuner.candidate import FLYDSL
from flytune.tuner.describe import constants
from flytune.tuner.smart.geometry import Geometry, geometry_of


def test_tritons_parameters_are_read_as_inductor_writes_them() -> None:
    one = triton(64, 256, 128, 3, 8)
    found = geometry_of(one.backend, one.config)
    assert found == Geometry(64, 256, 128, stages=3, warps=8, group_m=8)


def test_flydsls_parameters_are_read_from_inductors_own_candidates(
    flydsl_kernels: tuple[Rendered, ...],
) -> None:
    found = {
        geometry_of(FLYDSL, json.dumps(constants(one.kernel.source)))
        for one in flydsl_kernels
    }
    assert None not in found
    # The first of a list that Inductor made: 128 x 128 x 64, two stages, 4 x 4 waves.
    assert Geometry(128, 128, 64, stages=2, warps=16, group_m=0) in found


def test_what_has_no_such_parameters_has_no_geometry() -> None:
    assert geometry_of("aten", library().config) is None
    assert geometry_of("triton", '{"description": "of another template"}') is None
    untold = triton(-1, -1, -1, 3, 4)
    assert geometry_of(untold.backend, untold.config) is None
    assert geometry_of("decompose_k", '{"description": "k_split=4"}') is None

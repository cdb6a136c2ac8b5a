"""Problems of each op that gfx950 is asked for, and the policy that asks FlyDSL."""

from dataclasses import replace

from flytune.caches.device_profile import find_profile
from flytune.caches.policy import cuda_policy
from flytune.shapes.gemm import FP4, GemmShape

MI355X = find_profile("mi355x")
_POLICY = cuda_policy(
    tokens=(1,), threads=2, attention="sdpa", backends=("ATEN", "TRITON", "FLYDSL")
)
POLICY = replace(
    _POLICY, inductor={**_POLICY.inductor, "flydsl_enable_autotuning": True}
)

MM = GemmShape("mm", 256, 8192, 8192)
GROUPED = GemmShape("grouped_mm", 4096, 2048, 2048, groups=8, layout="NN")
FP8 = replace(MM, op="scaled_mm", a_dtype="float8_e4m3fn", b_dtype="float8_e4m3fn")
MXFP8 = replace(FP8, scaling="mxfp8")
MXFP4 = replace(MXFP8, a_dtype=FP4, b_dtype=FP4, scaling="mxfp4")
FLOAT = {name: "float32" for name in ("a_dtype", "b_dtype", "out_dtype")}
SHAPES = {
    "mm": MM,
    "mm NN": replace(MM, layout="NN"),
    "mm large": replace(MM, m=4096),
    "mm K=32": replace(MM, k=32),
    "mm K=8200": replace(MM, k=8200),
    "mm N=8190": replace(MM, n=8190),
    "mm float32": replace(MM, **FLOAT),
    "mm m=1": replace(MM, m=1),
    "mm narrow": replace(MM, m=16, n=128),
    "addmm": replace(MM, op="addmm", bias=True),
    "bmm": GemmShape("bmm", 256, 1024, 1024, batch=8, layout="NN"),
    "grouped NN": GROUPED,
    "grouped TN": replace(GROUPED, layout="TN"),
    "mxfp8": MXFP8,
    "mxfp8 m=1": replace(MXFP8, m=1),
    "mxfp8 K=8160": replace(MXFP8, k=8160),
    "mxfp8 bias": replace(MXFP8, bias=True),
    "mxfp4": MXFP4,
    "rowwise": replace(FP8, scaling="rowwise"),
    "tensorwise": replace(FP8, scaling="tensorwise"),
}

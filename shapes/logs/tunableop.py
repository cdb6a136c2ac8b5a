"""TunableOp's files: `tunableop_untuned*.csv` and `tunableop_results*.csv`.

Source: `Signature` of the parameters in aten/src/ATen/cuda/tunable/GemmCommon.h, the
names of operations in TunableGemm.h, and `_process_single_offline_gemm` of
torch/cuda/tunable.py. BLAS counts column by column: its m are the columns of our
B, the features of a linear, its n our m.
"""

import csv
import io
import re

from flytune.shapes.gemm import Op
from flytune.shapes.logs.observed import ImpossibleRowError, ObservedGemm, Tally

VALIDATOR = "Validator"
# PyTorch's names of types in the names of operations.
_TYPES = {
    "BFloat16": "bfloat16",
    "Half": "float16",
    "float": "float32",
    "Float": "float32",
    "tf32": "float32",
    "double": "float64",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e4m3fnuz": "float8_e4m3fnuz",
    "Float8_e5m2": "float8_e5m2",
    "Float8_e5m2fnuz": "float8_e5m2fnuz",
}
_OP = re.compile(r"(Gemm|GemmAndBias|GemmStridedBatched)TunableOp_(\w+)_([NT]{2})")
_TYPE = "|".join(sorted(_TYPES, key=len, reverse=True))
_SCALED = re.compile(rf"ScaledGemmTunableOp_({_TYPE})_({_TYPE})_({_TYPE})_([NT]{{2}})")
_ANY_OP = re.compile(r"\w*Gemm\w*TunableOp_\w+")
_KEY = re.compile(
    r"(?P<letters>[nt]{2})_(?P<m>\d{1,10})_(?P<n>\d{1,10})_(?P<k>\d{1,10})(?:_B_(?P<batch>\d{1,10}))?"
    r"(?:_ld_(?P<lda>\d{1,10})_(?P<ldb>\d{1,10})_(?P<ldc>\d{1,10}))?"
    # Of scaled GEMMs: ROCm's form, and the one that CUDA has since torch 2.15.
    r"(?:_rw_(?P<rowwise>[01])_bias_(?P<bias>\w+)"
    r"|_a_\w+_as_\w+_ast_(?P<scaled>\d)_bst_\d_\w+_bias_(?P<bias_type>\w+))?"
)
# A sum over a bias that is no vector is a plain GEMM to it.
_OPS: dict[str, tuple[Op, ...]] = {
    "Gemm": ("mm", "addmm"),
    "GemmAndBias": ("addmm",),
    "GemmStridedBatched": ("bmm",),
}


def holds(text: str) -> bool:
    """Whether a text is such a file: its first line names a validator or an op."""
    first = text.lstrip().partition("\n")[0].split(",")[0]
    return first == VALIDATOR or _ANY_OP.fullmatch(first) is not None


def read(text: str, tally: Tally) -> None:
    """Count the GEMMs of either file, of old and new versions."""
    for cells in csv.reader(io.StringIO(text)):
        row = [cell.strip() for cell in cells]
        if not any(row) or row[0] == VALIDATOR:
            continue
        try:
            # Results have the choice and its time in milliseconds besides.
            if len(row) not in (2, 4):
                raise ImpossibleRowError("not the columns of a GEMM")
            if len(row) == 4 and not _is_time(row[3]):
                raise ImpossibleRowError("time is not above zero")
            tally.add(entry(row[0], row[1]))
        except ImpossibleRowError as error:
            tally.set_aside(str(error))


def entry(name: str, key: str) -> ObservedGemm:
    """Return the GEMM of an operation and its key.

    Args:
        name: such as "GemmTunableOp_BFloat16_TN".
        key: such as "tn_8192_16_4096_ld_4096_4096_8192"; older ones end before "_ld".

    Raises:
        ImpossibleRowError: the form is none that is known, or the leading dimensions
            do not fit the sizes.
    """
    found = _KEY.fullmatch(key)
    if found is None:
        raise ImpossibleRowError("unknown form of key")
    _check_strides(found)
    scaled, plain = _SCALED.fullmatch(name), _OP.fullmatch(name)
    if scaled is not None:
        # Which of the two is A differs between versions.
        types = tuple(sorted({_TYPES[scaled[1]], _TYPES[scaled[2]]}))
        ops: tuple[Op, ...] = ("scaled_mm",)
        out, letters = _TYPES[scaled[3]], scaled[4]
    elif plain is not None:
        if plain[2] not in _TYPES:
            raise ImpossibleRowError(f"unknown type: {plain[2][:40]}")
        types, ops = (_TYPES[plain[2]],), _OPS[plain[1]]
        out, letters = types[0], plain[3]
    else:
        raise ImpossibleRowError(f"unknown operation: {name[:60]}")
    if (ops == ("bmm",)) != (found["batch"] is not None):
        raise ImpossibleRowError("a batch does not go with the operation")
    if letters != found["letters"].upper():
        raise ImpossibleRowError("name and key transpose differently")
    return ObservedGemm(
        ops=ops,
        m=int(found["n"]),
        n=int(found["m"]),
        k=int(found["k"]),
        batch=int(found["batch"] or 1),
        a_dtypes=types,
        b_dtypes=types,
        out_dtypes=(out,),
        layouts=(letters,),
        scalings=_SCALINGS[found["rowwise"] or found["scaled"]],
        bias=_bias(found),
    )


def _check_strides(found: re.Match[str]) -> None:
    """Refuse leading dimensions below what the sizes need, as of a swapped N and K."""
    if found["lda"] is None:
        return
    m, n, k = (int(found[name]) for name in ("m", "n", "k"))
    letters = found["letters"]
    least = {
        "lda": k if letters[0] == "t" else m,
        "ldb": n if letters[1] == "t" else k,
        "ldc": m,
    }
    if any(int(found[name]) < size for name, size in least.items()):
        raise ImpossibleRowError("leading dimensions do not fit the sizes")


_SCALINGS: dict[str | None, tuple[str, ...]] = {
    None: (),
    "0": ("tensorwise",),
    "1": ("rowwise",),
    # Blocks of kinds that the number alone does not say.
    **dict.fromkeys(map(str, range(2, 10)), ()),
}


def _bias(found: re.Match[str]) -> bool | None:
    said = found["bias"] or found["bias_type"]
    return None if said is None else said != "None"


def _is_time(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False

"""The monoids of reductions as ALU operations and their identities."""

from __future__ import annotations

from glia.base.dtype import DType
from glia.isa.alu import ALU_OPS

REDUCE_OPS = {
    "add": "add", "multiply": "multiply", "maximum": "maximum", "minimum": "minimum",
    "and": "minimum", "or": "maximum", "xor": "not_equal",
}  # fmt: skip
INTEGER_OPS = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}


def reduce_op(function: str, dtype: DType) -> str:
    """The ALU operation of a monoid on a dtype; booleans are 0 and 1."""
    return (
        INTEGER_OPS.get(function, REDUCE_OPS[function])
        if dtype.is_integer
        else REDUCE_OPS[function]
    )


def exact_engine(op: str) -> str:
    """The engine that combines 32-bit integers with an ALU operation exactly."""
    return "vector" if ALU_OPS[op].family == "bitvec" else "gpsimd"


def identity(function: str, dtype: DType) -> float | int:
    """The identity element of a monoid on a dtype."""
    lowest, highest = _range(dtype)
    return {
        "add": 0, "multiply": 1, "maximum": lowest, "minimum": highest,
        "and": 1 if dtype.bits == 8 and not dtype.is_integer else highest, "or": 0, "xor": 0,
    }[function]  # fmt: skip


def _range(dtype: DType) -> tuple[float | int, float | int]:
    if dtype.is_float:
        return float("-inf"), float("inf")
    if not dtype.is_integer:
        return 0, 1
    if dtype.name.startswith("s"):
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1

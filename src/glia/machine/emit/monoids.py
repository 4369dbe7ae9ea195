"""The monoids of reductions as ALU operations, and their identities as numbers."""

from __future__ import annotations

from glia.base.dtype import DType
from glia.graph.ops import scalar_regions
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
    """The identity element of a monoid on a dtype, as an instruction takes it."""
    neutral = scalar_regions.identity(function, dtype).item()
    return neutral if dtype.is_float else int(neutral)

"""XLA shapes as graph types, bounded before anything is allocated."""

from __future__ import annotations

from typing import Any

from glia.base.dtype import DTYPES, DType
from glia.base.loc import UNKNOWN, Loc
from glia.frontend.errors import DynamicShape, MalformedModule, TensorTooLarge, UnknownDType
from glia.graph.ir import TensorType, TupleType, Type

LARGEST_TENSOR_BYTES = 2**40
LARGEST_RANK = 32

TUPLE, _TOKEN = 13, 17
ELEMENT_TYPES: dict[int, str] = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 15: "c64", 16: "bf16", 18: "c128", 19: "f8e5m2",
    20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz",
    26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip

ELEMENT_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


def read_type(shape: Any, instruction: str = "", loc: Loc = UNKNOWN) -> Type:
    """The graph type of a ShapeProto; a token is the empty tuple.

    Raises UnknownDType, DynamicShape, TensorTooLarge or MalformedModule, naming `instruction`.
    """
    if shape.element_type == TUPLE:
        return TupleType(tuple(read_type(s, instruction, loc) for s in shape.tuple_shapes))
    if shape.element_type == _TOKEN:
        return TupleType(())
    return read_tensor_type(shape, instruction, loc)


def read_tensor_type(shape: Any, instruction: str = "", loc: Loc = UNKNOWN) -> TensorType:
    """The tensor type of an array ShapeProto; errors as `read_type`."""
    dtype = _dtype(shape.element_type, instruction, loc)
    dimensions = tuple(shape.dimensions)
    text = f"{dtype}[{','.join(map(str, dimensions[:LARGEST_RANK]))}]"
    if any(shape.is_dynamic) or any(extent == -(2**63) for extent in dimensions):
        raise DynamicShape(name=instruction or "a tensor", shape=text, loc=loc)
    if any(extent < 0 for extent in dimensions):
        raise MalformedModule(
            reason=f"shape {text} has a negative dimension", instruction=instruction, loc=loc
        )
    if len(dimensions) > LARGEST_RANK:
        reason = f"{len(dimensions)} dimensions, the limit is {LARGEST_RANK}"
        raise TensorTooLarge(shape=text, reason=reason, instruction=instruction, loc=loc)
    result = TensorType(dtype, dimensions)
    if any(extent > LARGEST_TENSOR_BYTES for extent in dimensions) or (
        result.bytes > LARGEST_TENSOR_BYTES
    ):
        reason = f"more than {LARGEST_TENSOR_BYTES} bytes"
        raise TensorTooLarge(shape=text, reason=reason, instruction=instruction, loc=loc)
    return result


def _dtype(element_type: int, instruction: str, loc: Loc) -> DType:
    name = ELEMENT_TYPES.get(element_type)
    if name is None:
        raise UnknownDType(
            element_type=element_type, known=" ".join(DTYPES), instruction=instruction, loc=loc
        )
    return DTYPES[name]


def leaves(declared: Type) -> tuple[TensorType, ...]:
    """Every tensor type in a type, in order, tuples flattened."""
    if isinstance(declared, TensorType):
        return (declared,)
    return tuple(leaf for element in declared.elements for leaf in leaves(element))

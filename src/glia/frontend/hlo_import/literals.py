"""Constants: LiteralProto payloads as NumPy arrays, without turning weights into Python numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glia.base.dtype import DType, Kind
from glia.base.loc import UNKNOWN, Loc
from glia.frontend.errors import BadLiteral
from glia.frontend.hlo_import.payloads import Bytes
from glia.frontend.hlo_import.shapes import read_tensor_type
from glia.graph.ir import TensorType
from glia.graph.scalar import wrap

_VARINT_DTYPES = {"s32", "s64", "u32", "u64"}
_LONGEST_VARINT_BYTES = 10


def read_literal(
    literal: Any, instruction: str = "", loc: Loc = UNKNOWN, payloads: Sequence[Bytes] = ()
) -> np.ndarray:
    """The read-only array a non-tuple LiteralProto holds, in row-major order.

    `payloads` are those of the module that are apart from it. Raises BadLiteral when the payload
    does not hold exactly the elements of the shape.
    """
    declared = read_tensor_type(literal.shape, instruction, loc)
    payload = _payload(literal, getattr(literal, f"{declared.dtype}s"), payloads)

    def mismatch(found: str, expected: str) -> BadLiteral:
        return BadLiteral(
            type=declared, found=found, expected=expected, instruction=instruction, loc=loc
        )

    try:
        flat = _elements(payload, declared)
    except _Mismatch as error:
        raise mismatch(error.found, error.expected) from None
    order = tuple(literal.shape.layout.minor_to_major)
    if order and sorted(order) != list(range(len(declared.shape))):
        raise mismatch(f"layout {list(order)}", "a permutation of its dimensions")
    array = _row_major(flat, declared.shape, order)
    array.flags.writeable = False
    return array


def _payload(literal: Any, chunks: Sequence[bytes], payloads: Sequence[Bytes]) -> Bytes:
    """The bytes of a literal's elements: its field's, or those apart that it has the number of."""
    if len(chunks) != 1:
        return b"".join(chunks)
    is_apart = not chunks[0] and 0 < literal.payload_number <= len(payloads)
    return payloads[literal.payload_number - 1] if is_apart else chunks[0]


class _Mismatch(Exception):
    """A payload that does not fit; carries what was found and what was expected."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found)
        self.found = found
        self.expected = expected


def _elements(payload: Bytes, declared: TensorType) -> np.ndarray:
    """The payload's elements in memory order."""
    dtype = declared.dtype
    if dtype.name in _VARINT_DTYPES:
        return _decode_varints(payload, declared.elements, dtype)
    expected = declared.elements * dtype.bytes
    if len(payload) != expected:
        raise _Mismatch(f"{len(payload)} bytes", f"{expected} bytes")
    data = np.frombuffer(payload, np.uint8)
    if dtype.name == "pred" and data.max(initial=0) > 1:
        raise _Mismatch(f"the byte {data.max()}", "only 0 and 1")
    if dtype.bits < 8:
        return _low_bits(data, dtype)
    stored = np.frombuffer(payload, dtype.numpy.newbyteorder("<"))
    return np.require(stored.astype(dtype.numpy, copy=False), requirements="A")


def _decode_varints(payload: Bytes, count: int, dtype: DType) -> np.ndarray:
    """Decode packed base-128 integers, all at once, one byte position after the other."""
    data = np.frombuffer(payload, np.uint8)
    ends = np.flatnonzero(data < 128)
    if len(ends) != count or (len(data) and data[-1] >= 128):
        raise _Mismatch(f"{len(ends)} elements", f"{count} elements")
    lengths = np.diff(ends, prepend=-1)
    if count and lengths.max() > _LONGEST_VARINT_BYTES:
        raise _Mismatch(f"a varint of {lengths.max()} bytes", "at most 10")
    starts = ends - lengths + 1
    values = np.zeros(count, np.uint64)
    for position in range(int(lengths.max(initial=0))):
        reaches = lengths > position
        septets = data[starts[reaches] + position].astype(np.uint64) & np.uint64(127)
        values[reaches] |= septets << np.uint64(7 * position)
    return values.view(np.int64).astype(dtype.numpy, casting="unsafe")


def _low_bits(data: np.ndarray, dtype: DType) -> np.ndarray:
    """One element of fewer than eight bits in the low bits of each byte."""
    if dtype.is_float:
        return (data & np.uint8((1 << dtype.bits) - 1)).view(dtype.numpy)
    return wrap(data, dtype.bits, signed=dtype.kind is Kind.SIGNED).astype(dtype.numpy)


def _row_major(flat: np.ndarray, shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Elements stored with dimension order[0] fastest, rearranged to row-major order."""
    major_to_minor = order[::-1]
    if not order or major_to_minor == tuple(range(len(shape))):
        return flat.reshape(shape).view()
    stored = flat.reshape([shape[d] for d in major_to_minor])
    return np.ascontiguousarray(stored.transpose(np.argsort(major_to_minor)))

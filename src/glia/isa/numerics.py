"""How values change dtype on the device: widened to float32, rounded once on the way out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from glia.base.dtype import F8E8M0FNU, PRED, TF32, DType, from_numpy, integer_limits
from glia.base.errors import Unspecified

Array = np.ndarray[Any, Any]

_INTEGER_KINDS = "iu"
_NARROW_INTEGERS = (ml_dtypes.int2, ml_dtypes.uint2, ml_dtypes.int4, ml_dtypes.uint4)


def is_integer(dtype: np.dtype) -> bool:
    """Whether a host dtype holds integers (narrower than a byte included)."""
    return dtype.kind in _INTEGER_KINDS or dtype in _NARROW_INTEGERS


def widen(array: Array) -> Array:
    """The array in float32, as engines read every operand of an arithmetic operator."""
    if array.dtype.names:
        return _round_to_tf32(_float32_words(array))
    return array.astype(np.float32, copy=False)


def _float32_words(array: Array) -> Array:
    """The float32 words of a tf32 array; Unspecified for packed values, which are no numbers."""
    if array.dtype != TF32.numpy:
        raise Unspecified(f"arithmetic on {from_numpy(array.dtype)}")
    return array[TF32.name]


def _round_to_tf32(array: Array) -> Array:
    """float32 with 10 bits of mantissa, to nearest even (assumed); infinities and NaN stay."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    dropped = np.uint32(13)
    half = (np.uint32(1) << (dropped - np.uint32(1))) - np.uint32(1)
    even = bits + half + ((bits >> dropped) & np.uint32(1))
    rounded = (even >> dropped << dropped).view(np.float32)
    return np.where(np.isfinite(array), rounded, array).reshape(array.shape)


def unpack(array: Array, dtype: DType) -> Array:
    """The values packed in each element, along a new last axis of 4, in their own dtype.

    The first value is in the lowest bits.
    """
    assert dtype.packs is not None
    words = np.ascontiguousarray(array).view(dtype.numpy[0])
    bits = dtype.packs.bits
    shifts = np.arange(4, dtype=words.dtype) * words.dtype.type(bits)
    codes = (words[..., None] >> shifts) & words.dtype.type((1 << bits) - 1)
    values: Array = codes.astype(np.uint8).view(dtype.packs.numpy)
    return values


def pack(values: Array, dtype: DType) -> Array:
    """`unpack` backwards: values along a last axis of 4, in their own dtype, as elements."""
    assert dtype.packs is not None and values.dtype == dtype.packs.numpy
    word, bits = dtype.numpy[0], dtype.packs.bits
    codes = np.ascontiguousarray(values).view(np.uint8).astype(word)
    codes &= word.type((1 << bits) - 1)
    shifts = np.arange(4, dtype=word) * word.type(bits)
    words: Array = np.bitwise_or.reduce(codes << shifts, axis=-1)
    return words.view(dtype.numpy)


def whole_number(value: Any) -> int:
    """An integer of NumPy's as Python's; what records how it is computed stays what it is."""
    return int(value) if isinstance(value, int | np.integer | np.ndarray) else value


def scanned(step: Callable[..., Array], initial: Array, *data: Array) -> Array:
    """What `step` makes of a state and each column of arrays [P, F] in turn, [P, F].

    The state begins with `initial`, a number or one for each of P rows, in the dtype of the data.
    """
    if hasattr(data[0], "scanned"):  # an array that records what is computed
        found: Array = data[0].scanned(step, initial, *data)
        return found
    rows = [np.ascontiguousarray(each.T) for each in data]
    result = np.empty_like(rows[0])
    state = np.broadcast_to(np.reshape(initial, -1), rows[0].shape[1:]).astype(result.dtype)
    for number, columns in enumerate(zip(*rows, strict=True)):
        state = step(state, *columns).astype(result.dtype, copy=False)
        result[number] = state
    return result.T


def of_rows(function: Callable[..., Array]) -> Callable[..., Array]:
    """Mark a function of arrays [P, F] whose result in a row depends on these rows alone.

    The arrays come before its other arguments. An array that records what is computed records the
    call as one step.
    """

    @functools.wraps(function)
    def call(*arguments: Any) -> Array:
        if hasattr(arguments[0], "row_function"):
            found: Array = arguments[0].row_function(function, arguments)
            return found
        return function(*arguments)

    return call


def wrapped_word(value: Any) -> Any:
    """An integer, or an array of them, in 32 bits with a sign, wrapped around."""
    return ((value + 2**31) & (2**32 - 1)) - 2**31


def register_word(value: Any) -> Any:
    """An integer as a register of 32 bits holds it: wrapped where these cannot, signed or not.

    What records how it is computed stays what it is.
    """
    wrapped = wrapped_word(value)
    if isinstance(value, int | np.integer):
        return value if -(2**31) <= value < 2**32 else wrapped
    return np.where((value >= -(2**31)) & (value < 2**32), value, wrapped)


def words_of(value: Any) -> Any:
    """What a register holds, in 64 bits."""
    word = register_word(value)
    return np.int64(word) if isinstance(word, int) else word


def narrow(array: Array, dtype: DType) -> Array:
    """The array in `dtype`.

    The same dtype is kept bit by bit. A float becomes an integer by rounding to nearest, ties to
    even, and saturating; NaN becomes 0 (assumed). An integer becomes a narrower one by
    saturating, as it would through float32, but without losing bits above the 24th. Everything
    else goes through float32 and rounds to nearest even; what is too great becomes infinity, or NaN
    in a dtype without infinities (assumed). Nothing but a copy makes packed values, and only powers
    of two (and NaN) become scales: Unspecified.
    """
    if array.dtype == dtype.numpy:
        return array
    if dtype.packs is not None:
        raise Unspecified(f"conversion to {dtype}")
    if array.dtype.names:
        array = widen(array)
    if dtype is TF32:
        return _round_to_tf32(widen(array)).view(TF32.numpy)
    if dtype is PRED:
        is_set: Array = array != 0
        return is_set
    if dtype.is_integer:
        return _saturate(array, dtype)
    if array.dtype != np.float32:
        array = array.astype(np.float32)
    return _scales(array) if dtype is F8E8M0FNU else array.astype(dtype.numpy)


def _scales(array: Array) -> Array:
    """float32 powers of two as scales."""
    scales = array.astype(F8E8M0FNU.numpy)
    if not np.array_equal(scales.astype(np.float32), array, equal_nan=True):
        raise Unspecified(f"conversion to {F8E8M0FNU} of what is no power of two")
    return scales


def _saturate(array: Array, dtype: DType) -> Array:
    limits = integer_limits(dtype.numpy)
    low, high = int(limits.min), int(limits.max)
    if array.dtype.kind == "b":
        return array.astype(dtype.numpy)
    if is_integer(array.dtype):
        wide = array.astype(np.int64) if array.dtype != np.uint64 else array
        return np.clip(wide, low, high).astype(dtype.numpy)
    wide = np.rint(array.astype(np.float64))
    wide = np.where(np.isnan(wide), 0.0, wide)
    if dtype.bits < 64:
        return np.clip(wide, low, high).astype(np.int64).astype(dtype.numpy)
    inside = (wide > float(low)) & (wide < float(high))
    whole = np.where(inside, wide, 0.0).astype(dtype.numpy)
    edge = np.where(wide > 0, dtype.numpy.type(high), dtype.numpy.type(low))
    return np.where(inside, whole, edge)


def bits_of(value: float, dtype: np.dtype) -> Any:
    """An immediate as a scalar of `dtype`: integers wrap to its width; the bits of 0 are 0."""
    if value == 0 and dtype == F8E8M0FNU.numpy:
        return np.zeros((), np.uint8).view(dtype)
    if dtype == TF32.numpy:
        return narrow(np.asarray(np.float32(value)), TF32)
    if dtype.names:
        return np.asarray(value, dtype[0]).view(dtype)
    if not is_integer(dtype):
        return dtype.type(value)
    width = 8 * dtype.itemsize
    unsigned = int(value) & ((1 << width) - 1)
    return np.array(unsigned, dtype=f"u{dtype.itemsize}").astype(dtype)[()]

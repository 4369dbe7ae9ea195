"""How values change dtype, against tables made from the definition of each format."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from glia.base.dtype import (
    BF16,
    DEVICE_DTYPES,
    F4E2M1FN_X4,
    F8E3M4,
    F8E4M3,
    F8E4M3FN,
    F8E4M3FN_X4,
    F8E5M2,
    F8E5M2_X4,
    F8E8M0FNU,
    F16,
    F32,
    PACKED_DTYPES,
    PRED,
    S8,
    S16,
    S32,
    S64,
    TF32,
    U8,
    U16,
    U32,
    U64,
    DType,
    from_numpy,
)
from glia.base.errors import Unspecified
from glia.isa.numerics import bits_of, narrow, pack, unpack, widen

Array = np.ndarray[Any, Any]

# dtype: exponent bits, mantissa bits, whether the greatest exponent is kept for infinity and NaN
FORMATS = {
    F8E5M2: (5, 2, True),
    F8E4M3: (4, 3, True),
    F8E3M4: (3, 4, True),
    F8E4M3FN: (4, 3, False),
}
GREATEST = {F8E5M2: 57344.0, F8E4M3: 240.0, F8E3M4: 15.5, F8E4M3FN: 448.0}


def decoded(code: int, dtype: DType) -> float:
    """The value of a code, from the definition of its format."""
    exponent_bits, mantissa_bits, has_infinity = FORMATS[dtype]
    sign = -1.0 if code >> 7 else 1.0
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    if has_infinity and exponent == (1 << exponent_bits) - 1:
        return math.nan if mantissa else sign * math.inf
    if not has_infinity and code & 0x7F == 0x7F:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_all_codes_of_8_bit_floats_have_their_values(dtype: DType) -> None:
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    wanted = np.array([decoded(code, dtype) for code in range(256)], np.float32)
    found = widen(codes)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.arange(256) >= 128)
    assert np.nanmax(found[np.isfinite(found)]) == GREATEST[dtype]


@cache
def finite(dtype: DType) -> tuple[list[int], list[Fraction]]:
    """The codes of positive numbers, and the numbers."""
    codes = [code for code in range(128) if math.isfinite(decoded(code, dtype))]
    return codes, [Fraction(decoded(code, dtype)) for code in codes]


def nearest(value: Fraction, dtype: DType) -> float:
    """The format's value nearest to a positive one, ties to an even code; beyond all: overflow."""
    codes, table = finite(dtype)
    step = table[-1] - table[-2]
    if value >= table[-1] + step / 2 and (codes[-1] % 2 or value > table[-1] + step / 2):
        return math.inf if FORMATS[dtype][2] else math.nan
    place = min(bisect_left(table, value), len(table) - 1)
    below = table[max(place - 1, 0)]
    above = table[place]
    if value - below == above - value:
        return float(below if codes[max(place - 1, 0)] % 2 == 0 else above)
    return float(below if value - below < above - value else above)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_float32_rounds_to_the_nearest_8_bit_float(dtype: DType) -> None:
    numbers = [float(number) for number in finite(dtype)[1]]
    middles = [(a + b) / 2 for a, b in pairwise(numbers)]
    last = numbers[-1] + (numbers[-1] - numbers[-2]) / 2
    exact = np.array([*numbers, *middles, last, 1e30], np.float32)
    around = [exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))]
    values = np.concatenate(around)
    values = np.concatenate([values, np.random.default_rng(1).uniform(0, last, 300)])
    values = values.astype(np.float32)
    wanted = np.array([nearest(Fraction(float(v)), dtype) for v in values], np.float32)
    np.testing.assert_array_equal(widen(narrow(values, dtype)), wanted)
    np.testing.assert_array_equal(widen(narrow(-values, dtype)), -wanted)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_infinity_and_nan_of_8_bit_floats(dtype: DType) -> None:
    values = np.array([np.inf, -np.inf, np.nan], np.float32)
    found = widen(narrow(values, dtype))
    has_infinity = FORMATS[dtype][2]
    np.testing.assert_array_equal(found, values if has_infinity else np.full(3, np.nan))


@pytest.mark.parametrize("dtype", [*FORMATS, BF16, F16], ids=str)
def test_going_to_float32_and_back_keeps_every_code(dtype: DType) -> None:
    count = 1 << min(dtype.bits, 16)
    codes = np.arange(count, dtype=f"u{dtype.bytes}").view(dtype.numpy)
    with np.errstate(all="ignore"):
        back = narrow(widen(codes), dtype)
    is_number = ~np.isnan(widen(codes))
    bits = f"u{dtype.bytes}"
    np.testing.assert_array_equal(back.view(bits)[is_number], codes.view(bits)[is_number])
    assert np.isnan(widen(back)[~is_number]).all()


def test_scales_are_powers_of_two() -> None:
    found = widen(np.arange(255, dtype=np.uint8).view(F8E8M0FNU.numpy)).astype(np.float64)
    assert found.tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert np.isnan(widen(np.array([255], np.uint8).view(F8E8M0FNU.numpy)))[0]


def test_only_powers_of_two_become_scales() -> None:
    powers = np.array([2.0**-127, 1.0, 2.0, 2.0**127, np.nan], np.float32)
    assert narrow(powers, F8E8M0FNU).view(np.uint8).tolist() == [0, 127, 128, 254, 255]
    for value in (0.0, 3.0, -1.0, np.inf, 2.0**-130):
        with np.errstate(all="ignore"), pytest.raises(Unspecified, match="no power of two"):
            narrow(np.array([value], np.float32), F8E8M0FNU)
    assert bits_of(0, F8E8M0FNU.numpy).tobytes() == b"\0"


def rounded_to_tf32(value: float) -> float:
    """Ten bits of mantissa, ties to even, in exact arithmetic."""
    if not math.isfinite(value) or value == 0:
        return value
    exponent = max(math.frexp(value)[1] - 1, -126) - 10
    return math.ldexp(round(Fraction(value) / Fraction(2) ** exponent), exponent)


def test_tf32_has_ten_bits_of_mantissa() -> None:
    random = np.random.default_rng(2)
    values = random.integers(0, 2**32, 2000, np.uint32).view(np.float32)
    ties = (np.float32(1) + np.arange(64, dtype=np.float32) * np.float32(2.0**-11)).ravel()
    ends = np.array([0.0, -0.0, np.inf, -np.inf, 1e-45], np.float32)
    values = np.concatenate([values, ties, ends])
    found = widen(narrow(values, TF32))
    with np.errstate(all="ignore"):
        wanted = np.array([rounded_to_tf32(float(v)) for v in values]).astype(np.float32)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[-5:]), np.signbit(values[-5:]))


def test_reading_tf32_rounds_what_was_put_there_whole() -> None:
    whole = np.array([1 + 2.0**-12, 1 + 2.0**-10], np.float32)
    assert widen(whole.view(TF32.numpy)).tolist() == [1.0, 1 + 2.0**-10]
    assert float(narrow(whole.view(TF32.numpy), F32)[0]) == 1.0


@pytest.mark.parametrize("dtype", [S8, U8, S16, U16, S32, U32, S64, U64], ids=str)
def test_floats_become_integers_to_nearest_even_and_saturate(dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    random = np.random.default_rng(3)
    values = np.concatenate([
        random.uniform(-3e10, 3e10, 100), random.uniform(-300, 300, 400),
        random.uniform(-3e19, 3e19, 100), 2.0 ** np.arange(7, 66), -(2.0 ** np.arange(7, 66)),
        np.arange(-20, 20) / 2, [float(info.max), float(info.min), np.inf, -np.inf],
    ]).astype(np.float32)  # fmt: skip

    def whole(value: float) -> int:
        if math.isinf(value):
            return info.max if value > 0 else info.min
        return min(max(round(value), info.min), info.max)

    assert narrow(values, dtype).tolist() == [whole(float(v)) for v in values]


@pytest.mark.parametrize("source", [F32, BF16, F16, F8E5M2, F8E4M3, S8, U32, S64], ids=str)
def test_what_is_not_zero_is_true(source: DType) -> None:
    values = np.array([0, 1, 2, 96]).astype(source.numpy)
    assert narrow(values, PRED).tolist() == [False, True, True, True]
    if source.is_float:
        special = np.array([-0.0, 0.5, -1.0, np.inf, np.nan]).astype(source.numpy)
        assert narrow(special, PRED).tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("source", [S8, U8, S16, U16, S32, U32, S64, U64], ids=str)
@pytest.mark.parametrize("dtype", [S8, U8, S16, U16, S32, U32], ids=str)
def test_integers_become_others_that_saturate(source: DType, dtype: DType) -> None:
    low, high = (int(end) for end in (np.iinfo(source.numpy).min, np.iinfo(source.numpy).max))
    least, most = (int(end) for end in (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max))
    edges = (low, least - 1, least, -1, 0, 1, most, most + 1, high)
    values = [value for value in edges if low <= value <= high]
    expected = [min(max(value, least), most) for value in values]
    assert narrow(np.array(values, source.numpy), dtype).tolist() == expected


@pytest.mark.parametrize("dtype", PACKED_DTYPES, ids=str)
def test_packed_values_lie_from_the_lowest_bits_up(dtype: DType) -> None:
    assert dtype.packs is not None
    bits = dtype.packs.bits
    codes = np.random.default_rng(4).integers(0, 1 << bits, (3, 5, 4)).astype(np.uint8)
    words = pack(codes.view(dtype.packs.numpy), dtype)
    wanted = [
        sum(int(code) << bits * k for k, code in enumerate(four)) for four in codes.reshape(-1, 4)
    ]
    assert words.view(dtype.numpy[0]).reshape(-1).tolist() == wanted
    np.testing.assert_array_equal(unpack(words, dtype).view(np.uint8), codes)
    assert words.dtype.itemsize == dtype.bytes == bits // 2
    assert from_numpy(words.dtype) is dtype


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (F8E4M3FN_X4, "float8_e4m3fn_x4"),
        (F8E5M2_X4, "float8_e5m2_x4"),
        (F4E2M1FN_X4, "float4_e2m1fn_x4"),
    ],
)
def test_packed_host_dtypes_are_named_as_in_nki(dtype: DType, name: str) -> None:
    assert name in str(dtype.numpy)  # programs choose by this text how weights are unpacked


@pytest.mark.parametrize("dtype", [F8E4M3FN_X4, F8E5M2_X4, F4E2M1FN_X4], ids=str)
def test_packed_values_are_no_numbers(dtype: DType) -> None:
    with pytest.raises(Unspecified, match=f"arithmetic on {dtype}"):
        widen(np.zeros(2, dtype.numpy))
    with pytest.raises(Unspecified, match=f"conversion to {dtype}"):
        narrow(np.zeros(2, np.float32), dtype)
    assert bits_of(0, dtype.numpy).tobytes() == bytes(dtype.bytes)


def test_no_two_dtypes_are_held_alike() -> None:
    held = [dtype.numpy for dtype in DEVICE_DTYPES.values()]
    assert len(set(held)) == len(held)

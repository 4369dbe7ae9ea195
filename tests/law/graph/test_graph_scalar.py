"""Every scalar function agrees with JAX's CPU backend on ordinary and awkward values."""

from __future__ import annotations

import math
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from glia.base.dtype import BF16, DTYPES, F16, F32, F64, PRED, S4, S8, S32, U8, Kind, from_numpy
from glia.graph.scalar import FUNCTIONS, convert, total_order_key

UNARY = {
    "exp": lax.exp, "exp2": lax.exp2, "expm1": lax.expm1, "log": lax.log, "log1p": lax.log1p,
    "log2": jnp.log2, "logistic": lax.logistic, "tanh": lax.tanh, "tan": lax.tan, "sin": lax.sin,
    "cos": lax.cos, "asin": lax.asin, "acos": lax.acos, "atan": lax.atan, "sinh": lax.sinh,
    "cosh": lax.cosh, "asinh": lax.asinh, "acosh": lax.acosh, "atanh": lax.atanh,
    "sqrt": lax.sqrt, "rsqrt": lax.rsqrt, "cbrt": lax.cbrt, "erf": lax.erf,
    "gelu": lambda a: jax.nn.gelu(a, approximate=False), "gelu_tanh": jax.nn.gelu,
    "silu": jax.nn.silu, "softplus": jax.nn.softplus,
    "reciprocal": lax.reciprocal, "square": lax.square, "floor": lax.floor, "ceil": lax.ceil,
    "round_nearest_even": lambda a: lax.round(a, lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_nearest_away": lambda a: lax.round(a, lax.RoundingMethod.AWAY_FROM_ZERO),
    "sign": lax.sign, "negate": lax.neg, "abs": lax.abs, "is_finite": lax.is_finite,
    "not": lax.bitwise_not, "popcount": lax.population_count, "count_leading_zeros": lax.clz,
    "real": lax.real, "imag": lax.imag, "copy": lambda a: a,
}  # fmt: skip

BINARY = {
    "add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "divide": lax.div,
    "remainder": lax.rem, "power": lax.pow, "maximum": lax.max, "minimum": lax.min,
    "atan2": lax.atan2, "complex": lax.complex, "and": lax.bitwise_and, "or": lax.bitwise_or,
    "xor": lax.bitwise_xor, "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical, "equal": lax.eq, "not_equal": lax.ne,
    "less": lax.lt, "less_equal": lax.le, "greater": lax.gt, "greater_equal": lax.ge,
}  # fmt: skip

FLOATS = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.25, -7.75, 0.1, 12.0, -20.0, 0.3, 0.9, -0.7,
     1.1, 5.0, 1e-3, -1e-3, 88.0, 300.0, np.inf, -np.inf, np.nan]
)  # fmt: skip
INTEGERS = {
    "s32": [0, 1, -1, 2, -3, 7, 31, 32, 33, 100, -100, 2**31 - 1, -(2**31)],
    "u8": [0, 1, 2, 3, 7, 8, 9, 100, 128, 255],
    "s8": [0, 1, -1, 2, -3, 7, 8, 9, 100, 127, -128],
}


def _pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(values, values, indexing="ij")
    return a.reshape(-1), b.reshape(-1)


def _agree(name: str, found: np.ndarray, wanted: np.ndarray, ulps: float = 8) -> None:
    assert found.dtype == wanted.dtype, f"{name}: {found.dtype} for {wanted.dtype}"
    known = from_numpy(found.dtype)
    if known.kind in (Kind.PRED, Kind.SIGNED, Kind.UNSIGNED):
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        return
    part = found.real.dtype if known.is_complex else found.dtype
    tolerance = ulps * float(ml_dtypes.finfo(part).eps)
    wide = np.complex128 if known.is_complex else np.float64
    np.testing.assert_allclose(
        found.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance / 8, err_msg=name
    )


def _accepting(functions: dict, kind: Kind, *without: str) -> list[str]:
    """The functions that are defined on dtypes of a kind."""
    return [n for n in functions if kind in FUNCTIONS[n].kinds and n not in without]


def _compare(functions: dict, names: list[str], *arrays: np.ndarray, ulps: float = 8) -> None:
    """The named functions agree with their JAX counterparts, all compiled at once."""
    wanted = jax.jit(lambda *given: {name: functions[name](*given) for name in names})(*arrays)
    for name, value in wanted.items():
        _agree(name, FUNCTIONS[name].compute(*arrays), np.asarray(value), ulps)


def test_unary_functions_of_float32_agree_with_jax():
    names = _accepting(UNARY, Kind.FLOAT, "real", "imag")
    _compare(UNARY, names, FLOATS.astype(np.float32), ulps=16)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_unary_functions_of_narrow_floats_round_the_float32_result_once(dtype):
    x = FLOATS.astype(dtype.numpy)
    names = _accepting(UNARY, Kind.FLOAT, "real", "imag", "is_finite")
    with np.errstate(all="ignore"):
        for name in names:
            wanted = FUNCTIONS[name].compute(x.astype(np.float32)).astype(dtype.numpy)
            _agree(name, FUNCTIONS[name].compute(x), wanted, ulps=0)


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_binary_functions_of_floats_agree_with_jax(dtype):
    without = () if dtype is F32 else ("complex",)
    names = _accepting(BINARY, Kind.FLOAT, *without)
    _compare(BINARY, names, *_pairs(FLOATS.astype(dtype.numpy)))


@pytest.mark.parametrize("name", list(INTEGERS))
def test_functions_of_integers_agree_with_jax(name):
    dtype = DTYPES[name]
    a, b = _pairs(np.array(INTEGERS[name], dtype.numpy))
    without = ("square", "abs") if dtype.kind is Kind.UNSIGNED else ("square",)
    _compare(UNARY, _accepting(UNARY, dtype.kind, *without), a)
    _compare(BINARY, _accepting(BINARY, dtype.kind, "power"), a, b)


def test_functions_of_complex_numbers_agree_with_jax():
    a, b = _pairs(np.array([1 + 2j, -0.5 + 0.25j, 3 - 1j, -2 - 2j], np.complex64))
    _compare(UNARY, _accepting(UNARY, Kind.COMPLEX, "cbrt"), a, ulps=32)
    _compare(BINARY, _accepting(BINARY, Kind.COMPLEX, "atan2"), a, b, ulps=32)


def test_integer_powers_wrap_and_invert():
    a = np.array([3, 2, -1, -1, 1, 5, 0, 7], np.int32)
    b = np.array([40, 31, -3, -4, -9, -1, 0, 0], np.int32)
    wanted = [(3**40 + 2**31) % 2**32 - 2**31, -(2**31), -1, 1, 1, 0, 1, 1]
    np.testing.assert_array_equal(FUNCTIONS["power"].compute(a, b), wanted)


def test_functions_of_pred_are_logical():
    a, b = _pairs(np.array([False, True]))
    compute = {name: FUNCTIONS[name].compute for name in ("add", "multiply", "maximum", "xor")}
    np.testing.assert_array_equal(compute["add"](a, b), a | b)
    np.testing.assert_array_equal(compute["multiply"](a, b), a & b)
    np.testing.assert_array_equal(compute["maximum"](a, b), a | b)
    np.testing.assert_array_equal(compute["xor"](a, b), a ^ b)
    np.testing.assert_array_equal(FUNCTIONS["not"].compute(a), ~a)


def test_four_bit_integers_wrap_at_four_bits():
    a = np.array([7, -8, -1, 3], ml_dtypes.int4)
    b = np.array([1, -1, 5, 2], ml_dtypes.int4)

    def of(name: str) -> list[int]:
        return FUNCTIONS[name].compute(a, b).astype(int).tolist()

    assert of("add") == [-8, 7, 4, 5]
    assert of("divide") == [7, -8, 0, 1]
    assert of("shift_left") == [-2, 0, 0, -4]
    assert of("shift_right_logical") == [3, 0, 0, 0]
    assert of("shift_right_arithmetic") == [3, -1, -1, 0]
    assert FUNCTIONS["popcount"].compute(a).astype(int).tolist() == [3, 1, 4, 2]
    assert FUNCTIONS["count_leading_zeros"].compute(a).astype(int).tolist() == [1, 0, 0, 2]


def test_select_and_clamp_choose_by_element():
    mask, x = np.array([True, False, True, False]), np.array([-2, 0.5, np.nan, 9], np.float32)
    low, high = np.full(4, -1, np.float32), np.full(4, 1, np.float32)
    np.testing.assert_array_equal(FUNCTIONS["select"].compute(mask, x, low), np.where(mask, x, low))
    wanted = np.asarray(lax.clamp(low, x, high))
    np.testing.assert_array_equal(FUNCTIONS["clamp"].compute(low, x, high), wanted)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_erf_is_within_a_few_units_of_the_last_place(dtype):
    x = np.linspace(-7, 7, 4001).astype(dtype.numpy)
    wanted = np.array([math.erf(float(v)) for v in x])
    error = np.abs(FUNCTIONS["erf"].compute(x).astype(np.float64) - wanted)
    assert error.max() < (4e-15 if dtype is F64 else 1e-7)


@pytest.mark.parametrize(
    ("name", "compare"),
    [
        ("equal_total_order", np.equal),
        ("not_equal_total_order", np.not_equal),
        ("less_total_order", np.less),
        ("less_equal_total_order", np.less_equal),
        ("greater_total_order", np.greater),
        ("greater_equal_total_order", np.greater_equal),
    ],
)
def test_total_order_relations_compare_places_in_it(name, compare):
    ordered = np.array([-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    ordered[0] = np.copysign(np.float32(np.nan), np.float32(-1))
    a, b = _pairs(np.arange(len(ordered)))
    found = FUNCTIONS[name].compute(ordered[a], ordered[b])
    np.testing.assert_array_equal(found, compare(a, b))


def test_total_order_sorts_nans_and_zeros_by_sign():
    nan = np.array([0x7FC00000, 0xFFC00000], np.uint32).view(np.float32)
    ordered = np.array([nan[1], -np.inf, -1, -0.0, 0.0, 1, np.inf, nan[0]], np.float32)
    key = total_order_key(ordered)
    assert np.all(key[:-1] < key[1:])
    less = FUNCTIONS["less_total_order"].compute(ordered[:-1], ordered[1:])
    assert less.all()


@pytest.mark.parametrize("source", ["f32", "f16", "s32", "u8", "pred", "f64"])
@pytest.mark.parametrize("target", ["f32", "bf16", "s32", "u8", "s8", "u32", "pred", "f8e4m3fn"])
def test_conversions_agree_with_jax(source, target):
    values = np.array([0, 1, -1, 2.5, -2.5, 127, 128, 255, 300, -300, 3e9, -3e9, np.nan, np.inf])
    if not DTYPES[source].is_float:
        values = np.array([0, 1, 2, 77, 100, 255])
    with np.errstate(over="ignore"):
        x = values.astype(DTYPES[source].numpy)
    with jax.enable_x64(True):
        wanted = np.asarray(lax.convert_element_type(x, DTYPES[target].numpy))
    found = convert(x, DTYPES[target])
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def test_conversion_to_narrow_integers_wraps_or_saturates():
    assert convert(np.array([9, -9, 7]), S4).astype(int).tolist() == [-7, 7, 7]
    assert convert(np.array([9.7, -99.0]), S4).astype(int).tolist() == [7, -8]
    assert convert(np.array([1.5 + 9j], np.complex64), S8).tolist() == [1]
    assert convert(np.array([np.nan, 0.0]), PRED).tolist() == [True, False]
    assert convert(np.array([1e20, -5.0], np.float32), DTYPES["u64"]).tolist() == [2**64 - 1, 0]
    assert convert(np.array(300, np.int32), U8).shape == ()


def test_every_function_keeps_the_shape_and_gives_the_declared_dtype():
    for function in FUNCTIONS.values():
        for dtype in DTYPES.values():
            parts = dtype.name in ("f32", "f64")
            if dtype.kind not in function.kinds or (function.result == "complex" and not parts):
                continue
            operands = [np.ones((2, 1), dtype.numpy)] * function.arity
            if function.name == "select":
                operands[0] = np.ones((2, 1), np.bool_)
            found = function.compute(*operands)
            wanted = function.result_dtype([from_numpy(o.dtype) for o in operands])
            assert found.shape == (2, 1), f"{function.name} of {dtype}"
            assert from_numpy(found.dtype) is wanted, f"{function.name} of {dtype}"


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("add", [F32]),
        ("add", [F32, S32]),
        ("select", [F32, F32, F32]),
        ("and", [F32, F32]),
        ("complex", [BF16, BF16]),
    ],
)
def test_operands_that_do_not_fit_a_function_are_refused(name, dtypes):
    with pytest.raises(TypeError, match=name):
        FUNCTIONS[name].result_dtype(dtypes)

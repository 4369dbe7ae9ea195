"""Special numbers: infinities, NaN, zeros of both signs, denormals, and the ends of integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia.base.dtype import (
    BF16,
    F8E3M4,
    F8E4M3,
    F8E5M2,
    F16,
    S8,
    S16,
    S32,
    TF32,
    U8,
    U16,
    U32,
    DType,
)
from glia.isa.activation import ACTIVATIONS
from glia.isa.alu import ALU_OPS
from glia.isa.instructions.random import Dropout
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import (
    Reciprocal,
    ScalarTensorTensor,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from glia.isa.instructions.vector_select import SelectReduce
from support.isa_bench import Bench

Array = np.ndarray[Any, Any]
NUMBERS = np.array(
    [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-38, 1.0, -1.0, 1.5, -2.5, 3e38,
     -3e38, 16777217.0, 0.5],
    np.float32,
)  # fmt: skip
COUNT = len(NUMBERS)


def same_bits(actual: Array, expected: Array) -> None:
    """Equal including the sign of zero; any NaN equals any other."""
    actual, expected = np.asarray(actual, np.float32), np.asarray(expected, np.float32)
    np.testing.assert_array_equal(actual, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[numbers], np.signbit(expected)[numbers])


def to_float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def quotient(a: float, b: float) -> float:
    if b != 0:
        return math.nan if math.isinf(a) and math.isinf(b) else a / b
    is_negative = math.copysign(1, a) != math.copysign(1, b)
    return math.nan if a == 0 or math.isnan(a) else -math.inf if is_negative else math.inf


def power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except ValueError:
        is_odd = b == math.floor(b) and b % 2 == 1
        return math.nan if a < 0 else math.copysign(math.inf, a) if is_odd else math.inf
    except OverflowError:
        return math.inf


def larger(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def smaller(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


EXACT: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": quotient,
    "equal": lambda a, b: float(a == b),
    "not_equal": lambda a, b: float(a != b),
    "greater": lambda a, b: float(a > b),
    "greater_equal": lambda a, b: float(a >= b),
    "less": lambda a, b: float(a < b),
    "less_equal": lambda a, b: float(a <= b),
    "logical_and": lambda a, b: float(a != 0 and b != 0),
    "logical_or": lambda a, b: float(a != 0 or b != 0),
    "logical_xor": lambda a, b: float((a != 0) != (b != 0)),
    "abs_max": lambda a, b: a if abs(a) > abs(b) else b,
    "abs_min": lambda a, b: a if abs(a) < abs(b) else b,
}
UP_TO_THE_SIGN_OF_ZERO: dict[str, Callable[[float, float], float]] = {
    "maximum": larger,
    "minimum": smaller,
    "power": power,
    "mod": lambda a, b: math.nan if not math.isfinite(a) or b == 0 else _remainder(a, b, True),
    "fmod": lambda a, b: math.nan if not math.isfinite(a) or b == 0 else _remainder(a, b, False),
}


def _remainder(a: float, b: float, has_sign_of_divisor: bool) -> float:
    if math.isnan(b):
        return math.nan
    rest = a if math.isinf(b) else math.fmod(a, b)
    return rest + b if has_sign_of_divisor and rest != 0 and (rest < 0) != (b < 0) else rest


def pairs(meaning: Callable[[float, float], float]) -> Array:
    rows = [[meaning(float(a), float(b)) for b in NUMBERS] for a in NUMBERS]
    with np.errstate(all="ignore"):
        return np.array(rows, np.float64).astype(np.float32)


def test_every_binary_arithmetic_operator_has_an_oracle() -> None:
    binary = {n for n, op in ALU_OPS.items() if op.arity == 2 and op.family == "arithmetic"}
    assert set(EXACT) | set(UP_TO_THE_SIGN_OF_ZERO) == binary


@pytest.mark.parametrize("op", [*EXACT, *UP_TO_THE_SIGN_OF_ZERO])
def test_operators_on_every_pair_of_special_numbers(op: str) -> None:
    bench = Bench(1)
    left = bench.pattern((COUNT, COUNT), values=np.repeat(NUMBERS, COUNT).reshape(COUNT, COUNT))
    right = bench.pattern((COUNT, COUNT), values=np.tile(NUMBERS, (COUNT, 1)))
    out, column = bench.pattern((COUNT, COUNT)), bench.pattern((COUNT, 1), values=NUMBERS[:, None])
    on = ALU_OPS[op].engines[0]
    expected = pairs({**EXACT, **UP_TO_THE_SIGN_OF_ZERO}[op])
    check = same_bits if op in EXACT else _nearly
    check(bench.results(TensorTensor(dst=out, data1=left, data2=right, op=op, on=on), out)[0],
          expected)  # fmt: skip
    reverse = TensorScalar(dst=out, data=right, operand0=column, op0=op, reverse0=True, on=on)
    check(bench.results(reverse, out)[0], expected)
    if on == "vector":
        both = ScalarTensorTensor(
            dst=out, data=left, operand0=0.0, op0="bypass", operand1=right, op1=op
        )
        check(bench.results(both, out)[0], expected)


def _nearly(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=0)


UNARY: dict[str, Callable[[float], float]] = {
    "bypass": lambda a: a,
    "abs": abs,
    "square": lambda a: a * a,
    "relu": lambda a: a if math.isnan(a) else max(a, 0.0),
    "reciprocal": lambda a: quotient(1.0, a),
    "rsqrt": lambda a: math.nan if a < 0 else quotient(1.0, to_float32(math.sqrt(a))),
    "logical_not": lambda a: float(a == 0),
}


@pytest.mark.parametrize("op", UNARY)
def test_unary_operators_on_special_numbers(op: str) -> None:
    bench = Bench(2)
    data, out = bench.pattern((1, COUNT), values=NUMBERS[None]), bench.pattern((1, COUNT))
    instr = TensorScalar(dst=out, data=data, op0=op, on=ALU_OPS[op].engines[0])
    expected = [[to_float32(UNARY[op](float(a))) for a in NUMBERS]]
    _nearly(bench.results(instr, out)[0], np.array(expected, np.float32))


def test_the_vector_reciprocal_is_precise() -> None:
    bench = Bench(3)
    data, out = bench.pattern((1, COUNT), values=NUMBERS[None]), bench.pattern((1, COUNT))
    expected = [[quotient(1.0, float(a)) for a in NUMBERS]]
    with np.errstate(over="ignore"):
        rounded = np.array(expected, np.float64).astype(np.float32)
    same_bits(bench.results(Reciprocal(dst=out, data=data), out)[0], rounded)


# --- reductions ---------------------------------------------------------------------------------

ROWS = np.array([[1, math.nan, 2, 3], [math.inf, 1, 2, 3], [math.inf, -math.inf, 1, 2],
                 [-0.0, -0.0, -0.0, -0.0], [1e-45, -1e-45, 1e-45, 0], [3e38, 3e38, -3e38, 1],
                 [-math.inf, -5, -3, -7]], np.float32)  # fmt: skip


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum", "abs_max", "abs_min"])
@pytest.mark.parametrize("negate", [False, True])
def test_reductions_of_special_numbers(op: str, negate: bool) -> None:
    bench = Bench(4)
    data, out = bench.pattern((7, 4), values=ROWS), bench.pattern((7, 1))
    expected = []
    for row in ROWS.tolist():
        state = row[0]
        for value in row[1:]:
            state = to_float32({**EXACT, **UP_TO_THE_SIGN_OF_ZERO}[op](state, value))
        expected.append([-state if negate else state])
    instr = TensorReduce(dst=out, data=data, op=op, negate=negate)
    found = bench.results(instr, out)[0]
    unordered = (5,) if op == "add" else ()  # an overflow on the way depends on the order
    kept = [i for i in range(7) if i not in unordered]
    np.testing.assert_array_equal(found[kept], np.array(expected, np.float32)[kept])


# --- conversions --------------------------------------------------------------------------------

MINIFLOATS = {
    TF32: (8, 10), BF16: (8, 7), F16: (5, 10), F8E5M2: (5, 2), F8E4M3: (4, 3), F8E3M4: (3, 4),
}  # fmt: skip


def plain(array: Array) -> Array:
    """Floats of any dtype in float32."""
    return array["tf32"] if array.dtype == TF32.numpy else array.astype(np.float32)


def nearest(value: float, exponent_bits: int, mantissa_bits: int) -> float:
    """The IEEE number with so many bits nearest to a value, ties to even; inf beyond the last."""
    if math.isnan(value) or math.isinf(value) or value == 0:
        return value
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = max(math.frexp(abs(value))[1] - 1, 1 - bias)
    step = 2.0 ** (exponent - mantissa_bits)
    steps = abs(value) / step  # exact: a division by a power of two
    rounded = float(round(steps)) * step  # Python rounds to even
    greatest = (2 - 2.0**-mantissa_bits) * 2.0**bias
    return math.copysign(math.inf if rounded > greatest else rounded, value)


@pytest.mark.parametrize("dtype", MINIFLOATS, ids=str)
def test_floats_round_once_to_nearest_even_and_overflow_to_infinity(dtype: DType) -> None:
    bench = Bench(5)
    scale = 2.0 ** bench.random.integers(-150, 128, (16, 40)).astype(np.float64)
    values = (bench.random.normal(0, 1, (16, 40)) * scale).astype(np.float32)
    values[0, :COUNT] = NUMBERS
    values[1, :8] = [240, 247.9, 248, 256, -240, -248, 464, 57344]
    near = (bench.random.integers(0, 64, 20) + 0.5) * 2.0**-9
    values[2, :20] = near  # ties of the narrowest floats
    data, out = bench.pattern((16, 40), values=values), bench.pattern((16, 40), dtype)
    chosen = bench.pattern((16, 40), U8, values=np.ones((16, 40)))
    expected = [[nearest(float(v), *MINIFLOATS[dtype]) for v in row] for row in values]
    for instr in (
        TensorCopy(dst=out, src=data),
        TensorScalar(dst=out, data=data, op0="bypass"),
        Activation(dst=out, data=data, function="copy"),
        Dropout(dst=out, data=data, probability=0.0),
        SelectReduce(dst=out, data=data, predicate=chosen, on_false=0.0),
    ):
        found = plain(bench.results(instr, out)[0])
        same_bits(found, np.array(expected, np.float64).astype(np.float32))


def test_float8_e4m3_has_infinity_after_240() -> None:
    bench = Bench(6)
    data = bench.pattern((1, 4), values=np.array([[240.0, 247.0, 249.0, -1000.0]]))
    out = bench.pattern((1, 4), F8E4M3)
    found = bench.results(TensorCopy(dst=out, src=data), out)[0].astype(np.float32)
    np.testing.assert_array_equal(found, [[240, 240, math.inf, -math.inf]])


INTEGERS = {S8: 8, U8: 8, S16: 16, U16: 16, S32: 32, U32: 32}


def ends(dtype: DType) -> tuple[int, int]:
    bits = INTEGERS[dtype]
    return (0, 2**bits - 1) if dtype.name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@pytest.mark.parametrize("to", INTEGERS, ids=str)
@pytest.mark.parametrize("source", INTEGERS, ids=str)
@pytest.mark.parametrize("on", ["vector", "gpsimd", "scalar"])
def test_integers_convert_through_float32_and_saturate(source: DType, to: DType, on: str) -> None:
    bench = Bench(7)
    low, high = ends(source)
    wanted = [low, low + 1, -1, 0, 1, 127, 128, 255, 256, 2**24 - 1, 2**24 + 1, high - 1, high]
    values = [v for v in wanted if low <= v <= high]
    data = bench.pattern((1, len(values)), source, values=np.array([values]))
    out = bench.pattern((1, len(values)), to)
    is_exact = source is to and on != "scalar"
    least, most = ends(to)
    expected = [v if is_exact else min(max(int(np.float32(v)), least), most) for v in values]
    found = bench.results(TensorCopy(dst=out, src=data, on=on), out)[0]
    assert found.tolist() == [expected]


@pytest.mark.parametrize("to", INTEGERS, ids=str)
def test_floats_convert_to_integers_to_nearest_even_and_saturate(to: DType) -> None:
    bench = Bench(8)
    least, most = ends(to)
    values = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 1e20, -1e20, math.inf, -math.inf, -0.0,
              1e-45, float(least) - 0.5, float(most) + 0.5]  # fmt: skip
    data = bench.pattern((1, len(values)), values=np.array([values]))
    out = bench.pattern((1, len(values)), to)
    limited = [min(max(float(np.float32(v)), least - 1.0), most + 1.0) for v in values]
    expected = [min(max(round(v), least), most) for v in limited]
    assert bench.results(TensorCopy(dst=out, src=data), out)[0].tolist() == [expected]


# --- engines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum", "less", "equal"])
@pytest.mark.parametrize("dtype", [S32, U32], ids=str)
def test_words_are_exact_on_gpsimd_and_float32_on_vector(op: str, dtype: DType) -> None:
    bench = Bench(9)
    low, high = ends(dtype)
    edge = [low, low + 1, 0, 1, 3, 2**24, 2**24 + 1, 2**31 - 1, high - 1, high]
    values = [v for v in edge if low <= v <= high]
    a = np.repeat(values, len(values))[None]
    b = np.tile(values, len(values))[None]
    left, right = bench.pattern(a.shape, dtype, values=a), bench.pattern(b.shape, dtype, values=b)
    out = bench.pattern(a.shape, dtype)
    meaning = {**EXACT, "maximum": max}[op]
    exact = [[_wrapped(int(meaning(int(x), int(y))), dtype) for x, y in zip(a[0], b[0])]]  # noqa: B905
    instr = TensorTensor(dst=out, data1=left, data2=right, op=op, on="gpsimd")
    assert bench.results(instr, out)[0].tolist() == exact
    wide = [[meaning(to_float32(x), to_float32(y)) for x, y in zip(a[0], b[0])]]  # noqa: B905
    rounded = [[min(max(round(to_float32(v)), low), high) for v in wide[0]]]
    instr = TensorTensor(dst=out, data1=left, data2=right, op=op, on="vector")
    assert bench.results(instr, out)[0].tolist() == rounded


def _wrapped(value: int, dtype: DType) -> int:
    low, _ = ends(dtype)
    return (value - low) % 2**32 + low


def test_tensor_scalar_takes_words_through_float32_unless_it_works_on_bits() -> None:
    bench = Bench(10)
    value = 2**24 + 1
    data, out = bench.pattern((1, 1), S32, values=np.array([[value]])), bench.pattern((1, 1), S32)
    add = TensorScalar(dst=out, data=data, operand0=0.0, op0="add")
    assert bench.results(add, out)[0].tolist() == [[2**24]]
    bits = TensorScalar(dst=out, data=data, operand0=0, op0="bitwise_or")
    assert bench.results(bits, out)[0].tolist() == [[value]]


def test_a_result_is_rounded_once() -> None:
    """(1 + 2**-8) * (1 + 2**-8) is rounded with its second term, not before it is added."""
    bench = Bench(11)
    near = np.full((1, 1), 1 + 2.0**-7)
    data, other = bench.pattern((1, 1), BF16, values=near), bench.pattern((1, 1), BF16, values=near)
    out = bench.pattern((1, 1), BF16)
    instr = ScalarTensorTensor(
        dst=out, data=data, operand0=1 + 2.0**-7, op0="multiply", operand1=other, op1="subtract"
    )
    once = (1 + 2.0**-7) ** 2 - (1 + 2.0**-7)
    expected = nearest(once, *MINIFLOATS[BF16])
    twice = nearest(nearest((1 + 2.0**-7) ** 2, 8, 7) - (1 + 2.0**-7), 8, 7)
    assert expected != twice
    assert float(bench.results(instr, out)[0][0, 0]) == expected


# --- activation functions -----------------------------------------------------------------------

LIMITS = {  # at -inf, at +inf, at -0.0
    "copy": (-math.inf, math.inf, -0.0), "identity": (-math.inf, math.inf, -0.0),
    "square": (math.inf, math.inf, 0), "relu": (0, math.inf, 0), "abs": (math.inf, math.inf, 0),
    "sign": (-1, 1, 0), "exp": (0, math.inf, 1), "tanh": (-1, 1, 0), "sigmoid": (0, 1, 0.5),
    "erf": (-1, 1, 0), "erf_dx": (0, 0, 2 / math.sqrt(math.pi)),
    "softplus": (0, math.inf, math.log(2)), "arctan": (-math.pi / 2, math.pi / 2, 0),
}  # fmt: skip
LEFT_AND_RIGHT = {  # at -60 and at 60, where the functions are at their limits in float32
    "gelu": (0, 60), "gelu_dx": (0, 1), "gelu_apprx_tanh": (0, 60), "gelu_apprx_sigmoid": (0, 60),
    "gelu_apprx_sigmoid_dx": (0, 1), "silu": (0, 60), "silu_dx": (0, 1), "mish": (0, 60),
    "softplus": (0, 60), "sigmoid": (0, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_functions_reach_their_limits(name: str) -> None:
    bench = Bench(12)
    points = np.array([[-math.inf, math.inf, -0.0]])
    data, out = bench.pattern((1, 3), values=points), bench.pattern((1, 3))
    found = bench.results(Activation(dst=out, data=data, function=name), out)[0]
    np.testing.assert_allclose(found, [LIMITS[name]], rtol=1e-6)


@pytest.mark.parametrize("name", LEFT_AND_RIGHT)
def test_functions_are_finite_far_from_zero(name: str) -> None:
    bench = Bench(13)
    data, out = bench.pattern((1, 2), values=np.array([[-60.0, 60.0]])), bench.pattern((1, 2))
    found = bench.results(Activation(dst=out, data=data, function=name), out)[0]
    np.testing.assert_allclose(found, [LEFT_AND_RIGHT[name]], rtol=1e-6, atol=1e-20)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_functions_of_nan_are_nan(name: str) -> None:
    parameters = (np.float32(0.5),) if ACTIVATIONS[name].has_parameter else ()
    with np.errstate(all="ignore"):
        found = ACTIVATIONS[name].compute(np.array([math.nan], np.float32), *parameters)
    assert np.isnan(found).all()


def test_documented_ranges_of_arguments() -> None:
    documented = {
        "log": (2.0**-64, 2.0**64), "sin": (-math.pi, math.pi),
        "arctan": (-math.pi / 2, math.pi / 2), "sqrt": (2.0**-116, 2.0**118),
        "rsqrt": (2.0**-87, 2.0**97), "reciprocal": (2.0**-42, 2.0**42),
    }  # fmt: skip
    everywhere = """copy square sigmoid relu prelu gelu gelu_dx gelu_apprx_tanh gelu_apprx_sigmoid
    gelu_apprx_sigmoid_dx silu silu_dx tanh softplus mish erf erf_dx exp sign abs"""
    documented |= dict.fromkeys(everywhere.split(), (-math.inf, math.inf))
    declared = {name: (f.low, f.high) for name, f in ACTIVATIONS.items() if name in documented}
    assert declared == documented
    assert [n for n, f in ACTIVATIONS.items() if f.is_magnitude] == ["reciprocal"]

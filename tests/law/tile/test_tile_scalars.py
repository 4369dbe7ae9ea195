"""Every equation of `expand_scalars` gives what the function it replaces gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import BF16, DTYPES, F16, F32, PRED, S8, S16, S32, U8, U16, U32, DType
from glia.graph import ops
from glia.graph.ir import Parameter, TensorType
from glia.graph.scalar import FUNCTIONS, convert
from glia.tile.evaluate import evaluate
from glia.tile.expand.buffer_bounds import BufferBounds
from glia.tile.expand.expand_scalars import expand_scalars
from glia.tile.expand.scalar_terms import EQUATIONS, is_direct
from glia.tile.expand.value_bounds import value_bounds
from glia.tile.ir import (
    Accumulator,
    Apply,
    Axis,
    Buffer,
    Expr,
    Literal,
    Load,
    Nest,
    Program,
    Reduction,
    Store,
)
from glia.tile.text import parse_program

Array = np.ndarray[Any, Any]
INTEGERS = (S32, U32, S16, U16, S8, U8)

EDGES = np.array([
    0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 1e-8, -1e-8,
    0.499, -0.499, 2**23 - 0.5, 2**23, -(2**23), 8388609, 3e38, -3e38, 1e-30, 41, 49,
], np.float32)  # fmt: skip


def program_of(function: str, operands: list[DType], result: DType, *extra: Expr) -> Program:
    """result = function(x0, x1, ..., extra...) over one axis of 512 elements."""
    names = [f"x{i}" for i in range(len(operands))]
    at = (Affine.of("i"),)
    loads = tuple(Load(name, dtype, at) for name, dtype in zip(names, operands, strict=True))
    nest = Nest("n", (Axis("i", 512),), Apply(function, (*loads, *extra), result), Store("y", at))
    buffers = {name: Buffer(name, dtype, (512,), "input")
               for name, dtype in zip(names, operands, strict=True)}  # fmt: skip
    buffers["y"] = Buffer("y", result, (512,), "output")
    return Program(function, buffers, (nest,), tuple(names), ("y",))


def run(function: str, arrays: list[Array], result: DType, *extra: Expr) -> Array:
    """The function of arrays after expansion."""
    operands = [next(d for d in DTYPES.values() if d.numpy == a.dtype) for a in arrays]
    return evaluate(expand_scalars(program_of(function, operands, result, *extra)), arrays)[0]


def floats(reach: float, salt: int) -> Array:
    """Edge cases, and numbers up to `reach` of every magnitude."""
    random = np.random.default_rng([salt, int(reach)])
    sign = random.choice([-1.0, 1.0], 300)
    spread = sign * 10 ** random.uniform(-6, np.log10(reach), 300)
    usual = random.standard_normal(512 - 300 - len(EDGES)) * min(3.0, reach)
    edges = EDGES[np.abs(np.nan_to_num(EDGES, posinf=0.0)) <= reach]
    edges = np.resize(edges, len(EDGES))
    return np.concatenate([edges, usual, spread]).astype(np.float32)


def integers(dtype: DType, salt: int) -> Array:
    """The extremes, small numbers and numbers of the whole range."""
    random, limits = np.random.default_rng([salt, dtype.bits]), np.iinfo(dtype.numpy)
    low, high = int(limits.min), int(limits.max)
    edges = [low, high, 0, 1, low, 7]
    small = random.integers(max(low, -20), 21, 250)
    return np.array([*edges, *small, *random.integers(low, high + 1, 256)]).astype(dtype.numpy)


def assert_within_ulps(found: Array, wanted: Array, most: float) -> None:
    """Equal NaNs and infinities, and finite numbers at most `most` f32 ulps apart."""
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        single = np.maximum(np.abs(wanted.astype(np.float32)), np.float32(2**-126))
        apart = np.abs(found - wanted) / np.spacing(single)
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    worst = np.argmax(np.where(same, 0, np.where(np.isnan(apart), np.inf, apart)))
    assert same[worst] or apart[worst] <= most, f"{found[worst]} instead of {wanted[worst]}"


def assert_same(found: Array, wanted: Array) -> None:
    """Equal dtypes and values; NaNs equal each other."""
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


FLOAT_REACH = {"sin": 1e5, "cos": 1e5, "tan": 1e5}
FLOAT_FUNCTIONS = sorted(
    name for name, family in EQUATIONS if family == "float" and name in FUNCTIONS
)


@pytest.mark.parametrize("function", FLOAT_FUNCTIONS)
def test_f32_functions_are_within_a_few_ulps(function: str) -> None:
    declared, reach = FUNCTIONS[function], FLOAT_REACH.get(function, 3.3e38)
    arrays = [floats(reach, salt) for salt in range(declared.arity)]
    arrays = [np.roll(array, 37 * i) for i, array in enumerate(arrays)]
    wanted = declared.compute(*arrays)
    found = run(function, arrays, PRED if declared.result == "pred" else F32)
    if wanted.dtype == bool:
        np.testing.assert_array_equal(found, wanted)
    elif function in ("sin", "cos", "tan"):
        np.testing.assert_allclose(found, wanted, 1e-4, 2e-7)
    else:
        assert_within_ulps(found, wanted, 6)


@pytest.mark.parametrize("divisor", [None, 1e-40, 3.0, 0.1, 6.2831855, 3e38, -7.0])
def test_remainders_are_exact_for_every_quotient(divisor: float | None) -> None:
    words = np.random.default_rng(12).integers(0, 2**32, (2, 512), dtype=np.uint32)
    arrays = list(words.view(np.float32))
    if divisor is None:
        found = run("remainder", arrays, F32)
    else:
        arrays[1][:] = divisor
        found = run("remainder", arrays[:1], F32, Literal(float(np.float32(divisor)), F32))
    with np.errstate(invalid="ignore"):
        wanted = np.fmod(*arrays)
    np.testing.assert_array_equal(found, wanted)
    kept = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[kept]), np.signbit(wanted[kept]))


@pytest.mark.parametrize("function", ["floor", "ceil", "round_nearest_even", "round_nearest_away"])
def test_rounding_keeps_the_sign_of_zero(function: str) -> None:
    array = floats(3.3e38, 5)
    found, wanted = run(function, [array], F32), FUNCTIONS[function].compute(array)
    kept = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[kept]), np.signbit(wanted[kept]))


@pytest.mark.parametrize("function", ["floor", "ceil", "log1p", "divide", "sin"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=repr)
def test_narrow_floats_are_computed_in_f32_and_rounded_once(function: str, dtype: DType) -> None:
    declared = FUNCTIONS[function]
    arrays = [np.roll(floats(100.0, s).astype(dtype.numpy), 11 * s) for s in range(declared.arity)]
    wanted = declared.compute(*arrays).astype(np.float32)
    found = run(function, arrays, dtype).astype(np.float32)
    np.testing.assert_allclose(found, wanted, {"bf16": 2**-8, "f16": 2**-11}[dtype.name], 1e-6)


def test_whole_parts_of_quotients_are_those_of_exact_division() -> None:
    numbers = np.arange(1, 513).astype(np.float32)
    at = (Affine.of("i"),)
    x, y = (Load(name, F32, at) for name in ("x0", "x1"))
    program = program_of("floor", [F32, F32], F32)
    floor = Apply("floor", (Apply("divide", (x, y), F32),), F32)
    nest = Nest("n", (Axis("i", 512),), floor, Store("y", at))
    program = Program("p", program.buffers, (nest,), program.inputs, program.outputs)
    for factor in (1, 3, 7, 41):
        arrays = [numbers * factor, numbers]
        found = evaluate(expand_scalars(program), arrays)[0]
        np.testing.assert_array_equal(found, np.full(512, factor, np.float32))


INTEGER_FUNCTIONS = sorted(
    name for name, family in EQUATIONS
    if family == "integer" and name in FUNCTIONS and name != "power"
)  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
@pytest.mark.parametrize("function", INTEGER_FUNCTIONS)
def test_integer_functions_are_exact(function: str, dtype: DType) -> None:
    declared = FUNCTIONS[function]
    arrays = [np.roll(integers(dtype, s), 3 * s) for s in range(declared.arity)]
    found = run(function, arrays, PRED if declared.result == "pred" else dtype)
    np.testing.assert_array_equal(found, declared.compute(*arrays))


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
def test_integer_powers_wrap(dtype: DType) -> None:
    exponents = np.random.default_rng(4).integers(0, 40, 512).astype(dtype.numpy)
    exponents[:3] = [0, 1, 2]
    if np.iinfo(dtype.numpy).min < 0:
        exponents[3:40] = -1
    arrays = [integers(dtype, 6), exponents]
    found = run("power", arrays, dtype)
    np.testing.assert_array_equal(found, FUNCTIONS["power"].compute(*arrays))


@pytest.mark.parametrize("divisor", [1, 2, 64, 3, 1000, -7])
@pytest.mark.parametrize("function", ["divide", "remainder"])
def test_division_by_a_constant_is_exact(function: str, divisor: int) -> None:
    array = integers(S32, 8)
    found = run(function, [array], S32, Literal(divisor, S32))
    wanted = FUNCTIONS[function].compute(array, np.full(512, divisor, np.int32))
    np.testing.assert_array_equal(found, wanted)


PRED_FUNCTIONS = sorted(
    name for name, family in EQUATIONS if family == "pred" and name in FUNCTIONS
)


@pytest.mark.parametrize("function", PRED_FUNCTIONS)
def test_pred_functions_are_logic(function: str) -> None:
    declared = FUNCTIONS[function]
    arrays = [np.resize(np.repeat([False, True], 2**i), 512) for i in range(declared.arity)]
    np.testing.assert_array_equal(run(function, arrays, PRED), declared.compute(*arrays))


SOURCES = (F32, BF16, *INTEGERS, PRED)


@pytest.mark.parametrize("target", SOURCES, ids=repr)
@pytest.mark.parametrize("source", SOURCES, ids=repr)
def test_conversions_truncate_saturate_and_wrap_as_xla_does(source: DType, target: DType) -> None:
    if source.is_float:
        array = floats(3.3e38, 9).astype(source.numpy)
    else:
        array = integers(S32, 9).astype(source.numpy)
    assert_same(run("convert", [array], target), convert(array, target))


@pytest.mark.parametrize("exponent, mantissa", [(8, 7), (5, 10), (4, 3), (8, 23), (3, 0), (2, 5)])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=repr)
def test_reduced_precision_rounds_overflows_and_flushes(
    dtype: DType, exponent: int, mantissa: int
) -> None:
    array = floats(1e5, 3).astype(dtype.numpy)
    if dtype is F16:  # whose subnormal numbers every engine computes with
        array = np.where(np.arange(512) % 2, array, floats(0.1, 3) * 1e-3).astype(np.float16)
        assert np.count_nonzero((abs(array) < 2**-14) & (array != 0)) > 50
    bits = (Literal(exponent, S32), Literal(mantissa, S32))
    node = ops.ReducePrecision(Parameter(0, TensorType(dtype, (512,))), exponent, mantissa)
    found = run("reduce_precision", [array], dtype, *bits)
    assert_same(found, node.compute(array))


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_every_function_is_direct_or_has_an_equation(function: str) -> None:
    families = {"float": F32, "integer": S32, "pred": PRED}
    for family, dtype in families.items():
        if dtype.kind in FUNCTIONS[function].kinds and FUNCTIONS[function].result != "complex":
            has_equation = (function, family) in EQUATIONS
            assert has_equation or is_direct(function, dtype) or function in ("real", "imag")


BOUNDED = ("square", "abs", "sqrt", "exp", "logistic", "tanh", "erf")
OF_TWO = ("add", "subtract", "multiply", "maximum", "minimum")


@pytest.mark.parametrize("seed", range(40))
def test_values_lie_in_their_bounds(seed: int) -> None:
    random = np.random.default_rng(seed)
    at = (Affine.of("i"),)
    parts: list[Expr] = [Load(f"x{n}", F32, at) for n in range(2)]
    parts += [Literal(float(np.float32(each)), F32) for each in random.normal(0, 3, 3)]
    for _ in range(8):
        args = tuple(parts[n] for n in random.integers(0, len(parts), 2))
        name = str(random.choice([*BOUNDED, *OF_TWO]))
        parts.append(Apply(name, args[:1] if name in BOUNDED else args, F32))
    arrays = [floats(3.3e38, seed), np.roll(floats(100.0, seed), 7)]
    buffers = {f"x{n}": Buffer(f"x{n}", F32, (512,), "input") for n in range(2)}
    buffers["y"] = Buffer("y", F32, (512,), "output")
    arrays = [np.nan_to_num(each, posinf=1.0, neginf=-1.0) for each in arrays]
    is_finite = np.ones(512, bool)
    for part in parts[5:]:
        nest = Nest("n", (Axis("i", 512),), part, Store("y", at))
        value = evaluate(Program("p", buffers, (nest,), ("x0", "x1"), ("y",)), arrays)[0]
        low, high = value_bounds(part)
        is_finite &= np.isfinite(value)
        number = value[is_finite]
        assert ((low <= number) & (number <= high)).all(), part


ROWS, COLUMNS = 8, 16
WHOLE = (Affine.of("i"), Affine.of("j"))


def _nest(number: int, random: np.random.Generator, known: dict[str, Buffer]) -> Nest:
    """A nest that maps what earlier ones wrote, or reduces it along its columns."""
    names = [str(each) for each in random.choice([*known], 2)]
    args = tuple(Load(n, known[n].dtype, WHOLE[: len(known[n].shape)]) for n in names)
    function = str(random.choice([*BOUNDED, *OF_TWO, "exp"]))
    wide = tuple(Apply("convert", (each,), F32) for each in args)
    body: Expr = Apply(function, wide[:1] if function in BOUNDED else wide, F32)
    axes = (Axis("i", ROWS), Axis("j", COLUMNS))
    kind = str(random.choice(["map", "map", "add", "maximum", "minimum"]))
    dtype = (F32, BF16)[random.integers(2)]
    if kind == "map":
        return Nest(f"n{number}", axes, _to(body, dtype), Store(f"b{number}", WHOLE))
    finish = _to(Accumulator(F32), dtype)
    reduction = Reduction(("j",), kind, F32)
    return Nest(f"n{number}", axes, body, Store(f"b{number}", WHOLE[:1]), reduction, finish)


def _to(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype is dtype else Apply("convert", (value,), dtype)


@pytest.mark.parametrize("seed", range(60))
def test_what_nests_write_lies_in_the_bounds_of_their_buffers(seed: int) -> None:
    random = np.random.default_rng([11, seed])
    known = {n: Buffer(n, F32, (ROWS, COLUMNS), "input") for n in ("x0", "x1")}
    arrays = [random.normal(0, scale, (ROWS, COLUMNS)).astype(np.float32) for scale in (1, 30)]
    nests: list[Nest] = []
    for number in range(10):
        nests.append(_nest(number, random, known))
        shape = (ROWS, COLUMNS)[: len(nests[-1].target.index)]
        known[f"b{number}"] = Buffer(f"b{number}", nests[-1].dtype, shape, "output")
    written = tuple(nest.target.buffer for nest in nests)
    program = Program("p", known, tuple(nests), ("x0", "x1"), written)
    values = dict(zip(written, evaluate(program, arrays), strict=True))
    bounds = BufferBounds(program)
    is_finite = True
    for nest in nests:
        bounds.add(nest)
        value = values[nest.target.buffer].astype(np.float64)
        is_finite &= bool(np.isfinite(value).all())
        at = WHOLE[: value.ndim]
        low, high = bounds.of(Load(nest.target.buffer, nest.dtype, at))
        assert not is_finite or (low <= value.min() and value.max() <= high), nest


SOFTMAX = """
program "softmax" {{
  input x {dtype}[8,16]
  input z {dtype}[8,16]
  output y f32[8,16]
  temporary t.0 {dtype}[8]
  temporary t.1 {dtype}[8,16]
  temporary t.2 {dtype}[8]
  nest reduce.0 [i:8 | k:16 maximum f32]
    t.0[i] = {greatest}[i, k]{finish}
  nest exp.0 [i:8 j:16]
    t.1[i, j] = exp.{dtype}(subtract.{dtype}(x[i, j], t.0[i]))
  nest reduce.1 [i:8 | k:16 add f32]
    t.2[i] = {wide}t.1[i, {summed}]{end}{finish}
  nest divide.0 [i:8 j:16]
    y[i, j] = divide.f32(1.0:f32, {wide}t.2[i]{end})
}}
"""


def _softmax(dtype: str, greatest: str = "x", summed: str = "k") -> Program:
    wide, end = ("convert.f32(", ")") if dtype != "f32" else ("", "")
    finish = f"\n    finish convert.{dtype}(acc.f32)" if wide else ""
    names = {"dtype": dtype, "wide": wide, "end": end, "finish": finish}
    return parse_program(SOFTMAX.format(**names, greatest=greatest, summed=summed))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_softmax_divides_by_what_is_no_less_than_one(dtype: str) -> None:
    program = _softmax(dtype)
    bounds = BufferBounds(program)
    for nest in program.nests():
        bounds.add(nest)
    assert 0.9 < bounds.of(Load("t.2", DTYPES[dtype], WHOLE[:1]))[0] <= 1
    assert "less" not in repr([*expand_scalars(program).nests()][-1])


def test_a_sum_of_numbers_that_changed_since_their_greatest_was_taken_may_be_small() -> None:
    text = (
        SOFTMAX.format(dtype="f32", wide="", end="", finish="", greatest="x", summed="k")
        .replace("x[", "w[")
        .replace("  output", "  temporary w f32[8,16]\n  output")
    )
    write = "  nest copy.{0} [i:8 j:16]\n    w[i, j] = {0}[i, j]\n"
    first, rest = text.split("  nest exp.0")
    head, maximum = first.split("  nest reduce.0")
    once = head + write.format("x") + "  nest reduce.0" + maximum + "  nest exp.0" + rest
    twice = once.replace("  nest exp.0", write.format("z") + "  nest exp.0")
    late = head + "  nest reduce.0" + maximum + write.format("x") + "  nest exp.0" + rest
    has_guard = [
        "less" in repr([*expand_scalars(parse_program(each)).nests()][-1])
        for each in (once, twice, late)
    ]
    assert has_guard == [False, True, True]


@pytest.mark.parametrize(("greatest", "summed"), [("z", "k"), ("x", "0")])
def test_a_sum_without_the_greatest_of_its_terms_may_be_small(greatest: str, summed: str) -> None:
    """The greatest of other numbers is taken off, or one of the terms is added up alone."""
    program = _softmax("f32", greatest, summed)
    bounds = BufferBounds(program)
    for nest in program.nests():
        bounds.add(nest)
    assert bounds.of(Load("t.2", F32, WHOLE[:1]))[0] == 0
    assert "less" in repr([*expand_scalars(program).nests()][-1])

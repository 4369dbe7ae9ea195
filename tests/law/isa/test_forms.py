"""The forms that instructions declare are what they compute, and selection takes the cheapest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from glia.arch import get_target
from glia.base.affine import ZERO, Affine
from glia.base.dtype import BF16, F32, PRED, S32, U8, DType
from glia.isa import INSTRUCTIONS
from glia.isa.form import Fixed, Form, Negative, Step, family_of, fixed
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import Reciprocal
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.covering import InstructionCosts, forms_of, matches
from glia.machine.emit.layout import AxisRange, Point, tile_pattern
from glia.machine.emit.selection import Selector
from glia.machine.legal_instruction import violations
from glia.tile.evaluate import apply
from glia.tile.ir import Apply, Expr, Literal, Load
from support.isa_bench import Bench, take

Array = np.ndarray[Any, Any]
SHAPE = (8, 6)
DTYPE_OF = {"float": F32, "integer": S32, "pred": PRED}
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
POSITIVE = {"log", "sqrt", "rsqrt", "power"}  # on what the data has to be
FORMS = [
    pytest.param(kind, form, id=f"{name}-{form.computes}")
    for name, kind in INSTRUCTIONS.items()
    for form in kind.forms
]


# --- a form is what the instruction computes ----------------------------------------------------


def expressions(form: Form) -> Iterator[Apply]:
    """The form's term for every function it may have, inner functions one at a time."""
    roots = sorted(set(form.computes.functions()))
    inner = list(_steps(form.computes))[1:]
    chosen = [sorted({f for f, family in s.functions() if family == "float"}) for s in inner]
    for function, family in roots:
        for position in range(max(map(len, chosen), default=1)):
            picks = [names[position % len(names)] for names in chosen]
            if picks and family != "float":
                continue
            yield term(form.computes, function, DTYPE_OF[family], picks)


def term(step: Step, function: str, dtype: DType, inner: list[str]) -> Apply:
    arguments: list[Expr] = []
    for argument in step.arguments:
        if isinstance(argument, Step):
            part = term(argument, inner.pop(0), F32, inner)
            arguments.append(widened(part) if part.dtype is PRED else part)
        else:
            name = argument.operand if isinstance(argument, Negative) else argument
            arguments.append(Load(name, PRED if name == "predicate" else dtype, ()))
    result = PRED if function in COMPARISONS else BF16 if function == "convert" else dtype
    return Apply(function, tuple(arguments), result)


def widened(expression: Expr) -> Apply:
    return Apply("convert", (expression,), F32)


def functions(expression: Expr) -> set[str]:
    if not isinstance(expression, Apply):
        return set()
    return {expression.function}.union(*map(functions, expression.args))


def value(expression: Expr, contents: dict[str, Array]) -> Array:
    if isinstance(expression, Load):
        return contents[expression.buffer]
    assert isinstance(expression, Apply)
    return apply(expression, [value(argument, contents) for argument in expression.args])


def storage_dtype(dtype: DType) -> DType:
    return U8 if dtype is PRED else dtype


def check_form(kind: type[Instr], form: Form, seed: int = 0) -> int:
    """Assert that a form's terms equal what the instruction does; how many were compared."""
    arch, compared = get_target("trn3").arch, 0
    for expression in expressions(form):
        for match in matches(expression, lambda part: True):
            if match.instruction is not kind or len(match.steps) < _depth(form.computes):
                continue
            for engine in kind.engines:
                compared += _compare(kind, engine, expression, match, arch, seed + compared)
    return compared


def _depth(step: Step) -> int:
    return 1 + max((_depth(a) for a in step.arguments if isinstance(a, Step)), default=0)


def _compare(kind: type[Instr], engine: str, expression: Apply, match: Any, arch: Any, seed: int):
    bench, operands, contents = Bench(seed, is_on_host=False), {}, {}
    used = functions(expression)
    for name, load in match.operands.items():
        declared = kind.operand_declarations[name]
        shape = (SHAPE[0], 1) if declared.is_column else SHAPE
        values = _data(bench.random, load.dtype, shape, used)
        contents[load.buffer] = values
        given = -values if name in match.negated else values
        operands[name] = bench.pattern(shape, storage_dtype(load.dtype), values=given, plain=True)
    if "dst" not in operands:
        operands["dst"] = bench.pattern(SHAPE, storage_dtype(expression.dtype), plain=True)
    instr = kind(on=engine, **match.attributes, **operands)
    if violations(instr, arch):
        return 0
    whole = {n: np.broadcast_to(v, SHAPE) for n, v in contents.items()}
    expected = np.asarray(value(expression, whole)).astype(storage_dtype(expression.dtype).numpy)
    found = take(bench.run(instr)[instr.dst.tile.name], instr.dst)
    wide = [a.astype(np.float64) for a in (found, expected)]
    if family_of(expression.args[-1].dtype) == "integer" and not instr.is_exact:
        return 0  # selection refuses it: float32 does not hold every integer
    np.testing.assert_allclose(*wide, rtol=3e-6, atol=1e-6, err_msg=str(instr))
    return 1


def _data(random: np.random.Generator, dtype: DType, shape: tuple[int, ...], used: set[str]):
    if dtype is PRED:
        return random.integers(0, 2, shape).astype(bool)
    if dtype is S32:
        low, high = (0, 31) if any(f.startswith("shift") for f in used) else (-(2**31), 2**31 - 1)
        return random.integers(low, high, shape).astype(np.int32)
    values = random.uniform(0.5, 1.5, shape).astype(np.float32)
    return values if used & POSITIVE else values * random.choice([-1, 1], shape).astype(np.float32)


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_a_form_is_what_the_instruction_computes(kind: type[Instr], form: Form) -> None:
    assert check_form(kind, form) > 0


def test_a_wrong_form_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Form(fixed("negate", "data"))
    monkeypatch.setattr(Reciprocal, "forms", (wrong,))
    forms_of.cache_clear()
    try:
        with pytest.raises(AssertionError):
            check_form(Reciprocal, wrong)
    finally:
        monkeypatch.undo()
        forms_of.cache_clear()


def test_forms_name_operands_and_attributes_of_their_instruction() -> None:
    for kind in INSTRUCTIONS.values():
        for form in kind.forms:
            for step in _steps(form.computes):
                names = [a.operand if isinstance(a, Negative) else a for a in step.arguments
                         if not isinstance(a, Step)]  # fmt: skip
                assert set(names) <= kind.operand_declarations.keys()
                if not isinstance(step.function, Fixed):
                    flags = {step.function.attribute, step.function.exchanged} - {""}
                    assert flags <= set(kind.attribute_names)


def _steps(step: Step) -> Iterator[Step]:
    yield step
    for argument in step.arguments:
        if isinstance(argument, Step):
            yield from _steps(argument)


# --- selection takes the cheapest cover ----------------------------------------------------------


class Bed:
    """A selector at a point of 128 partitions and `free` elements, over made-up loads."""

    def __init__(self, target: str = "trn2", free: int = 512) -> None:
        self.builder = BlockBuilder()
        self.point = Point({"p": AxisRange(ZERO, 128), "f": AxisRange(ZERO, free)}, "p", ("f",))
        self.costs = InstructionCosts(get_target(target).arch)
        self.memories: dict[str, Memory] = {}

    def load(self, name: str, dtype: DType = F32, *, column: bool = False) -> Load:
        index = (Affine.of("p"),) if column else (Affine.of("p"), Affine.of("f"))
        return Load(name, dtype, index)

    def selector(self) -> Selector:
        return Selector(self.builder, self.costs, self.point, self.read)

    def read(self, load: Load, point: Point) -> Pattern:
        axes = point.free if len(load.index) > 1 else ()
        elements = point.env["f"].extent if axes else 1
        memory = self.memories.get(load.buffer, Memory.SBUF)
        tile = Tile(load.buffer, memory, storage_dtype(load.dtype), 128, elements)
        return tile_pattern(tile, point, axes)

    def emitted(self, expression: Expr) -> list[Instr]:
        dst = self.read(self.load("out", expression.dtype), self.point)
        self.selector().store(expression, dst)
        return [i for i in self.builder.block if isinstance(i, Instr)]

    def names(self, expression: Expr) -> list[str]:
        return [i.mnemonic() for i in self.emitted(expression)]


def f32(function: str, *args: Expr | float) -> Apply:
    parts = tuple(a if not isinstance(a, float) else Literal(a, F32) for a in args)
    return Apply(function, parts, F32)


def test_a_scaled_and_shifted_tensor_is_one_instruction() -> None:
    bed = Bed()
    x = bed.load("x")
    (only,) = bed.emitted(f32("add", f32("multiply", x, 2.0), 1.0))
    assert (only.mnemonic(), only.op0, only.op1) == ("tensor_scalar", "multiply", "add")


def test_a_function_of_a_difference_takes_the_negative_as_bias() -> None:
    bed = Bed()
    x, m = bed.load("x"), bed.load("m", column=True)
    first, second = bed.emitted(f32("exp", f32("subtract", x, m)))
    assert (first.mnemonic(), first.dst.free) == ("tensor_scalar", 1)
    assert (second.mnemonic(), second.function) == ("activation", "exp")
    assert second.bias.tile is first.dst.tile


def test_a_reversed_difference_is_a_negative_scale() -> None:
    bed = Bed()
    x, m = bed.load("x"), bed.load("m", column=True)
    (only,) = bed.emitted(f32("exp", f32("subtract", m, x)))
    assert (only.mnemonic(), only.scale, only.bias.tile.name) == ("activation", -1.0, "m")


def test_conversions_cost_nothing_around_arithmetic() -> None:
    bed = Bed()
    x, y = bed.load("x", BF16), bed.load("y", BF16)
    product = f32("multiply", widened(x), widened(y))
    (only,) = bed.emitted(Apply("convert", (product,), BF16))
    assert (only.data1.dtype, only.data2.dtype, only.dst.dtype) == (BF16, BF16, BF16)


def test_bits_are_shifted_and_masked_at_once() -> None:
    bed = Bed()
    x = bed.load("x", S32)
    shifted = Apply("shift_right_logical", (x, Literal(7, S32)), S32)
    (only,) = bed.emitted(Apply("and", (shifted, Literal(1, S32)), S32))
    assert (only.op0, only.op1, only.on) == ("right_shift", "bitwise_and", "vector")


def test_integers_are_added_where_that_is_exact() -> None:
    bed = Bed()
    (only,) = bed.emitted(Apply("add", (bed.load("x", S32), bed.load("y", S32)), S32))
    assert (only.mnemonic(), only.on) == ("tensor_tensor", "gpsimd")


def test_a_value_used_twice_is_computed_once() -> None:
    bed = Bed()
    e = f32("exp", bed.load("x"))
    names = bed.names(f32("multiply", f32("add", e, 1.0), f32("subtract", e, bed.load("y"))))
    assert names.count("activation") == 1


def test_two_operands_in_psum_leave_it() -> None:
    bed = Bed()
    bed.memories = {"x": Memory.PSUM, "y": Memory.PSUM}
    emitted = bed.emitted(f32("multiply", bed.load("x"), bed.load("y")))
    assert not any(violations(i, bed.costs.arch) for i in emitted)
    assert emitted[-1].mnemonic() == "tensor_tensor"


def test_a_selection_starts_from_what_it_keeps() -> None:
    bed = Bed()
    x = bed.load("x")
    positive = Apply("greater", (x, Literal(0.0, F32)), PRED)
    emitted = bed.emitted(f32("select", positive, x, 0.0))
    assert [i.mnemonic() for i in emitted] == ["tensor_scalar", "memset", "tensor_copy_predicated"]


def test_the_price_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """x * c + b with columns: the table engine's unit, unless it were slow."""

    def shape(bed: Bed) -> Apply:
        c, b = bed.load("c", column=True), bed.load("b", column=True)
        return f32("square", f32("add", f32("multiply", bed.load("x"), c), b))

    bed = Bed("trn1")
    assert bed.names(shape(bed)) == ["activation"]
    monkeypatch.setattr(Activation, "cycles", lambda self, arch: 10**6)
    bed = Bed("trn1")
    assert bed.names(shape(bed)) == ["tensor_scalar", "tensor_scalar"]


@pytest.mark.parametrize("seed", range(12))
def test_no_cover_is_cheaper_than_the_chosen_one(seed: int) -> None:
    """Random trees: every choice of which parts to keep as values costs at least as much."""
    random = np.random.default_rng(seed)
    bed = Bed(("trn1", "trn2", "trn3")[seed % 3], int(random.choice([1, 64, 512])))
    root = _random_tree(random, bed, 4)
    inner = [e for e in _applies(root) if e is not root]
    chosen = _cost(bed, root, ())
    for count in range(len(inner) + 1):
        for kept in itertools.islice(itertools.combinations(inner, count), 40):
            assert chosen <= _cost(bed, root, kept) + 1e-6


def _cost(bed: Bed, root: Apply, kept: tuple[Apply, ...]) -> float:
    """Nanoseconds of what is emitted when some parts must be values of their own."""
    bed.builder = BlockBuilder()
    selector = bed.selector()
    for part in reversed(kept):  # innermost first, as `_applies` lists the outermost first
        selector.value(part)
    dst = bed.read(bed.load("out"), bed.point)
    selector.store(root, dst)
    arch = bed.costs.arch
    return sum(i.cycles(arch) / arch.clocks_ghz[i.runs_on] for i in bed.builder.block)


def _applies(expression: Expr) -> list[Apply]:
    if not isinstance(expression, Apply):
        return []
    return [expression, *(e for argument in expression.args for e in _applies(argument))]


def _random_tree(random: np.random.Generator, bed: Bed, depth: int) -> Expr:
    if depth == 0:
        kind = random.integers(0, 4)
        if kind == 0:
            return Literal(float(random.integers(1, 5)), F32)
        return bed.load(f"x{random.integers(0, 1000)}", column=kind == 1)
    if random.random() < 0.3:
        argument = _random_tree(random, bed, depth - 1)
        return argument if isinstance(argument, Literal) else f32("exp", argument)
    function = str(random.choice(["add", "subtract", "multiply", "maximum"]))
    left = _random_tree(random, bed, depth - 1)
    right = _random_tree(random, bed, depth - 1 - int(random.integers(0, depth)))
    if isinstance(left, Literal) and isinstance(right, Literal):
        left = bed.load(f"y{random.integers(0, 1000)}")
    return f32(function, left, right)

"""The families of operations that random programs grow by."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from glia.base.dtype import BF16, C64, DTYPES, F16, F32, PRED, S32, S64, U8, U32, U64, DType
from glia.graph import ops, scalar
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.rules.constructors import get, slice_along
from support.random_graphs.grow import MOST_ELEMENTS, Family, Grower, Misfit, Shape

FAMILIES: list[Family] = []


def family(weight: int) -> Callable[[Family], Family]:
    def register(grow: Family) -> Family:
        FAMILIES.extend([grow] * weight)
        return grow

    return register


MOST_PRODUCTS = 4_000_000  # of a contraction: the reference computes them all

LONGEST_SORT = 640  # a sorting network of more rows takes seconds to compile

_ALGEBRA = ("add", "subtract", "multiply", "maximum", "minimum")


def _functions(arity: int, dtype: DType) -> list[str]:
    """The scalar functions of some arity that take this dtype."""
    return [
        name for name, function in scalar.FUNCTIONS.items()
        if function.arity == arity and dtype.kind in function.kinds
        and not (function.result == "complex" and dtype is not F32)
    ]  # fmt: skip


@family(4)
def unary(grow: Grower) -> Node:
    x = grow.any()
    return ops.Map(grow.one_of(_functions(1, x.dtype)), (x,))


@family(6)
def binary(grow: Grower) -> Node:
    x = grow.any()
    names = _functions(2, x.dtype)
    common = [name for name in names if name in _ALGEBRA]
    name = grow.one_of(common if common and grow.chance(0.6) else names)
    y = grow.like(x.dtype, x.shape)
    return ops.Map(name, (x, y) if grow.chance(0.5) else (y, x))


@family(2)
def select(grow: Grower) -> Node:
    x = grow.any()
    return ops.Map("select", (grow.like(PRED, x.shape), x, grow.like(x.dtype, x.shape)))


@family(1)
def clamp(grow: Grower) -> Node:
    x = grow.any(lambda node: node.dtype.is_float or node.dtype.is_integer)
    return ops.Map("clamp", (grow.splat(x.dtype, x.shape), x, grow.like(x.dtype, x.shape)))


@family(3)
def convert(grow: Grower) -> Node:
    x, to = grow.any(), grow.dtype()
    if x.dtype.is_complex and not to.is_complex:
        raise Misfit
    return ops.Convert(x, to)


_MOVEMENT = (
    ops.Broadcast, ops.Reshape, ops.Transpose, ops.Slice, ops.Reverse, ops.Pad, ops.Concatenate,
    ops.Gather, ops.DynamicSlice, ops.DynamicUpdateSlice, ops.Bitcast,
)  # fmt: skip


def _has_known_bits(node: Node) -> bool:
    """Whether every machine has the same bits: of a computed float it may have others."""
    if node.dtype.is_integer or isinstance(node, Parameter | ops.Constant):
        return True
    return isinstance(node, _MOVEMENT) and all(map(_has_known_bits, node.operands))


@family(1)
def bitcast(grow: Grower) -> Node:
    x = grow.any(lambda node: node.dtype is not PRED and not node.dtype.is_complex
                 and _has_known_bits(node))  # fmt: skip
    same = [d for d in DTYPES.values() if d.bits == x.dtype.bits
            and (d.is_integer or d in (F32, BF16, F16))]  # fmt: skip
    return ops.Bitcast(x, grow.one_of(same))


@family(1)
def reduce_precision(grow: Grower) -> Node:
    x = grow.any(lambda node: node.dtype in (F32, BF16, F16))
    return ops.ReducePrecision(x, *grow.one_of(((5, 2), (5, 10), (8, 7), (4, 3))))


@family(1)
def iota(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape) and node.dtype is not PRED)
    result = x.type
    return ops.Map("add", (x, ops.Iota(result, grow.below(len(x.shape)))))


# --- movement ---------------------------------------------------------------------------------


@family(3)
def broadcast(grow: Grower) -> Node:
    x = grow.any()
    rank = len(x.shape) + grow.below(3)
    places = sorted(grow.permutation(rank)[: len(x.shape)])
    shape = [0] * rank
    most = MOST_ELEMENTS // max(1, math.prod(x.shape))
    for d in range(rank):
        shape[d] = x.shape[places.index(d)] if d in places else grow.extent(min(most, 256))
        most //= max(1, shape[d]) if d not in places else 1
    return ops.Broadcast(x, tuple(shape), tuple(places))


@family(4)
def reshape(grow: Grower) -> Node:
    x = grow.any()
    shape = list(x.shape)
    for _ in range(1 + grow.below(3)):
        if len(shape) >= 2 and grow.chance(0.5):
            at = grow.below(len(shape) - 1)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif shape and grow.chance(0.8):
            at = grow.below(len(shape))
            factors = [f for f in range(1, min(shape[at], 600) + 1) if shape[at] % f == 0]
            factor = grow.one_of(factors)
            shape[at : at + 1] = [factor, shape[at] // factor]
        else:
            shape.insert(grow.below(len(shape) + 1), 1)
    return ops.Reshape(x, tuple(shape))


@family(4)
def transpose(grow: Grower) -> Node:
    x = grow.any(lambda node: len(node.shape) >= 2)
    return ops.Transpose(x, grow.permutation(len(x.shape)))


@family(3)
def slice_(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape))
    start, limit, stride = [], [], []
    for extent in x.shape:
        first = grow.below(extent) if extent and grow.chance(0.5) else 0
        last = first + 1 + grow.below(extent - first) if extent and grow.chance(0.5) else extent
        start.append(first)
        limit.append(last)
        stride.append(grow.one_of((1, 1, 1, 2, 3)))
    return ops.Slice(x, tuple(start), tuple(limit), tuple(stride))


@family(1)
def reverse(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape))
    return ops.Reverse(x, grow.dimensions(len(x.shape), 1))


@family(2)
def pad(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape))
    rank = len(x.shape)
    low, high = ([grow.one_of((0, 0, 1, 2, -1, 5)) for _ in range(rank)] for _ in range(2))
    interior = [grow.one_of((0, 0, 0, 1, 2)) for _ in range(rank)]
    for d, extent in enumerate(x.shape):
        if low[d] + high[d] + extent + max(0, extent - 1) * interior[d] < 1:
            low[d] = high[d] = 0
    value = ops.Constant(grow.scalar_value(x.dtype))
    return ops.Pad(x, value, tuple(low), tuple(high), tuple(interior))


@family(2)
def concatenate(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape))
    dimension = grow.below(len(x.shape))
    parts = [x]
    for _ in range(1 + grow.below(3)):
        shape = list(x.shape)
        shape[dimension] = grow.extent(min(256, MOST_ELEMENTS // max(1, math.prod(x.shape))))
        parts.insert(grow.below(len(parts) + 1), grow.like(x.dtype, tuple(shape)))
    return ops.Concatenate(tuple(parts), dimension)


# --- contractions -----------------------------------------------------------------------------

_CONTRACTED = (F32, F32, BF16, BF16, F16, S32, DTYPES["s8"], DTYPES["u8"], C64, S64)


@family(6)
def dot(grow: Grower) -> Node:
    a = grow.any(lambda node: node.dtype in _CONTRACTED)
    rank = len(a.shape)
    contract = grow.permutation(rank)[: min(rank, grow.one_of((0, 1, 1, 1, 1, 2)))]
    rest = [d for d in range(rank) if d not in contract]
    batch = tuple(rest[: grow.one_of((0, 0, 0, 1, 2))]) if grow.chance(0.5) else ()
    free = [grow.extent(256) for _ in range(grow.one_of((0, 1, 1, 1, 2)))]
    roles = [*(("batch", d) for d in batch), *(("contract", d) for d in contract),
             *(("free", n) for n in range(len(free)))]  # fmt: skip
    order = [roles[i] for i in grow.permutation(len(roles))]
    shape = tuple(free[n] if role == "free" else a.shape[n] for role, n in order)
    if math.prod(a.shape) * math.prod(free) > MOST_PRODUCTS or math.prod(shape) > MOST_ELEMENTS:
        raise Misfit
    b = grow.like(a.dtype, shape)
    place = {role: at for at, role in enumerate(order)}
    result = a.dtype
    if a.dtype.is_float and grow.chance(0.4):
        result = F32
    elif a.dtype.is_integer and grow.chance(0.7):
        result = S32
    return ops.Dot(a, b, batch, tuple(place["batch", d] for d in batch), contract,
                   tuple(place["contract", d] for d in contract), result)  # fmt: skip


@family(3)
def convolution(grow: Grower) -> Node:
    x = grow.any(lambda node: node.dtype in (F32, BF16, F16) and len(node.shape) >= 3)
    rank = len(x.shape) - 2
    groups = grow.one_of([g for g in (1, 1, 2, 3, 4, 8, x.shape[1]) if x.shape[1] % g == 0])
    outputs = groups * grow.one_of((1, 2, 3, 16))
    window, stride, low, high, x_dilation, dilation = [], [], [], [], [], []
    for extent in x.shape[2:]:
        window.append(grow.one_of((1, 2, 3, 3, 5, 7)))
        stride.append(grow.one_of((1, 1, 2, 3)))
        low.append(grow.below(window[-1]))
        high.append(grow.below(window[-1]))
        x_dilation.append(grow.one_of((1, 1, 1, 2)))
        dilation.append(grow.one_of((1, 1, 1, 2)))
        reach = (window[-1] - 1) * dilation[-1] + 1
        high[-1] += max(0, reach - low[-1] - high[-1] - (extent - 1) * x_dilation[-1] - 1)
    kernel_shape = (outputs, x.shape[1] // groups, *window)
    reversal = tuple(grow.chance(0.2) for _ in range(rank))
    kernel = grow.like(x.dtype, kernel_shape)
    found = ops.Convolution(x, kernel, tuple(stride), tuple(low), tuple(high), tuple(x_dilation),
                            tuple(dilation), reversal, groups, 1,
                            F32 if grow.chance(0.3) else x.dtype)  # fmt: skip
    if math.prod(found.shape) * math.prod(kernel_shape[1:]) > MOST_PRODUCTS:
        raise Misfit
    return found


# --- reductions -------------------------------------------------------------------------------


def _monoid(grow: Grower, dtype: DType) -> str:
    if dtype is PRED:
        return str(grow.one_of(("and", "or")))
    if dtype.is_complex:
        return str(grow.one_of(("add", "multiply")))
    names = ["add", "add", "maximum", "minimum"]
    if dtype.is_integer:
        names += ["and", "or", "xor", "multiply"]
    return str(grow.one_of(names))


def _initial(grow: Grower, name: str, dtype: DType) -> Node:
    if grow.chance(0.2):
        return ops.Constant(grow.scalar_value(dtype))
    return ops.Constant(ops.identity(name, dtype))


def _is_reducible(node: Node) -> bool:
    return bool(node.shape) and node.dtype.bits >= 8


@family(5)
def reduce(grow: Grower) -> Node:
    x = grow.any(_is_reducible)
    name = _monoid(grow, x.dtype)
    axes = grow.dimensions(len(x.shape), 1)
    init = _initial(grow, name, x.dtype)
    return ops.Reduce((x,), (init,), axes, ops.combiner(name, x.dtype))


@family(1)
def argmax(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape) and node.dtype in (F32, BF16, S32))
    axis = grow.below(len(x.shape))
    places = ops.Iota(ops.Convert(x, S32).type, axis)

    def body(a: Node, i: Node, b: Node, j: Node) -> tuple[Node, ...]:
        takes = ops.Map("or", (ops.Map("greater", (a, b)), ops.Map("and", (
            ops.Map("equal", (a, b)), ops.Map("less", (i, j))))))  # fmt: skip
        return ops.Map("select", (takes, a, b)), ops.Map("select", (takes, i, j))

    region = ops.scalar_graph("argmax", (x.dtype, S32, x.dtype, S32), body)
    least = ops.Constant(ops.identity("maximum", x.dtype))
    zero = ops.Constant(np.zeros((), np.int32))
    return ops.Reduce((x, places), (least, zero), (axis,), region)


@family(2)
def reduce_window(grow: Grower) -> Node:
    x = grow.any(_is_reducible)
    name = _monoid(grow, x.dtype)
    window, stride, low, high, x_dilation, dilation = [], [], [], [], [], []
    for extent in x.shape:
        window.append(grow.one_of((1, 1, 2, 3, 5, extent)))
        stride.append(grow.one_of((1, 1, 2, 3)))
        dilation.append(grow.one_of((1, 1, 1, 2)))
        x_dilation.append(grow.one_of((1, 1, 1, 2)))
        low.append(grow.one_of((0, 0, window[-1] - 1)))
        high.append(grow.one_of((0, 0, 1)))
        reach = (window[-1] - 1) * dilation[-1] + 1
        high[-1] += max(0, reach - low[-1] - high[-1] - (extent - 1) * x_dilation[-1] - 1)
    if math.prod(window) * math.prod(x.shape) > MOST_PRODUCTS // 4:
        raise Misfit
    lists = (window, stride, low, high, x_dilation, dilation)
    return ops.ReduceWindow((x,), (_initial(grow, name, x.dtype),), *map(tuple, lists),
                            ops.combiner(name, x.dtype))  # fmt: skip


@family(1)
def cumulate(grow: Grower) -> Node:
    x = grow.any(lambda node: _is_reducible(node) and max(node.shape) <= 600)
    name, axis = _monoid(grow, x.dtype), grow.below(len(x.shape))
    ones, zeros = (1,) * len(x.shape), (0,) * len(x.shape)
    extent = x.shape[axis]
    if extent * math.prod(x.shape) > MOST_PRODUCTS:
        raise Misfit
    window, low = list(ones), list(zeros)
    window[axis], low[axis] = extent, extent - 1
    init = ops.Constant(ops.identity(name, x.dtype))
    return ops.ReduceWindow((x,), (init,), tuple(window), ones, tuple(low), zeros, ones, ones,
                            ops.combiner(name, x.dtype))  # fmt: skip


@family(1)
def pool_gradient(grow: Grower) -> Node:
    x = grow.any(lambda node: node.dtype in (F32, BF16) and 1 <= len(node.shape) <= 4)
    window = tuple(min(extent, grow.one_of((1, 2, 3))) for extent in x.shape)
    counts = tuple((e - w) // w + 1 for e, w in zip(x.shape, window, strict=True))
    zeros = (0,) * len(window)
    source = grow.like(x.dtype, counts)
    pick = ops.scalar_graph("ge", (x.dtype,) * 2, lambda a, b: ops.Map("greater_equal", (a, b)))
    zero = ops.Constant(np.zeros((), x.dtype.numpy))
    return ops.SelectAndScatter(x, source, zero, window, window, zeros, zeros, pick,
                                ops.combiner("add", x.dtype))  # fmt: skip


@family(1)
def sort(grow: Grower) -> Node:
    x = grow.any(lambda node: _is_reducible(node) and not node.dtype.is_complex)
    dimension = grow.below(len(x.shape))
    if x.shape[dimension] > LONGEST_SORT:
        raise Misfit
    name = grow.one_of(("less", "greater"))
    if x.dtype.is_float:  # the sign of a NaN that is computed is not defined, but sorts it
        nan = ops.Broadcast(ops.Constant(np.array(np.nan, x.dtype.numpy)), x.shape, ())
        x = ops.Map("select", (ops.Map("equal", (x, x)), x, nan))
        name += "_total_order"
    payload = [grow.like(grow.one_of((F32, S32, BF16)), x.shape)] if grow.chance(0.4) else []
    xs = (x, *payload)
    dtypes = [node.dtype for node in xs for _ in range(2)]
    region = ops.scalar_graph("order", dtypes, lambda *nodes: ops.Map(name, nodes[:2]))
    found = ops.Sort(xs, dimension, True, region)
    if not x.shape[dimension] or grow.chance(0.5):
        return found
    count = 1 + grow.below(x.shape[dimension])
    return slice_along(get(found, len(payload)), dimension, 0, count)


# --- positions that are values ----------------------------------------------------------------


@family(3)
def gather_rows(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape))
    rank, axis = len(x.shape), grow.below(len(x.shape))
    shape = grow.shape(grow.one_of((0, 1, 1, 2)), MOST_ELEMENTS // max(1, math.prod(x.shape)))
    indices = grow.index(x.shape[axis], (*shape, 1))
    sizes = tuple(1 if d == axis else e for d, e in enumerate(x.shape))
    count = len(shape)
    offset = tuple(range(count, count + rank - 1))
    return ops.Gather(x, indices, offset, (axis,), (), (), (axis,), count, sizes)


@family(2)
def gather_windows(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape))
    rank = len(x.shape)
    axes = grow.dimensions(rank, 1)
    count = grow.extent(40)
    sizes = tuple(1 + grow.below(min(e, 9)) if d in axes else e for d, e in enumerate(x.shape))
    indices = grow.index(min(x.shape[d] for d in axes), (count, len(axes)))
    offset = tuple(range(1, rank + 1))
    return ops.Gather(x, indices, offset, (), (), (), axes, 1, sizes)


@family(3)
def scatter_rows(grow: Grower) -> Node:
    x = grow.any(_is_reducible)
    axis, count = grow.below(len(x.shape)), grow.extent(200)
    rest: Shape = tuple(e for d, e in enumerate(x.shape) if d != axis)
    if count * math.prod(rest) > MOST_ELEMENTS:
        raise Misfit
    indices = grow.index(x.shape[axis], (count, 1))
    updates = grow.like(x.dtype, (count, *rest))
    name = _monoid(grow, x.dtype)
    body: Graph = ops.combiner(name, x.dtype)
    if grow.chance(0.3):
        body = ops.scalar_graph("replace", (x.dtype,) * 2, lambda a, b: b)
    window = tuple(range(1, len(x.shape)))
    return ops.Scatter((x,), indices, (updates,), window, (axis,), (), (), (axis,), 1, False, body)


@family(2)
def dynamic_slice(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape))
    sizes = tuple(1 + grow.below(extent) for extent in x.shape)
    dtype_starts = tuple(grow.index(extent) for extent in x.shape)
    starts = tuple(ops.Convert(start, S32) for start in dtype_starts)
    return ops.DynamicSlice(x, starts, sizes)


@family(2)
def dynamic_update_slice(grow: Grower) -> Node:
    x = grow.any(lambda node: bool(node.shape))
    update = grow.like(x.dtype, tuple(1 + grow.below(extent) for extent in x.shape))
    starts = tuple(ops.Convert(grow.index(extent), S32) for extent in x.shape)
    return ops.DynamicUpdateSlice(x, update, starts)


# --- control flow and linear algebra ----------------------------------------------------------


@family(2)
def counted_loop(grow: Grower) -> Node:
    x = grow.any(lambda node: node.dtype in (F32, BF16, S32))
    y = grow.like(x.dtype, x.shape)
    count = ops.Constant(np.array(1 + grow.below(5), np.int32))
    zero = ops.Constant(np.zeros((), np.int32))
    one = ops.Constant(np.ones((), np.int32))
    name = grow.one_of(("add", "maximum", "subtract"))
    kinds = [node.type for node in (zero, x, y)]
    parameters = [Parameter(i, kind) for i, kind in enumerate(kinds)]
    i, a, b = parameters
    step = ops.Map(name, (a, b))
    if x.dtype is not S32 and grow.chance(0.5):
        step = ops.Map("tanh", (step,))
    condition = Graph("condition", tuple(parameters), (ops.Map("less", (i, count)),))
    body = Graph("body", tuple(parameters), (ops.Map("add", (i, one)), step, b))
    return ops.Get(ops.While((zero, x, y), condition, body), 1)


@family(1)
def conditional(grow: Grower) -> Node:
    x = grow.any(lambda node: node.dtype in (F32, BF16, S32))
    index = grow.index(3)
    branches = []
    for name in ("negate", "square", "abs"):
        parameter = Parameter(0, x.type)
        branches.append(Graph(name, (parameter,), (ops.Map(name, (parameter,)),)))
    return ops.Conditional(ops.Convert(index, S32), (x,) * 3, (1,) * 3, tuple(branches))


@family(1)
def fft(grow: Grower) -> Node:
    x = grow.any(lambda node: node.dtype in (F32, C64) and bool(node.shape)
                 and node.shape[-1] <= 260)  # fmt: skip
    kind = "rfft" if x.dtype is F32 else grow.one_of(("fft", "ifft"))
    return ops.Fft(x, kind, x.shape[-1:])


_LARGEST_MATRIX = 65  # to solve: programs grow with its logarithm, references with its cube


def _well_conditioned(grow: Grower, square: Node) -> Node:
    """A matrix with enough added to its diagonal that solving for it loses few digits."""
    extent = square.shape[-1]
    diagonal = ops.Constant((np.eye(extent) * (2 * extent + 1)).astype(square.dtype.numpy))
    rank = len(square.shape)
    return ops.Map("add", (square, ops.Broadcast(diagonal, square.shape, (rank - 2, rank - 1))))


@family(1)
def triangular_solve(grow: Grower) -> Node:
    is_left = grow.chance(0.6)
    side = -2 if is_left else -1
    b = grow.any(lambda node: node.dtype in (F32, BF16, C64) and len(node.shape) >= 2
                 and 1 <= node.shape[side] <= _LARGEST_MATRIX)  # fmt: skip
    extent = b.shape[side]
    a = _well_conditioned(grow, grow.parameter(b.dtype, (*b.shape[:-2], extent, extent)))
    transpose = grow.one_of(("no", "no", "transpose", "adjoint"))
    return ops.TriangularSolve(a, b, is_left, grow.chance(0.5), grow.chance(0.2), transpose)


@family(1)
def cholesky(grow: Grower) -> Node:
    """Of x x^H, made positive definite."""
    dtype = grow.one_of((F32, F32, BF16, C64))
    batch = grow.one_of(((), (), (1,), (3,)))
    extent = grow.extent(_LARGEST_MATRIX)
    x = grow.parameter(dtype, (*batch, extent, min(extent, 3)))
    other = x if not dtype.is_complex else _conjugate(x)
    batches, last = tuple(range(len(batch))), len(batch) + 1
    product = ops.Dot(x, other, batches, batches, (last,), (last,), dtype)
    return ops.Cholesky(_well_conditioned(grow, product), grow.chance(0.5))


def _conjugate(x: Node) -> Node:
    imaginary = ops.Map("negate", (ops.Map("imag", (x,)),))
    return ops.Map("complex", (ops.Map("real", (x,)), imaginary))


@family(1)
def random_bits(grow: Grower) -> Node:
    """Bits of a generator, whose seed is an input; small counts of them as floats."""
    algorithm = grow.one_of(("default", "three_fry", "philox"))
    dtype = grow.one_of((U32, U32, S32, U8, DTYPES["u16"], U64))
    state = grow.parameter(U64, (2 if algorithm == "three_fry" else grow.one_of((2, 3)),))
    drawn = grow.random.integers(0, 1 << 63, state.shape).astype(np.uint64)
    grow.arrays[state.index] = drawn
    shape = grow.shape(grow.one_of((0, 1, 1, 2, 3)), 600)
    return ops.RngBits(state, TensorType(dtype, shape), algorithm)

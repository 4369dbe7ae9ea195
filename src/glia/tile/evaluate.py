"""The reference evaluator of the tile level, on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from glia.base.affine import Affine
from glia.base.dtype import TF32, DType, from_numpy, integer_limits
from glia.base.errors import InternalError, Unspecified
from glia.graph import ops, participants, scalar
from glia.graph.ir import Parameter, TensorType
from glia.graph.ops.scalar_regions import MONOIDS, identity, run_scan
from glia.isa.numerics import narrow, widen
from glia.tile.build.nest import strides_of
from glia.tile.ir import (
    SCANS,
    Accumulator,
    Apply,
    Branch,
    Buffer,
    Call,
    Dynamic,
    Exchange,
    Expr,
    Index,
    Literal,
    Load,
    Nest,
    Program,
    Reduction,
    Scan,
    Statement,
    Store,
    While,
    ordered_axes,
)

Array = np.ndarray[Any, Any]
Memory = dict[str, Array]
RunCall = Callable[[Call, Sequence[Array]], Sequence[Array]]

MAXIMUM_ELEMENTS = 1 << 22  # of one intermediate array; larger nests run in several boxes


def evaluate(
    program: Program, inputs: Sequence[Array], run_call: RunCall | None = None
) -> list[Array]:
    """The outputs of `program` on one array per input.

    An input may have any shape of its buffer's element count. Raises InternalError when an access
    leaves its buffer and TypeError when an input does not fit. Inputs are not changed.
    """
    memory = memory_of(program, inputs)
    with np.errstate(all="ignore"):
        run_block(program.body, memory, run_call or refuse_call)
    return [memory[name] for name in program.outputs]


def memory_of(program: Program, inputs: Sequence[Array]) -> Memory:
    """The buffers before the program runs: inputs, constants, and poison elsewhere."""
    if len(inputs) != len(program.inputs):
        raise TypeError(f"{program.name} takes {len(program.inputs)} inputs, not {len(inputs)}")
    memory: Memory = {}
    for name, array in zip(program.inputs, inputs, strict=True):
        memory[name] = _check_shape(program.buffers[name], np.asarray(array))
    for name, value in program.constants.items():
        memory[name] = _check_shape(program.buffers[name], np.asarray(value))
    for output, source in program.aliases:
        memory[source] = memory[source].copy()
        memory[output] = memory[source].reshape(program.buffers[output].shape)
    for name, buffer in program.buffers.items():
        if name not in memory:
            memory[name] = _poison(buffer)
    return memory


def _check_shape(buffer: Buffer, array: Array) -> Array:
    if array.dtype != buffer.dtype.numpy or array.size != buffer.elements:
        found = f"{array.dtype}{list(array.shape)}"
        raise TypeError(f"{buffer.name} holds {buffer.dtype}{list(buffer.shape)}, not {found}")
    return np.ascontiguousarray(array).reshape(buffer.shape)


def _poison(buffer: Buffer) -> Array:
    """Memory filled with a poison value, which makes reads before writes visible."""
    poison: Any = True
    if buffer.dtype.is_float:
        poison = np.nan
    elif buffer.dtype.is_integer:
        poison = integer_limits(buffer.dtype.numpy).max // 2
    return np.full(buffer.shape, poison, buffer.dtype.numpy)


def refuse_call(call: Call, arrays: Sequence[Array]) -> Sequence[Array]:
    """Raise Unspecified: what a machine program computes is no matter of this level."""
    raise Unspecified(f"{call.name} is a machine program; the simulator runs it")


def run_block(body: tuple[Statement, ...], memory: Memory, run_call: RunCall = refuse_call) -> None:
    """Execute statements in order; `run_call` gives the outputs of a call for its inputs."""
    for statement in body:
        if isinstance(statement, Nest):
            run_nest(statement, memory)
        elif isinstance(statement, While):
            run_block(statement.condition, memory, run_call)
            while memory[statement.predicate].item():
                run_block(statement.body, memory, run_call)
                run_block(statement.condition, memory, run_call)
        elif isinstance(statement, Call):
            found = run_call(statement, [memory[name] for name in statement.inputs])
            for name, array in zip(statement.outputs, found, strict=True):
                memory[name][...] = array
        elif isinstance(statement, Exchange):
            _run_exchange(statement, memory)
        else:
            run_block(_select_arm(statement, memory), memory, run_call)


def _run_exchange(exchange: Exchange, memory: Memory) -> None:
    """Meet the other ranks of the evaluation (`participants`); without any there is only rank 0."""
    me = participants.current()
    if exchange.kind == "rank-id":
        memory[exchange.outputs[0]][...] = me.number
        return
    given = [memory[name].copy() for name in exchange.inputs]
    everyone = me.exchange(exchange, given)
    group = next((each for each in exchange.groups if me.number in each), (me.number,))
    if exchange.kind == "collective-permute":
        group = next((each for each in exchange.groups if each[1] == me.number), ())
    for index, name in enumerate(exchange.outputs):
        parts = [everyone[rank][index] for rank in group]
        if parts:
            received = _received(exchange, parts, group.index(me.number))
            memory[name][...] = received.reshape(memory[name].shape)


def _received(exchange: Exchange, parts: list[Array], place: int) -> Array:
    """What the rank at a place of its group gets of what its members give, in order."""
    if exchange.kind == "collective-permute":
        return parts[0]
    flat = [part.reshape(-1) for part in parts]
    if exchange.kind == "all-gather":
        return np.concatenate(flat)
    if exchange.kind == "all-to-all":
        return np.concatenate([np.split(part, len(parts))[place] for part in flat])
    total = widen(flat[0])
    for part in flat[1:]:
        total = MONOIDS[exchange.function](total, widen(part))
    total = narrow(total, from_numpy(parts[0].dtype))
    return total if exchange.kind == "all-reduce" else np.split(total, len(parts))[place]


def _select_arm(branch: Branch, memory: Memory) -> tuple[Statement, ...]:
    number = int(memory[branch.selector].item())
    return branch.arms[number if 0 <= number < len(branch.arms) else -1]


def run_nest(nest: Nest, memory: Memory) -> None:
    """Execute one nest, in pieces when it is large."""
    for ranges in _boxes(nest.parallel_axes, MAXIMUM_ELEMENTS, nest):
        point = _PointSpace(ranges, memory)
        if nest.reduction is None:
            value = point.value(nest.body)
        else:
            reduced = _reduce(nest, nest.reduction, ranges, memory)
            value = point.value(nest.finish, reduced) if nest.finish else reduced
        point.store(nest.target, value)


def _boxes(axes: Sequence[Any], most: int, nest: Nest) -> Iterator[dict[str, range]]:
    """Boxes of axis ranges that partition the axes, each of about `most` elements of work."""
    count = math.prod(axis.extent for axis in axes)
    inside = math.prod(axis.extent for axis in nest.reduced_axes)
    is_product = nest.reduction is not None and _factors(nest) is not None
    limit = max(1, most // (1 if is_product else max(1, min(inside, most))))
    steps, whole = {}, ordered_axes(nest)
    for axis in axes:
        is_whole = count <= limit or axis.name in whole
        steps[axis.name] = axis.extent if is_whole else max(1, axis.extent * limit // count)
        count = count // max(1, axis.extent) * steps[axis.name]
    choices = [
        [range(at, min(at + steps[a.name], a.extent)) for at in range(0, a.extent, steps[a.name])]
        for a in axes
    ]
    for chosen in product(*choices):
        yield {axis.name: part for axis, part in zip(axes, chosen, strict=True)}


@dataclass(frozen=True)
class _PointSpace:
    """The points of a box of axis ranges; arrays have one dimension per axis (1 if constant)."""

    ranges: Mapping[str, range]
    memory: Memory

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.ranges.values())

    def value(self, expression: Expr, accumulator: Array | None = None) -> Array:
        """The expression at every point; parts that are one object are computed once."""
        return self._value(expression, accumulator, {})

    def _value(self, expression: Expr, accumulator: Array | None, done: dict[int, Array]) -> Array:
        found = done.get(id(expression))
        if found is None:
            found = done[id(expression)] = self._compute(expression, accumulator, done)
        return found

    def _compute(
        self, expression: Expr, accumulator: Array | None, done: dict[int, Array]
    ) -> Array:
        if isinstance(expression, Load):
            return self.load(expression)
        if isinstance(expression, Literal):
            value = np.asarray(expression.value).astype(expression.dtype.numpy)
            return value.reshape((1,) * len(self.ranges))
        if isinstance(expression, Index):
            counted = self.positions(expression.expression)
            return scalar.convert(counted, expression.dtype)
        if isinstance(expression, Accumulator):
            assert accumulator is not None
            return accumulator
        args = [self._value(argument, accumulator, done) for argument in expression.args]
        if isinstance(expression, Scan):
            factor, term = args
            along = list(self.ranges).index(expression.axis)
            monoid, extent = SCANS[expression.function], self.shape[along]
            return run_scan(monoid, factor, term, along, extent)
        return apply(expression, args)

    def positions(self, expression: Affine) -> Array:
        """The affine expression at every point."""
        total = np.full((1,) * len(self.ranges), expression.constant, np.int64)
        for dimension, (axis, values) in enumerate(self.ranges.items()):
            coefficient = expression.coefficient(axis)
            if coefficient:
                along = [1] * len(self.ranges)
                along[dimension] = len(values)
                line = np.arange(values.start, values.stop, dtype=np.int64)
                total = total + (coefficient * line).reshape(along)
        return total

    def load(self, load: Load) -> Array:
        """The loaded value at every point; InternalError when it leaves the buffer."""
        found = self._load(load)
        return widen(narrow(found, TF32)) if load.dtype is TF32 else found

    def _load(self, load: Load) -> Array:
        array = self.memory[load.buffer]
        if not load.guards and not load.dynamic:
            return self._view(array, load.index, load.buffer)
        places = [self.positions(part) for part in load.index]
        for offset in load.dynamic:
            places[offset.dimension] = places[offset.dimension] + self.offset(offset)[0]
        holds: Any = True
        for guard in load.guards:
            at = self.positions(guard.expression)
            holds = holds & (at >= 0) & (at < guard.extent)
        for d, place in enumerate(places):
            inside = (place >= 0) & (place < array.shape[d])
            if not np.all(inside | ~np.asarray(holds)):
                raise InternalError(f"a load leaves dimension {d} of {load.buffer}")
            places[d] = np.where(inside, place, 0)
        found = array[tuple(places)] if places else array.reshape((1,) * len(self.ranges))
        if holds is True:
            return found
        fill = np.asarray(load.fill).astype(array.dtype)
        return np.where(holds, found, fill)

    def _view(self, array: Array, index: tuple[Affine, ...], name: str) -> Array:
        """A strided view of an array at an affine index."""
        extents = {axis: len(values) for axis, values in self.ranges.items()}
        starts = {axis: Affine.of(axis) + values.start for axis, values in self.ranges.items()}
        strides = dict.fromkeys(self.ranges, 0)
        offset = 0
        for d, (part, step) in enumerate(zip(index, strides_of(array.shape), strict=True)):
            moved = part.substitute(starts)
            low, high = moved.bounds(extents)
            if low < 0 or high >= array.shape[d]:
                raise InternalError(f"index {part} leaves dimension {d} of {name}{array.shape}")
            offset += moved.constant * step
            for axis, coefficient in part.terms:
                strides[axis] += coefficient * step
        bytes_ = array.dtype.itemsize
        shape = [extents[axis] if strides[axis] else 1 for axis in self.ranges]
        steps = [stride * bytes_ for stride in strides.values()]
        # NumPy cannot stride 8-bit floats, but what has no type.
        elements = array.reshape(-1).view(f"V{bytes_}")[offset:]
        return as_strided(elements, shape, steps).view(array.dtype)

    def offset(self, offset: Dynamic) -> tuple[Array, Array]:
        """A run-time offset, and whether it is inside its range."""
        value = self.load(offset.load).astype(np.int64)
        inside = (value >= 0) & (value <= offset.limit)
        return np.clip(value, 0, offset.limit), inside | offset.clamps

    def store(self, target: Store, value: Array) -> None:
        """Write the value at every point."""
        array = self.memory[target.buffer]
        if not target.dynamic and not target.combine:
            view = self._view(array, target.index, target.buffer)
            if view.shape != np.broadcast_shapes(view.shape, value.shape):
                raise InternalError(f"a store to {target.buffer} writes an element twice")
            view[...] = value
            return
        flat = self.positions(Affine())
        holds: Any = True
        for d, part in enumerate(target.index):
            place = self.positions(part)
            for offset in target.dynamic:
                if offset.dimension == d:
                    at, inside = self.offset(offset)
                    place, holds = place + at, holds & inside
            if np.any(holds & ((place < 0) | (place >= array.shape[d]))):
                raise InternalError(f"a store leaves dimension {d} of {target.buffer}")
            flat = flat * array.shape[d] + place
        kept = np.broadcast_to(holds, self.shape)
        places = np.broadcast_to(flat, self.shape)[kept]
        values = np.broadcast_to(value, self.shape)[kept]
        _write(array.reshape(-1), places, values, target.combine)


def _write(flat: Array, places: Array, values: Array, combine: str) -> None:
    """Overwrite or combine in order; places may repeat."""
    if not combine:
        flat[places] = values
        return
    wide = flat.astype(scalar.working_dtype(flat.dtype))
    MONOIDS[combine].at(wide, places, values.astype(wide.dtype))
    flat[...] = scalar.narrow(wide, flat.dtype)


def apply(expression: Apply, args: Sequence[Array]) -> Array:
    """A scalar function on arrays; operands of another dtype than the result's are converted."""
    name, dtype = expression.function, expression.dtype
    if name == "convert":
        return scalar.convert(args[0], dtype)
    if name == "bitcast":
        return np.ascontiguousarray(args[0]).reshape(args[0].shape).view(dtype.numpy)
    if name == "reduce_precision":
        exponent, mantissa = (int(arg.item()) for arg in args[1:])
        operand = Parameter(0, TensorType(dtype))
        return ops.ReducePrecision(operand, exponent, mantissa).compute(args[0])
    function = scalar.FUNCTIONS[name]
    if function.result == "same":
        first = 1 if name == "select" else 0
        args = [*args[:first], *(scalar.convert(arg, dtype) for arg in args[first:])]
    if name == "select":
        args = np.broadcast_arrays(*args)
    return np.asarray(function.compute(*args))


def _reduce(nest: Nest, reduction: Reduction, ranges: Mapping[str, range], memory: Memory) -> Array:
    """The accumulator at every parallel point of a box."""
    factors = _factors(nest)
    if factors is not None:
        return _contract(nest, factors, ranges, memory)
    if reduction.rank:
        return _places(nest, reduction, ranges, memory)
    combine, dtype = MONOIDS[reduction.function], reduction.dtype
    shape = tuple(len(values) for values in ranges.values())
    total = np.broadcast_to(identity(reduction.function, dtype), shape)
    outer = math.prod(shape)
    reduced = tuple(range(len(ranges), len(ranges) + len(nest.reduced_axes)))
    for inner in _reduced_pieces(nest, max(1, MAXIMUM_ELEMENTS // max(1, outer))):
        points = _PointSpace({**ranges, **inner}, memory)
        value = scalar.convert(points.value(nest.body), dtype)
        value = np.broadcast_to(value, points.shape)
        total = combine(total, combine.reduce(value, axis=reduced, dtype=dtype.numpy))
    return np.asarray(total)


def _places(nest: Nest, reduction: Reduction, ranges: Mapping[str, range], memory: Memory) -> Array:
    """Where the greatest elements are at every parallel point of a box, of which ranks are one."""
    swept = {axis.name: range(axis.extent) for axis in nest.reduced_axes}
    ranks = list(ranges).index(reduction.rank)
    points = _PointSpace({**ranges, reduction.rank: range(1), **swept}, memory)
    elements = np.broadcast_to(points.value(nest.body), points.shape)
    found = ops.places_of_greatest(elements, len(ranges[reduction.rank]))
    return np.moveaxis(found, -1, ranks)[..., 0]


def _reduced_pieces(nest: Nest, most: int) -> Iterator[dict[str, range]]:
    inner = Nest(nest.name, nest.reduced_axes, nest.body, nest.target)
    return _boxes(nest.reduced_axes, most, inner)


def _factors(nest: Nest) -> tuple[Load, Load] | None:
    """The two loads of a sum of products; None for any other nest."""
    body, reduction = nest.body, nest.reduction
    if not (isinstance(body, Apply) and body.function == "multiply" and reduction):
        return None
    left, right = body.args
    if reduction.function != "add" or body.dtype is not reduction.dtype:
        return None
    if not (isinstance(left, Load) and isinstance(right, Load)):
        return None
    return left, right


def _contract(
    nest: Nest, factors: tuple[Load, Load], ranges: Mapping[str, range], memory: Memory
) -> Array:
    """The sum of products as a batched matrix multiplication."""
    assert nest.reduction is not None
    dtype = nest.reduction.dtype
    full = {axis.name: range(axis.extent) for axis in nest.reduced_axes}
    points = _PointSpace({**ranges, **full}, memory)
    left, right = (points.load(load) for load in factors)
    rank, count = len(ranges), len(points.ranges)
    extents = points.shape
    groups: dict[str, list[int]] = {"b": [], "m": [], "n": [], "k": []}
    for d in range(count):
        in_left, in_right = left.shape[d] > 1, right.shape[d] > 1
        kind = "b" if in_left and in_right else "n" if in_right else "m"
        groups["k" if d >= rank else kind].append(d)
    a = _matrix(left, [groups["b"], groups["m"], groups["k"]], extents, dtype)
    b = _matrix(right, [groups["b"], groups["k"], groups["n"]], extents, dtype)
    total = np.matmul(a, b)
    order = groups["b"] + groups["m"] + groups["n"]
    shaped = total.reshape([extents[d] for d in order])
    return np.transpose(shaped, np.argsort(order)) if order else shaped


def _matrix(array: Array, groups: list[list[int]], extents: Sequence[int], dtype: DType) -> Array:
    """The array with each group of dimensions broadcast to its extents and merged into one."""
    order = [d for group in groups for d in group]
    rest = [d for d in range(array.ndim) if d not in order]
    stretched = array.reshape(array.shape) if not order else array
    stretched = np.transpose(stretched, order + rest)
    shape = [extents[d] for d in order]
    stretched = np.broadcast_to(stretched.reshape(stretched.shape[: len(order)]), shape)
    merged = [math.prod(extents[d] for d in group) for group in groups]
    return scalar.convert(stretched.reshape(merged), dtype)

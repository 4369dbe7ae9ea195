"""Arrays that record what is computed with them: the declared NumPy meaning as an expression.

An instruction's `compute` is called once with these in place of its operands. What it asks of
NumPy becomes terms: loads of operands, constants, ufuncs, casts, changes of shape, reductions,
matrix products. Whatever else it asks (the value of an element, an index that depends on data)
raises NotTraceable, and the instruction keeps its NumPy meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

Shape = tuple[int, ...]


class NotTraceable(Exception):
    """The meaning cannot be recorded as an expression of arrays; the message says what stops it."""


@dataclass(frozen=True, eq=False)
class ArrayTerm:
    """One array of the expression, of this shape and host dtype."""

    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class HeldArray:
    """An array that the meaning made by itself, in row-major order."""

    array: np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class LoadTerm(ArrayTerm):
    """The elements of an operand as its pattern lists them; steps in bytes for each dimension."""

    operand: int | HeldArray
    steps: Shape
    rows: RowIndex | None = None


@dataclass(frozen=True, eq=False)
class RowIndex:
    """Chooses rows of an operand, of `step` bytes: position p is in row `index`[p]."""

    index: ArrayTerm
    step: int


@dataclass(frozen=True, eq=False)
class ConstantTerm(ArrayTerm):
    """One value."""

    value: Any


@dataclass(frozen=True, eq=False)
class UfuncTerm(ArrayTerm):
    """A ufunc on arguments that already have the dtypes of its loop; they broadcast."""

    function: str
    arguments: tuple[ArrayTerm, ...]


@dataclass(frozen=True, eq=False)
class CastTerm(ArrayTerm):
    """`argument.astype(dtype)`."""

    argument: ArrayTerm


@dataclass(frozen=True, eq=False)
class ReshapeTerm(ArrayTerm):
    """The elements of the argument in row-major order, in another shape."""

    argument: ArrayTerm


@dataclass(frozen=True, eq=False)
class TransposeTerm(ArrayTerm):
    """Axis i is axis `axes[i]` of the argument."""

    argument: ArrayTerm
    axes: Shape


@dataclass(frozen=True, eq=False)
class ReduceTerm(ArrayTerm):
    """A ufunc along axes of the argument, which are not in the result."""

    function: str
    argument: ArrayTerm
    axes: Shape


@dataclass(frozen=True, eq=False)
class ProductTerm(ArrayTerm):
    """The matrix product left @ right, [m, k] @ [k, n]."""

    left: ArrayTerm
    right: ArrayTerm


@dataclass(frozen=True, eq=False)
class StateTerm(ArrayTerm):
    """What a scan holds before an element."""


@dataclass(frozen=True, eq=False)
class ScanTerm(ArrayTerm):
    """What a state [P, F] is after each element of the last axis; it begins with `initial` [P, 1].

    `update` is the state after an element, by `state`, that before it, and elements there.
    """

    initial: ArrayTerm
    state: StateTerm
    update: ArrayTerm


@dataclass(frozen=True, eq=False)
class RowFunctionTerm(ArrayTerm):
    """A function of arrays [P, F] that computes row by row, with what else it was given."""

    meaning: Callable[..., Any]
    arguments: tuple[ArrayTerm, ...]
    options: tuple[Any, ...]


MOST_DECISIONS = 4  # a meaning that asks more often may be in a loop that has no other end
_DECISIONS: ContextVar[list[ArrayTerm] | None] = ContextVar("decisions", default=None)


@contextmanager
def recorded_decisions() -> Iterator[list[ArrayTerm]]:
    """What a meaning decides by, each a bool: the trace holds where all of them are true."""
    found: list[ArrayTerm] = []
    token = _DECISIONS.set(found)
    try:
        yield found
    finally:
        _DECISIONS.reset(token)


def parts_of(term: ArrayTerm) -> list[ArrayTerm]:
    """The terms of which an expression is a function."""
    one = getattr(term, "argument", None)
    return [*getattr(term, "arguments", ()), *([] if one is None else [one])]


def with_parts(term: ArrayTerm, function: Callable[[ArrayTerm], ArrayTerm]) -> ArrayTerm:
    """The term with what a function makes of its `parts_of`; itself where these stay the same."""
    changed: dict[str, Any] = {}
    if arguments := getattr(term, "arguments", ()):
        changed["arguments"] = tuple(map(function, arguments))
    if (one := getattr(term, "argument", None)) is not None:
        changed["argument"] = function(one)
    if all(getattr(term, name) == value for name, value in changed.items()):
        return term
    return replace(term, **changed)


class TracedArray(NDArrayOperatorsMixin):
    """Stands for an array in a call of `compute`; records into `term`."""

    __array_priority__ = 1000

    def __init__(self, term: ArrayTerm) -> None:
        self.term = term

    @property
    def shape(self) -> Shape:
        return self.term.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.term.dtype

    @property
    def ndim(self) -> int:
        return len(self.term.shape)

    @property
    def size(self) -> int:
        return math.prod(self.term.shape)

    @property
    def T(self) -> TracedArray:  # noqa: N802
        return self.transpose(tuple(reversed(range(self.ndim))))

    def __len__(self) -> int:
        return self.term.shape[0]

    def __bool__(self) -> bool:
        """True: the trace is what the meaning does then, and this is among its decisions."""
        decisions = _DECISIONS.get()
        if decisions is None or self.size != 1 or len(decisions) == MOST_DECISIONS:
            raise NotTraceable("a decision that depends on data")
        decision = cast(self.term, np.dtype(np.bool_))
        if not any(each is decision for each in decisions):
            decisions.append(decision)
        return True

    def all(self, axis: Any = None) -> TracedArray:
        """Whether all elements are true, along an axis or altogether."""
        if axis is not None:
            return TracedArray(_reduction(np.logical_and, self, axis=axis))
        return TracedArray(self._whether_all)

    @cached_property
    def _whether_all(self) -> ArrayTerm:
        """One term, so that to decide by it twice is one decision."""
        return _reduction(np.logical_and, self, axis=tuple(range(self.ndim)))

    def any(self, axis: Any = None) -> TracedArray:
        """Whether an element is true, along an axis or altogether."""
        axes = tuple(range(self.ndim)) if axis is None else axis
        return TracedArray(_reduction(np.logical_or, self, axis=axes))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise NotTraceable("elements by themselves")

    def __getitem__(self, key: Any) -> TracedArray:
        """Rows of an operand that another array's integers choose."""
        if not isinstance(key, TracedArray):
            raise NotTraceable("an index into an operand")
        return TracedArray(self.chosen_rows(key))

    def chosen_rows(self, index: TracedArray) -> LoadTerm:
        """The rows of an operand, one for each element of a list of integers."""
        term = self.term
        if not isinstance(term, LoadTerm) or term.rows or index.ndim != 1 or not term.shape:
            raise NotTraceable("an index into an operand")
        if index.dtype.kind not in "iu":
            raise NotTraceable(f"an index of {index.dtype}")
        shape, steps = (len(index), *term.shape[1:]), (0, *term.steps[1:])
        rows = RowIndex(index.term, term.steps[0])
        return LoadTerm(shape, term.dtype, term.operand, steps, rows)

    def __iter__(self) -> Any:
        raise NotTraceable("elements one by one")

    def astype(self, dtype: Any, copy: bool = True) -> TracedArray:
        """The values in another dtype."""
        return TracedArray(cast(self.term, np.dtype(dtype)))

    def reshape(self, *shape: Any) -> TracedArray:
        """The elements in another shape; one extent may be -1."""
        wanted = tuple(shape[0]) if len(shape) == 1 and not np.isscalar(shape[0]) else shape
        extents = [int(extent) for extent in wanted]
        if -1 in extents:
            known = -math.prod(extents)
            extents[extents.index(-1)] = self.size // max(1, known)
        found = tuple(extents)
        return (
            self if found == self.shape else TracedArray(ReshapeTerm(found, self.dtype, self.term))
        )

    def transpose(self, *axes: Any) -> TracedArray:
        """The axes in another order."""
        order = tuple(axes[0]) if len(axes) == 1 else axes
        shape = tuple(self.shape[axis] for axis in order)
        return TracedArray(TransposeTerm(shape, self.dtype, self.term, order))

    def scanned(self, step: Callable[..., Any], initial: Any, *data: Any) -> TracedArray:
        """What a step makes of a state and each column in turn; see `numerics.scanned`."""
        arrays = [TracedArray(term_of(each)) for each in data]
        if self.ndim != 2 or any(each.shape != self.shape for each in arrays):
            raise NotTraceable("a scan of other than columns")
        first = TracedArray(cast(term_of(initial), self.dtype))
        if first.size not in (1, len(self)):
            raise NotTraceable("a scan that begins with other than a number for each row")
        state = StateTerm(self.shape, self.dtype)
        update = cast(term_of(step(TracedArray(state), *arrays)), self.dtype)
        begin = first.reshape(first.size, 1).term
        return TracedArray(ScanTerm(self.shape, self.dtype, begin, state, update))

    def row_function(self, function: Callable[..., Any], arguments: Sequence[Any]) -> TracedArray:
        """A call of a function that computes row by row; see `numerics.of_rows`."""
        terms = [each.term for each in arguments if isinstance(each, TracedArray)]
        options = tuple(arguments[len(terms) :])
        if any(len(t.shape) != 2 or t.shape[0] != len(self) for t in terms):
            raise NotTraceable("a function of rows of other than matrices")
        row = function(*(np.zeros((1, t.shape[1]), t.dtype) for t in terms), *options)
        shape = (len(self), *row.shape[1:])
        return TracedArray(RowFunctionTerm(shape, row.dtype, function, tuple(terms), options))

    def __matmul__(self, other: Any) -> TracedArray:
        left, right = self.term, term_of(other)
        is_matrix = len(left.shape) == len(right.shape) == 2
        if not is_matrix or not left.dtype == right.dtype == np.float32:
            raise NotTraceable("a product that is not of float32 matrices")
        return TracedArray(ProductTerm((left.shape[0], right.shape[1]), left.dtype, left, right))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "reduce":
            return TracedArray(_reduction(ufunc, inputs[0], **options))
        if ufunc is np.matmul:
            raise NotTraceable("a product with a constant")
        if method != "__call__" or options or ufunc.nout != 1:
            raise NotTraceable(f"{ufunc.__name__}.{method}")
        return TracedArray(applied(ufunc, inputs))

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function not in _FUNCTIONS or options:
            raise NotTraceable(f"numpy.{function.__name__}")
        return TracedArray(_FUNCTIONS[function](*arguments))


class TracedView(TracedArray):
    """An operand of a meaning that writes by itself: `written` has what it wrote, and where."""

    def __init__(self, term: LoadTerm) -> None:
        super().__init__(term)
        self.written: list[tuple[LoadTerm, ArrayTerm]] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        if key is not Ellipsis:
            raise NotTraceable("a part of an operand is written")
        assert isinstance(self.term, LoadTerm)
        self.written.append((self.term, term_of(value)))

    def put_rows(self, index: TracedArray, values: TracedArray) -> None:
        """Write rows that a list of integers chooses, in its order."""
        self.written.append((self.chosen_rows(index), term_of(values)))


def term_of(value: Any) -> ArrayTerm:
    """The term of what a meaning passes to NumPy: traced arrays, numbers, arrays of its own."""
    if isinstance(value, TracedArray):
        return value.term
    if isinstance(value, bool | int | float):
        raise NotTraceable("a Python number without a dtype")
    array = np.asarray(value)
    if array.dtype.kind not in "biufV" or array.dtype.names or array.size == 0:
        raise NotTraceable("a constant array without numbers")
    if (array != array.flat[0]).any():
        kept = np.ascontiguousarray(array)
        return LoadTerm(kept.shape, kept.dtype, HeldArray(kept), kept.strides)
    # an array of one value has its extents for broadcasting, and that value everywhere
    scalar = ConstantTerm((), array.dtype, array.flat[0])
    return scalar if array.ndim == 0 else _broadcast(scalar, array.shape)


def cast(term: ArrayTerm, dtype: np.dtype[Any]) -> ArrayTerm:
    """The term in another dtype; the term itself where it has it already."""
    if term.dtype == dtype:
        return term
    if isinstance(term, ConstantTerm):
        return ConstantTerm((), dtype, np.asarray(term.value).astype(dtype)[()])
    return CastTerm(term.shape, dtype, term)


def applied(ufunc: Any, inputs: Sequence[Any]) -> ArrayTerm:
    """A ufunc on inputs, in the dtypes that NumPy's promotion gives."""
    weak = {bool: bool, int: int, float: float}
    given = [weak.get(type(each)) or term_of(each).dtype for each in inputs]
    try:
        *loop, result = ufunc.resolve_dtypes((*given, None))
    except TypeError as problem:
        raise NotTraceable(f"{ufunc.__name__} of {', '.join(map(str, given))}") from problem
    terms = [
        ConstantTerm((), dtype, dtype.type(each))
        if type(each) in weak
        else cast(term_of(each), dtype)
        for each, dtype in zip(inputs, loop, strict=True)
    ]
    shape = np.broadcast_shapes(*(term.shape for term in terms))
    return UfuncTerm(shape, result, ufunc.__name__, tuple(terms))


def _selection(condition: Any, chosen: Any, other: Any) -> ArrayTerm:
    """`np.where`: the condition as bool, the others in their common dtype."""
    this, that = (_typed(each, partner) for each, partner in ((chosen, other), (other, chosen)))
    dtype = np.result_type(this.dtype, that.dtype)
    test = term_of(condition)
    if test.dtype != np.bool_:
        test = applied(np.not_equal, (condition, test.dtype.type(0)))
    terms = (test, cast(this, dtype), cast(that, dtype))
    return UfuncTerm(np.broadcast_shapes(*(n.shape for n in terms)), dtype, "where", terms)


def _typed(value: Any, partner: Any) -> ArrayTerm:
    """The term of a value; a Python number takes the dtype of what it is beside."""
    if type(value) in (bool, int, float):
        dtype = term_of(partner).dtype
        return ConstantTerm((), dtype, dtype.type(value))
    return term_of(value)


def _clip(array: Any, low: Any, high: Any) -> ArrayTerm:
    return applied(np.minimum, (TracedArray(applied(np.maximum, (array, low))), high))


def _broadcast_to(array: Any, shape: Any) -> ArrayTerm:
    return _broadcast(term_of(array), tuple(shape))


def _broadcast(term: ArrayTerm, shape: Shape) -> ArrayTerm:
    return UfuncTerm(shape, term.dtype, "positive", (term,))


def _reduction(ufunc: Any, array: Any, *, axis: Any = 0, **options: Any) -> ArrayTerm:
    if any(value is not None for value in options.values()):
        raise NotTraceable(f"{ufunc.__name__}.reduce with {', '.join(options)}")
    term = term_of(array)
    axes = tuple(a % len(term.shape) for a in ((axis,) if isinstance(axis, int) else axis))
    if not term.dtype == ufunc.resolve_dtypes((term.dtype, term.dtype, None))[2]:
        raise NotTraceable(f"{ufunc.__name__}.reduce of {term.dtype}")
    if term.dtype.kind in "iub" and ufunc.__name__ in ("add", "multiply"):
        raise NotTraceable("a sum of integers, which NumPy widens")
    shape = tuple(extent for i, extent in enumerate(term.shape) if i not in axes)
    return ReduceTerm(shape, term.dtype, ufunc.__name__, term, axes)


_FUNCTIONS: dict[Any, Callable[..., ArrayTerm]] = {
    np.where: _selection,
    np.clip: _clip,
    np.broadcast_to: _broadcast_to,
}

"""Functions of nl that reduce along free dimensions, and functions built on them."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Callable
from typing import Any

from glia.isa.instructions.vector import Memset, Reciprocal, TensorReduce
from glia.nki.api.elementwise import activate, binary_step
from glia.nki.beta1.api.elementwise import scalar_step
from glia.nki.beta1.api.issue import (
    broadcast_view,
    copy_tile,
    defer,
    ensure_in_sbuf,
    operand,
    temporary_tile,
)
from glia.nki.beta1.errors import UnsupportedHere
from glia.nki.beta1.run.frame import Frame, require_frame
from glia.nki.beta1.tensors.buffers import sbuf
from glia.nki.beta1.tensors.dtypes import to_dtype_name
from glia.nki.beta1.tensors.index import Box
from glia.nki.beta1.tensors.masked_part import MaskedPart, boxed_part, masked_part
from glia.nki.beta1.tensors.storage import Storage
from glia.nki.beta1.tensors.tensor import Tensor
from glia.nki.issue.instruction import issue
from glia.nki.names.operators import names_operator, operator_name
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor

Axis = int | tuple[int, ...] | list[int]
IDENTITIES = {
    "add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -3.4028234663852886e38,
    "minimum": 3.4028234663852886e38, "logical_and": 1.0, "logical_or": 0.0, "bitwise_or": 0,
    "bitwise_xor": 0,
}  # fmt: skip


def free_axes(axis: Axis, rank: int) -> tuple[int, ...]:
    """The reduced axes in order; UnsupportedHere for axis 0 and axes out of range."""
    given = axis if isinstance(axis, tuple | list) else (axis,)
    found = sorted({int(each) + (rank if each < 0 else 0) for each in given})
    if not found or not 0 < found[0] <= found[-1] < rank:
        raise UnsupportedHere(
            what=f"a reduction over axis {axis!r} of {rank}",
            why="free axes are reduced; over partitions use nki.isa.tensor_partition_reduce",
            loc=caller(),
        )
    return tuple(found)


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The shape of a reduced tile, which keeps at least one free dimension."""
    if keepdims:
        return tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    kept = tuple(n for axis, n in enumerate(shape) if axis not in axes)
    return kept if len(kept) > 1 else (*kept, 1)


def reduce_into(
    frame: Frame, dst: NkiTensor, x: NkiTensor, op: str, axes: tuple[int, ...], negate: bool = False
) -> None:
    """dst = x reduced along `axes`, which are moved innermost."""
    kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
    view = x.permute((*kept, *axes))
    shape = tuple(x.shape[axis] for axis in kept)
    place = dst.reshape(shape if len(shape) > 1 else (*shape, 1))
    fields = {"dst": place, "data": view, "op": op, "axes": len(axes), "negate": negate}
    issue(frame.session, "tensor_reduce", TensorReduce, fields)


def reduction(
    function: str, op: str, x: Any, axis: Axis, dtype: Any, mask: Any, keepdims: bool,
    negate: bool = False,
) -> Tensor:  # fmt: skip
    """A tile reduced along free axes; elements that the mask leaves out do not count."""
    frame = require_frame(function)
    data = operand(function, "x", x)
    name = x.dtype_name if dtype is None else to_dtype_name(dtype)
    axes = free_axes(axis, data.ndim)
    part = masked_part(mask, data.shape)
    if part.rest is not None:
        data = _fill_with_identity(frame, data, mask, op)
    box = part.box if part.rest is None else None
    places = [axis for axis in range(data.ndim) if keepdims or axis not in axes]

    def write(dst: NkiTensor, _: Any) -> None:
        place, own = dst, data
        for axis, (first, end) in enumerate(box or ()):
            own = own.slice(axis, first, end)
            if axis in places and axis not in axes:
                place = place.slice(places.index(axis), first, end)
        reduce_into(frame, place, own, op, axes, negate)

    shape = reduced_shape(data.shape, axes, keepdims)
    empty = False if part.is_empty else None
    return defer(
        function, shape, name, write, mask=empty, partial=_reduced_part(box, axes, places, shape)
    )


def _reduced_part(
    box: Box | None, axes: tuple[int, ...], places: list[int], shape: tuple[int, ...]
) -> MaskedPart:
    """What the reduction of a box writes: `places` are the operand's axes that it keeps."""
    if box is None:
        return MaskedPart(shape)
    kept = [(0, 1) if axis in axes else box[axis] for axis in places]
    return MaskedPart(shape, (*kept, *[(0, 1)] * (len(shape) - len(kept))))


def _fill_with_identity(frame: Frame, data: NkiTensor, mask: Any, op: str) -> NkiTensor:
    """A copy of the data with the identity of `op` where the mask does not hold."""
    tile = defer(
        "nl.sum", data.shape, data.dtype, lambda dst, cut: copy_tile(frame, dst, cut(data))
    )
    filled = Tensor.of_storage(tile.storage)
    whole = filled.read_view()
    issue(frame.session, "memset", Memset, {"dst": whole, "value": IDENTITIES[op]})
    filled[...] = defer(
        "nl.sum",
        data.shape,
        data.dtype,
        lambda dst, cut: copy_tile(frame, dst, cut(data)),
        mask=mask,
    )
    return filled.read_view()


def _reduction_function(name: str, op: str, text: str) -> Callable[..., Tensor]:
    def function(
        x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False,
    ) -> Tensor:  # fmt: skip
        return reduction(f"nl.{name}", op, x, axis, dtype, mask, keepdims)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{text} along free axes; as an operator, {op}."
    return names_operator(op)(function)


sum = _reduction_function("sum", "add", "The sum")
max = _reduction_function("max", "maximum", "The greatest")
min = _reduction_function("min", "minimum", "The least")
prod = _reduction_function("prod", "multiply", "The product")


@names_operator("logical_and")
def all(x: Any, axis: Axis, *, dtype: Any = bool, mask: Any = None) -> Tensor:
    """Whether no element is 0 along free axes."""
    return reduction("nl.all", "logical_and", x, axis, dtype, mask, False)


def mean(
    x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False,
) -> Tensor:  # fmt: skip
    """The mean along free axes, computed in float32."""
    frame = require_frame("nl.mean")
    axes = free_axes(axis, x.ndim)
    box = boxed_part("nl.mean", mask, x.shape).box
    ends = box or tuple((0, count) for count in x.shape)
    factor = 1.0 / math.prod(end - first for first, end in (ends[axis] for axis in axes))
    total = reduction("nl.mean", "add", x, axis, "float32", mask, keepdims).read_view()
    name = x.dtype_name if dtype is None else to_dtype_name(dtype)
    places = [axis for axis in range(x.ndim) if keepdims or axis not in axes]
    part = _reduced_part(box, axes, places, total.shape)

    def write(dst: NkiTensor, _: Any) -> None:
        scalar_step(frame, part.cut(dst), part.cut(total), "multiply", factor, False)

    return defer("nl.mean", total.shape, name, write, partial=part)


def var(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """The mean square distance from the mean along free axes."""
    frame = require_frame("nl.var")
    data, axes = operand("var", "x", x), free_axes(axis, x.ndim)
    middle = mean(x, axis, dtype="float32", mask=mask, keepdims=True).read_view()
    distance = temporary_tile(frame, data.shape, "float32")
    box = boxed_part("nl.var", mask, x.shape).box
    rows = MaskedPart(x.shape, (box[0], *((0, count) for count in x.shape[1:])) if box else None)
    place = rows.cut(distance)
    _combine_into(frame, place, rows.cut(data), rows.cut(middle), "subtract")
    activate(place, place, "square")
    name = x.dtype_name if dtype is None else to_dtype_name(dtype)
    held = Tensor.of_storage(Storage.wrap(frame, distance, "distance", sbuf))
    return mean(held, axes, dtype=name, mask=mask)


def _combine_with_column(frame: Frame, data: NkiTensor, column: NkiTensor, op: str) -> NkiTensor:
    """data op column in float32."""
    tile = temporary_tile(frame, data.shape, "float32")
    _combine_into(frame, tile, data, column, op)
    return tile


def _combine_into(
    frame: Frame, dst: NkiTensor, data: NkiTensor, column: NkiTensor, op: str
) -> None:
    if column.size == column.shape[0] and data.stored.is_float:
        scalar_step(frame, dst, data, op, column.reshape((column.shape[0], 1)), False)
    else:
        wide = broadcast_view(column, data.shape, frame)
        binary_step(dst, ensure_in_sbuf(frame, data), wide, op)


def softmax(
    x: Any, axis: Axis, *, dtype: Any = None, compute_dtype: Any = None, mask: Any = None,
) -> Tensor:  # fmt: skip
    """exp(x - greatest) over its sum along free axes."""
    frame = require_frame("nl.softmax")
    data = operand("softmax", "x", x)
    boxed_part("nl.softmax", mask, data.shape)
    axes = free_axes(axis, data.ndim)
    name = x.dtype_name if dtype is None else to_dtype_name(dtype)

    def write(dst: NkiTensor, cut: Any) -> None:
        own = cut(data)
        shape = reduced_shape(own.shape, axes, True)
        most, total = (temporary_tile(frame, shape, "float32") for _ in range(2))
        reduce_into(frame, most, own, "maximum", axes)
        powers = _combine_with_column(frame, own, most, "subtract")
        activate(powers, powers, "exp")
        reduce_into(frame, total, powers, "add", axes)
        issue(frame.session, "reciprocal", Reciprocal, {"dst": total, "data": total})
        binary_step(dst, powers, broadcast_view(total, own.shape, frame), "multiply")

    return defer("nl.softmax", data.shape, name, write, mask=mask)


def rms_norm(
    x: Any, w: Any, axis: Axis, n: int, epsilon: float = 1e-6, *, dtype: Any = None,
    compute_dtype: Any = None, mask: Any = None,
) -> Tensor:  # fmt: skip
    """x over the root of (its squares' sum / n + epsilon) along free axes, times w."""
    frame = require_frame("nl.rms_norm")
    data, weight = operand("rms_norm", "x", x), operand("rms_norm", "w", w)
    boxed_part("nl.rms_norm", mask, data.shape)
    axes = free_axes(axis, data.ndim)
    name = x.dtype_name if dtype is None else to_dtype_name(dtype)

    def write(dst: NkiTensor, cut: Any) -> None:
        own = cut(data)
        squares = temporary_tile(frame, own.shape, "float32")
        activate(squares, own, "square")
        total = temporary_tile(frame, reduced_shape(own.shape, axes, True), "float32")
        reduce_into(frame, total, squares, "add", axes)
        scalar_step(frame, total, total, "multiply", 1.0 / n, False)
        scalar_step(frame, total, total, "add", epsilon, False)
        activate(total, total, "rsqrt")
        normal = _combine_with_column(frame, own, total, "multiply")
        binary_step(dst, normal, broadcast_view(cut(weight), own.shape, frame), "multiply")

    return defer("nl.rms_norm", data.shape, name, write, mask=mask)


class LoopReduction:
    """The result of nl.loop_reduce: the first iteration assigns to the slot, others combine."""

    def __init__(self, value: Tensor, op: str, is_first: bool, mask: Any) -> None:
        self.value = value
        self.op = op
        self.is_first = is_first
        self.mask = mask
        self.shape = value.shape
        self.dtype = value.dtype

    def assign_to(self, slot: Tensor) -> None:
        """Write the slot."""
        from_here = self.value if self.is_first else self._combined(slot)
        with slot.frame.combining():
            slot[...] = from_here

    add_to = assign_to

    def _combined(self, slot: Tensor) -> Tensor:
        frame, a, b = slot.frame, slot.read_view(), self.value.read_view()
        return defer(
            "nl.loop_reduce", slot.shape, slot.dtype_name,
            lambda dst, cut: binary_step(
                dst, cut(a), cut(broadcast_view(b, a.shape, frame)), self.op
            ),
            mask=self.mask,
        )  # fmt: skip


def loop_reduce(
    x: Any, op: Any, loop_indices: Any, *, dtype: Any = None, mask: Any = None
) -> LoopReduction:
    """x combined by `op` over the loops of the indices, into the slot that it is assigned to."""
    name = operator_name(op)
    if name is None or not isinstance(x, Tensor):
        raise UnsupportedHere(
            what=f"nl.loop_reduce with op={op!r}",
            why="it takes a tile and an operator of nl",
            loc=caller(),
        )
    indices = loop_indices if isinstance(loop_indices, tuple | list) else (loop_indices,)
    is_first = True
    for index in indices:
        is_first = is_first and bool(getattr(index, "is_first", index == 0))
    value = x if dtype is None else x.astype(dtype)
    return LoopReduction(value, name, is_first, mask)


# --- over the programs of a grid -----------------------------------------------------------------


def all_reduce(
    x: Any, op: Any, program_axes: Any, *, dtype: Any = None, mask: Any = None,
    parallel_reduce: bool = True, asynchronous: bool = False,
) -> Tensor:  # fmt: skip
    """The tiles of all programs along axes of the grid combined by `op`, the same in each of them.

    Programs are combined in order, in float32 or in the tiles' integers. Neither option changes the
    result. ProgramsDisagree unless all of them make the call.
    """
    frame = require_frame("nl.all_reduce")
    data, name = operand("all_reduce", "x", x), operator_name(op)
    if name not in IDENTITIES:
        raise UnsupportedHere(
            what=f"nl.all_reduce with op={op!r}",
            why="it takes operators that reduce, as np.add and np.maximum",
            loc=caller(),
        )
    if frame.while_loops:
        what, why = "nl.all_reduce in a while loop on the device", "call it behind the loop"
        raise UnsupportedHere(what=what, why=why, loc=caller())
    group = _program_group(frame, program_axes)
    topic = ("nl.all_reduce", name, data.shape, data.dtype)
    assert frame.programs is not None
    total = frame.programs.synchronise(
        group, topic, data, lambda tiles: _combine_tiles(frame, tiles, name)
    )
    result = x.dtype_name if dtype is None else to_dtype_name(dtype)
    return defer(
        "nl.all_reduce", data.shape, result,
        lambda dst, cut: copy_tile(frame, dst, cut(total)), mask=mask,
    )  # fmt: skip


def _program_group(frame: Frame, axes: Any) -> tuple[tuple[int, ...], ...]:
    """The grid positions that differ from this program's along `axes` only."""
    rank = len(frame.grid)
    given = axes if isinstance(axes, tuple | list) else (axes,)
    if not given or not builtins.all(isinstance(a, int) and -rank <= a < rank for a in given):
        what = f"nl.all_reduce over program axes {axes!r} of a grid of {rank}"
        why = "give axes of the grid that the kernel is launched on"
        raise UnsupportedHere(what=what, why=why, loc=caller())
    chosen = {axis % rank for axis in given}
    own = enumerate(zip(frame.grid, frame.position, strict=True))
    ranges = [range(count) if axis in chosen else (at,) for axis, (count, at) in own]
    return tuple(itertools.product(*ranges))


def _combine_tiles(frame: Frame, tiles: list[NkiTensor], op: str) -> NkiTensor:
    """The tiles of all programs combined in order."""
    first = tiles[0]
    total = temporary_tile(frame, first.shape, "float32" if first.stored.is_float else first.dtype)
    copy_tile(frame, total, first)
    for each in tiles[1:]:
        binary_step(total, total, each, op)
    return total

"""Operators that arrange elements: shapes, slices, joins, indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from glia.base.dtype import F32, S32
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import product
from glia.plugins.mxnet.operators.layer_operators import rows
from glia.plugins.mxnet.operators.operator_table import NodeCall, lowers

_KEEP, _INFER, _REST, _JOIN, _SPLIT = 0, -1, -2, -3, -4  # in the shape of a Reshape


@lowers("Reshape", "reshape")
def _reshape(at: NodeCall, x: HloValue) -> HloValue:
    codes = list(at.attributes.extents("shape"))
    at.attributes.fixed("target_shape", "(0,)")
    at.attributes.fixed("keep_highest", "False")
    if at.attributes.flag("reverse"):
        return at.reshape(x, _decoded(at, codes[::-1], x.shape[::-1])[::-1])
    return at.reshape(x, _decoded(at, codes, x.shape))


def _decoded(at: NodeCall, codes: Sequence[int], extents: Sequence[int]) -> list[int]:
    """The shape that codes make of extents: kept, joined, split, the rest, or what is left."""
    found: list[int] = []
    left, position = list(codes), 0
    while left:
        code = left.pop(0)
        taken = {_KEEP: 1, _JOIN: 2, _SPLIT: 1, _INFER: 1}.get(code, 1 if code > 0 else 0)
        if code in (_KEEP, _JOIN, _SPLIT) and position + taken > len(extents):
            raise at.attributes.refusal("shape", f"goes beyond {list(extents)}")
        here = list(extents[position : position + taken])
        position += taken
        if code == _REST:
            found += extents[position:]
            position = len(extents)
        elif code == _SPLIT:
            found += _split_extent(at, left[:2], here[0])
            left = left[2:]
        elif code < _SPLIT:
            raise at.attributes.refusal("shape", "has a code below -4")
        else:
            found.append({_KEEP: product(here), _JOIN: product(here)}.get(code, code))
    return _inferred(at, found, product(extents))


def _split_extent(at: NodeCall, parts: list[int], extent: int) -> list[int]:
    """Two extents of one, of which -1 may stand for either."""
    known = product([each for each in parts if each != _INFER])
    is_whole = len(parts) == 2 and known > 0 and not extent % known
    if not is_whole or parts.count(_INFER) > 1 or (_INFER not in parts and known != extent):
        raise at.attributes.refusal("shape", f"does not split {extent}")
    return [extent // known if each == _INFER else each for each in parts]


def _inferred(at: NodeCall, shape: list[int], elements: int) -> list[int]:
    known = product([each for each in shape if each != _INFER])
    if shape.count(_INFER) == 1 and known and not elements % known:
        shape = [elements // known if each == _INFER else each for each in shape]
    if min(shape, default=0) < 0 or product(shape) != elements:
        raise at.attributes.refusal("shape", f"does not hold {elements} elements")
    return shape


@lowers("reshape_like")
def _reshape_like(at: NodeCall, x: HloValue, like: HloValue) -> HloValue:
    at.require(x.type.elements == like.type.elements, f"takes no {x.type} for {like.type}")
    return at.reshape(x, like.shape)


@lowers("Flatten", "flatten")
def _flatten(at: NodeCall, x: HloValue) -> HloValue:
    at.require(x.rank > 0, "takes no scalar")
    return at.reshape(x, (x.shape[0], product(x.shape[1:])))


@lowers("transpose")
def _transpose(at: NodeCall, x: HloValue) -> HloValue:
    order = at.attributes.extents("axes", ()) or tuple(reversed(range(x.rank)))
    order = tuple(at.dimension(each, x.rank, "axes") for each in order)
    if sorted(order) != list(range(x.rank)):
        raise at.attributes.refusal("axes", f"is no order of {x.rank} dimensions")
    return at.transpose(x, order)


@lowers("SwapAxis", "swapaxes")
def _swap(at: NodeCall, x: HloValue) -> HloValue:
    order = list(range(x.rank))
    names = ("dim1", "dim2")
    one, other = (at.dimension(at.attributes.integer(n, 0), x.rank, n) for n in names)
    order[one], order[other] = other, one
    return at.transpose(x, order)


@lowers("expand_dims")
def _expand_dims(at: NodeCall, x: HloValue) -> HloValue:
    place = at.dimension(at.attributes.integer("axis"), x.rank + 1)
    return at.reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


@lowers("squeeze")
def _squeeze(at: NodeCall, x: HloValue) -> HloValue:
    given = {at.dimension(each, x.rank) for each in at.attributes.extents("axis", ())}
    dropped = given or {d for d, extent in enumerate(x.shape) if extent == 1}
    if any(x.shape[d] != 1 for d in dropped):
        raise at.attributes.refusal("axis", f"is not of extent 1 in {list(x.shape)}")
    shape = [extent for d, extent in enumerate(x.shape) if d not in dropped]
    return at.reshape(x, shape or (1,))


@lowers("broadcast_to")
def _broadcast_to(at: NodeCall, x: HloValue) -> HloValue:
    given = at.attributes.extents("shape")
    at.require(len(given) == x.rank, f"makes {list(given)} of {list(x.shape)}")
    return _broadcast_by_rule(
        at, x, [n or extent for n, extent in zip(given, x.shape, strict=True)]
    )


@lowers("broadcast_like")
def _broadcast_like(at: NodeCall, x: HloValue, like: HloValue) -> HloValue:
    at.attributes.fixed("lhs_axes", "None")
    at.attributes.fixed("rhs_axes", "None")
    at.require(x.rank == like.rank, f"makes {list(like.shape)} of {list(x.shape)}")
    return _broadcast_by_rule(at, x, like.shape)


@lowers("broadcast_axis", "broadcast_axes")
def _broadcast_axis(at: NodeCall, x: HloValue) -> HloValue:
    dimensions, extents = at.attributes.extents("axis", ()), at.attributes.extents("size", ())
    at.require(len(dimensions) == len(extents), "has other numbers of axes and sizes")
    shape = list(x.shape)
    for d, extent in zip(dimensions, extents, strict=True):
        shape[at.dimension(d, x.rank)] = extent
    return _broadcast_by_rule(at, x, shape)


def _broadcast_by_rule(at: NodeCall, x: HloValue, shape: Sequence[int]) -> HloValue:
    fits = all(n in (1, extent) and extent >= 0 for n, extent in zip(x.shape, shape, strict=True))
    at.require(fits, f"makes {list(shape)} of {list(x.shape)}")
    _check_elements(at, shape)
    return at.expand(x, shape)


def _check_elements(at: NodeCall, shape: Sequence[int]) -> None:
    at.require(product(shape) < 1 << 40, f"makes a tensor of {list(shape)}")


@lowers("tile")
def _tile(at: NodeCall, x: HloValue) -> HloValue:
    times = at.attributes.extents("reps")
    rank = max(x.rank, len(times))
    shape = (1,) * (rank - x.rank) + x.shape
    times = (1,) * (rank - len(times)) + times
    at.require(min(times, default=1) > 0, "repeats no times")
    wide = [each for pair in zip(times, shape, strict=True) for each in pair]
    _check_elements(at, wide)
    kept = list(range(1, 2 * rank, 2))
    spread = at.broadcast(at.reshape(x, shape), wide, kept)
    return at.reshape(spread, [n * extent for n, extent in zip(times, shape, strict=True)])


@lowers("repeat")
def _repeat(at: NodeCall, x: HloValue) -> HloValue:
    """Each element several times, one after the other."""
    times, chosen = at.attributes.integer("repeats"), at.attributes.optional_integer("axis")
    at.require(times > 0, "repeats no times")
    if chosen is None:
        x, chosen = at.reshape(x, (product(x.shape),)), 0
    d = at.dimension(chosen, x.rank)
    wide = (*x.shape[: d + 1], times, *x.shape[d + 1 :])
    _check_elements(at, wide)
    spread = at.broadcast(x, wide, [*range(d + 1), *range(d + 2, x.rank + 1)])
    return at.reshape(spread, (*x.shape[:d], x.shape[d] * times, *x.shape[d + 1 :]))


@lowers("reverse", "flip")
def _reverse(at: NodeCall, x: HloValue) -> HloValue:
    return at.reverse(x, [at.dimension(d, x.rank) for d in at.attributes.extents("axis")])


# --- slices and joins ----------------------------------------------------------------------------


def _bounds(
    at: NodeCall, extent: int, begin: int | None, end: int | None, step: int | None
) -> tuple[int, int, int]:
    """Where a slice of a dimension starts and ends, counted from the front, and its step."""
    step = step or 1
    at.require(step > 0, "takes a slice backwards, which is not supported")
    start, stop, _ = slice(begin, end).indices(extent)
    at.require(start < stop, f"takes nothing of {extent} elements")
    return start, stop, step


@lowers("slice", "crop")
def _slice(at: NodeCall, x: HloValue) -> HloValue:
    names = ("begin", "end", "step")
    given = [list(at.attributes.optional_extents(name) or ()) for name in names]
    at.require(max(map(len, given)) <= x.rank, f"slices more than {x.rank} dimensions")
    filled = [each + [None] * (x.rank - len(each)) for each in given]
    cut = [_bounds(at, *each) for each in zip(x.shape, *filled, strict=True)]
    starts, stops, steps = zip(*cut, strict=True)
    return at.slice(x, starts, stops, steps)


@lowers("slice_axis")
def _slice_axis(at: NodeCall, x: HloValue) -> HloValue:
    d = at.dimension(at.attributes.integer("axis"), x.rank)
    begin, end = at.attributes.integer("begin"), at.attributes.optional_integer("end")
    start, stop, _ = _bounds(at, x.shape[d], begin, end, None)
    return at.slice_dimension(x, d, start, stop)


@lowers("slice_like")
def _slice_like(at: NodeCall, x: HloValue, like: HloValue) -> HloValue:
    given = at.attributes.extents("axes", ()) or range(min(x.rank, like.rank))
    for each in given:
        d = at.dimension(each, min(x.rank, like.rank), "axes")
        at.require(0 < like.shape[d] <= x.shape[d], f"takes {like.type} of {x.type}")
        x = at.slice_dimension(x, d, 0, like.shape[d])
    return x


@lowers("SliceChannel", "split")
def _split(at: NodeCall, x: HloValue) -> list[HloValue]:
    d = at.dimension(at.attributes.integer("axis", 1), x.rank)
    count, drops = at.attributes.integer("num_outputs"), at.attributes.flag("squeeze_axis")
    if not 0 < count <= x.shape[d] or x.shape[d] % count:
        raise at.attributes.refusal("num_outputs", f"does not divide {x.shape[d]}")
    size = x.shape[d] // count
    return _parts(at, x, d, [size * n for n in range(count + 1)], drops)


@lowers("_split_v2")
def _split_at(at: NodeCall, x: HloValue) -> list[HloValue]:
    """Parts that begin at indices, or so many of one size."""
    d = at.dimension(at.attributes.integer("axis", 1), x.rank)
    given, drops = at.attributes.extents("indices", ()), at.attributes.flag("squeeze_axis")
    count, extent = at.attributes.integer("sections", 0), x.shape[d]
    if count:
        at.require(0 < count <= extent and not extent % count, f"has no {count} parts of {extent}")
        return _parts(at, x, d, [extent // count * n for n in range(count + 1)], drops)
    cuts = [min(each, extent) for each in given] + [extent]
    at.require(cuts[:1] != [] and cuts == sorted(cuts) and cuts[0] >= 0, "has cuts out of order")
    return _parts(at, x, d, cuts if cuts[0] == 0 else [0, *cuts], drops)


def _parts(
    at: NodeCall, x: HloValue, dimension: int, cuts: Sequence[int], drops: bool
) -> list[HloValue]:
    """Parts of x between cuts along a dimension, without it where `drops` says so."""
    ends = itertools.pairwise(cuts)
    parts = [at.slice_dimension(x, dimension, start, end) for start, end in ends]
    if not drops:
        return parts
    rest = [n for d, n in enumerate(x.shape) if d != dimension]
    at.require(all(part.shape[dimension] == 1 for part in parts), "has parts of several elements")
    return [at.reshape(part, rest) for part in parts]


@lowers("Concat", "concat")
def _concatenate(at: NodeCall, *xs: HloValue) -> HloValue:
    at.require(bool(xs), "has no operands")
    d = at.dimension(at.attributes.integer("dim", 1), xs[0].rank, "dim")
    rest = {(x.dtype, x.rank, x.shape[:d], x.shape[d + 1 :]) for x in xs}
    at.require(len(rest) == 1, f"joins {' and '.join(str(x.type) for x in xs[:4])}")
    return at.concatenate(xs, d)


@lowers("stack")
def _stack(at: NodeCall, *xs: HloValue) -> HloValue:
    at.require(bool(xs) and len({x.type for x in xs}) == 1, "takes tensors of one type")
    place = at.dimension(at.attributes.integer("axis", 0), xs[0].rank + 1)
    wide = (*xs[0].shape[:place], 1, *xs[0].shape[place:])
    return at.concatenate([at.reshape(x, wide) for x in xs], place)


@lowers("Pad", "pad")
def _pad(at: NodeCall, x: HloValue) -> HloValue:
    mode = at.attributes.choice("mode", ("constant", "edge", "reflect"))
    widths, value = at.attributes.extents("pad_width"), at.attributes.number("constant_value", 0.0)
    if len(widths) != 2 * x.rank or min(widths, default=0) < 0 or max(widths, default=0) >= 1 << 24:
        raise at.attributes.refusal("pad_width", f"is not two numbers for each of {x.rank} extents")
    low, high = widths[::2], widths[1::2]
    _check_elements(at, [a + n + b for a, n, b in zip(low, x.shape, high, strict=True)])
    if mode == "constant":
        return at.pad(x, at.number(value, TensorType(x.dtype)), low, high)
    for d in range(x.rank):
        if low[d] or high[d]:
            x = _continued(at, x, d, low[d], high[d], mode)
    return x


def _continued(
    at: NodeCall, x: HloValue, dimension: int, low: int, high: int, mode: str
) -> HloValue:
    """x with its edge, or what lies inside it, before and after it along a dimension."""
    extent = x.shape[dimension]
    at.require(extent > (max(low, high) if mode == "reflect" else 0), f"pads {extent} elements")
    places = np.pad(np.arange(extent, dtype=np.int32), (low, high), mode=mode)  # type: ignore[call-overload]
    return rows(at, x, at.constant(places, S32), dimension)


@lowers("depth_to_space")
def _depth_to_space(at: NodeCall, x: HloValue) -> HloValue:
    size = at.attributes.integer("block_size")
    at.require(x.rank == 4 and size > 0 and not x.shape[1] % (size * size), f"takes no {x.type}")
    batch, channels, height, width = x.shape
    inner = channels // (size * size)
    parted = at.reshape(x, (batch, size, size, inner, height, width))
    turned = at.transpose(parted, (0, 3, 4, 1, 5, 2))
    return at.reshape(turned, (batch, inner, height * size, width * size))


@lowers("space_to_depth")
def _space_to_depth(at: NodeCall, x: HloValue) -> HloValue:
    size = at.attributes.integer("block_size")
    at.require(x.rank == 4 and size > 0 and not any(n % size for n in x.shape[2:]), f"no {x.type}")
    batch, channels, height, width = x.shape
    parted = at.reshape(x, (batch, channels, height // size, size, width // size, size))
    turned = at.transpose(parted, (0, 3, 5, 1, 2, 4))
    return at.reshape(turned, (batch, channels * size * size, height // size, width // size))


# --- indices and constants -----------------------------------------------------------------------


@lowers("take")
def _taken_slices(at: NodeCall, x: HloValue, places: HloValue) -> HloValue:
    d = at.dimension(at.attributes.integer("axis", 0), x.rank)
    mode = at.attributes.choice("mode", ("clip", "wrap"), "clip")
    if mode == "wrap":
        extent = at.filled_like(x.shape[d], places)
        rest = at.binary("remainder", places, extent)
        places = at.select(at.compare_to("LT", rest, 0), at.add(rest, extent), rest)
    return rows(at, x, places, d)


@lowers("pick")
def _pick(at: NodeCall, x: HloValue, places: HloValue) -> HloValue:
    """The element at an index along a dimension, for each of the others."""
    d = at.dimension(at.attributes.integer("axis", -1), x.rank)
    at.attributes.choice("mode", ("clip",), "clip")
    keeps = at.attributes.flag("keepdims")
    rest = tuple(n for place, n in enumerate(x.shape) if place != d)
    at.require(places.type.elements == product(rest), f"picks {places.type} of {x.type}")
    chosen = at.reshape(at.convert(places, S32), rest)
    last, zero = at.splat(x.shape[d] - 1, chosen.type), at.filled_like(0, chosen)
    clipped = at.binary("minimum", at.binary("maximum", chosen, zero), last)
    is_there = at.compare(
        "EQ", at.iota(TensorType(S32, x.shape), d), at.repeated_over(clipped, x, [d])
    )
    found = at.sum(at.select(is_there, x, at.filled_like(0, x)), [d])
    return at.reshape(found, [*x.shape[:d], 1, *x.shape[d + 1 :]] if keeps else rest or (1,))


@lowers("one_hot")
def _one_hot(at: NodeCall, places: HloValue) -> HloValue:
    attributes = at.attributes
    depth, dtype = attributes.integer("depth"), attributes.dtype("dtype", F32)
    on, off = attributes.number("on_value", 1.0), attributes.number("off_value", 0.0)
    at.require(depth > 0, "has no depth")
    kind = TensorType(S32, (*places.shape, depth))
    _check_elements(at, kind.shape)
    wide = at.broadcast(at.convert(places, S32), kind.shape, list(range(places.rank)))
    is_there = at.compare("EQ", wide, at.iota(kind, places.rank))
    result = TensorType(dtype, kind.shape)
    return at.select(is_there, at.number(on, result), at.number(off, result))


@lowers("gather_nd")
def _gather_nd(at: NodeCall, x: HloValue, places: HloValue) -> HloValue:
    """Slices at indices, whose first dimension has one for each of the first of x."""
    at.require(places.rank > 0 and 0 < places.shape[0] <= x.rank, f"takes no indices {places.type}")
    count = places.shape[0]
    last = at.transpose(at.convert(places, S32), [*range(1, places.rank), 0])
    offsets = list(range(places.rank - 1, places.rank - 1 + x.rank - count))
    return at.gather(x, last, list(range(count)), offsets)


@lowers("SequenceMask")
def _sequence_mask(at: NodeCall, x: HloValue, lengths: HloValue | None = None) -> HloValue:
    """Elements beyond the length of their sequence become a number."""
    value, d = at.attributes.number("value", 0.0), at.attributes.integer("axis", 0)
    if not at.attributes.flag("use_sequence_length"):
        return x
    at.require(x.rank > 1 and d in (0, 1), f"takes sequences along axis 0 or 1, not {x.type}")
    at.require(lengths is not None and lengths.shape == (x.shape[1 - d],), "lacks its lengths")
    assert lengths is not None
    wide = at.broadcast(at.convert(lengths, S32), x.shape, [1 - d])
    inside = at.compare("LT", at.iota(TensorType(S32, x.shape), d), wide)
    return at.select(inside, x, at.number(value, x.type))


@lowers("_zeros", "_ones", "_full")
def _filled(at: NodeCall) -> HloValue:
    value = {"_zeros": 0.0, "_ones": 1.0}.get(at.attributes.operator)
    value = at.attributes.number("value") if value is None else value
    shape, dtype = at.attributes.extents("shape"), at.attributes.dtype("dtype", F32)
    at.require(min(shape, default=1) > 0, f"makes a tensor of {list(shape)}")
    _check_elements(at, shape)
    return at.number(value, TensorType(dtype, shape))


@lowers("_arange")
def _arange(at: NodeCall) -> HloValue:
    attributes = at.attributes
    start, step = attributes.number("start", 0.0), attributes.number("step", 1.0)
    stop = attributes.number("stop", math.inf)
    times, dtype = attributes.integer("repeat", 1), attributes.dtype("dtype", F32)
    attributes.fixed("infer_range", "False")
    if stop == math.inf:
        start, stop = 0.0, start
    is_finite = all(map(math.isfinite, (start, stop, step)))
    at.require(is_finite and step != 0 and times > 0, "has no end")
    count = max(0, math.ceil((stop - start) / step))
    at.require(0 < count * times < 1 << 24, f"makes {count * times} numbers")
    return at.constant(np.repeat(start + step * np.arange(count), times), dtype)


@lowers("_contrib_arange_like")
def _arange_like(at: NodeCall, x: HloValue) -> HloValue:
    attributes = at.attributes
    start, step = attributes.number("start", 0.0), attributes.number("step", 1.0)
    attributes.fixed("repeat", "1")
    chosen = attributes.optional_integer("axis")
    if chosen is None:
        flat = at.iota(TensorType(F32, (product(x.shape),)), 0)
        counted = at.reshape(flat, x.shape)
    else:
        counted = at.iota(TensorType(F32, (x.shape[at.dimension(chosen, x.rank)],)), 0)
    return at.convert(at.plus(at.scaled(counted, step), start), x.dtype)

"""Functions of nl that move data between memories, transpose, broadcast and gather."""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.base.dtype import F32
from glia.isa.instructions.tensor import NcTranspose
from glia.isa.operand import Memory
from glia.nki import isa as nisa
from glia.nki.beta1.api.issue import (
    PSUM,
    SBUF,
    broadcast_partitions_into,
    broadcast_view,
    copy_tile,
    defer,
    ensure_in_sbuf,
    fill,
    operand,
    temporary_tile,
    transfer,
)
from glia.nki.beta1.errors import (
    DestinationTooSmall,
    DimensionTooLarge,
    IndirectNotSupported,
    TooManyDimensions,
    TooManyPartitions,
    UnsupportedHere,
    WrongMemory,
)
from glia.nki.beta1.run.frame import Frame, require_frame
from glia.nki.beta1.tensors.buffers import psum
from glia.nki.beta1.tensors.dtypes import to_dtype_name
from glia.nki.beta1.tensors.index import Box
from glia.nki.beta1.tensors.masked_part import MaskedPart, boxed_part, masked_part
from glia.nki.beta1.tensors.tensor import FUNCTIONS, Tensor
from glia.nki.issue.instruction import issue
from glia.nki.issue.transfers import dma_compute, dma_transpose
from glia.nki.names.dtypes import DTYPES
from glia.nki.names.enums import dge_mode, oob_mode
from glia.nki.names.operators import operator_name
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor

_BITS = {4: "float32", 2: "bfloat16", 1: "float8_e5m2"}  # floats that the PE array passes on


def hbm_operand(function: str, name: str, value: Any) -> Tensor:
    """An operand in HBM; WrongMemory for one on chip."""
    if not isinstance(value, Tensor):
        raise UnsupportedHere(
            what=f"{function} of a {type(value).__name__}",
            why="it takes a tensor in HBM",
            loc=caller(),
        )
    if value.is_on_chip:
        found = value.region.value
        raise WrongMemory(name=name, function=function, wanted="hbm", found=found, loc=caller())
    value.require_scope()  # of what a transfer that waits will read
    return value


def tile_shape(frame: Frame, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a tile, at least two dimensions; TooManyPartitions beyond the core's."""
    most = frame.session.arch.partitions
    if shape[0] > most:
        raise TooManyPartitions(count=shape[0], most=most, loc=caller())
    return shape if len(shape) > 1 else (*shape, 1)


def load(src: Any, *, mask: Any = None, dtype: Any = None, mode: Any = oob_mode.error) -> Tensor:
    """A tile in SBUF with the contents of a tensor in HBM, converted to a dtype.

    `mode` is an oob_mode of nki.isa: how indices in memory that are out of bounds are treated.
    """
    frame = require_frame("nl.load")
    outside = _core_oob_mode("nl.load", mode)
    source = hbm_operand("load", "src", src)
    shape = tile_shape(frame, source.shape)
    name = source.dtype_name if dtype is None else to_dtype_name(dtype)
    part = masked_part(mask, source.shape)
    frame.flush()

    def write(dst: NkiTensor, _: Any) -> None:
        for box in part.boxes():
            place = _slice_box(dst, box)
            view = source.read_view(box)
            shaped = view if view.ndim > 1 else view.expand_dim(1)
            transfer(frame, place, shaped, oob_mode=outside)

    skips = outside is oob_mode.skip
    return _defer_load("nl.load", shape, name, write, part, skips=skips)


def _slice_box(tensor: NkiTensor, box: Box | None) -> NkiTensor:
    for axis, (first, end) in enumerate(box or ()):
        tensor = tensor.slice(axis, first, end)
    return tensor


def _core_oob_mode(function: str, mode: Any) -> oob_mode:
    """The core's oob_mode of the same name; UnsupportedHere for other values."""
    found: Any = getattr(mode, "name", None)
    if found not in oob_mode.__members__:
        why = "the modes are nisa.oob_mode.error and nisa.oob_mode.skip"
        raise UnsupportedHere(what=f"{function} with mode={mode!r}", why=why, loc=caller())
    return oob_mode[found]


def store(dst: Any, value: Any, *, mask: Any = None, mode: Any = oob_mode.error) -> None:
    """Write a tile, or a number, to a tensor in HBM; `mode` as in nl.load."""
    frame = require_frame("nl.store")
    outside = _core_oob_mode("nl.store", mode)
    target = hbm_operand("store", "dst", dst)
    part = masked_part(mask, target.shape)
    source = _source_tile(frame, target, value)
    for box in part.boxes():
        place = target.write_view(box, is_partial=outside is oob_mode.skip)
        kept = _slice_box(source, box if source.ndim == target.ndim else None)
        if outside is oob_mode.error and _gains_by_transposition(frame, place, kept):
            _store_transposed(frame, place, kept)
        else:
            transfer(frame, place, kept, oob_mode=outside)


def _gains_by_transposition(frame: Frame, place: NkiTensor, tile: NkiTensor) -> bool:
    """Whether a tile is stored sooner by transposing it in SBUF first.

    It is where neighbours in memory lie on different partitions, so that each element would be a
    descriptor of its own, and those take longer than one more transfer takes to begin and to end.
    """
    if place.ndim != 2 or tile.shape != place.shape or place.indirection is not None:
        return False
    (row, rows), (column, columns) = place.dims
    if row != 1 or abs(column) < rows or min(rows, columns) == 1:
        return False
    arch = frame.session.arch
    scattered = rows * columns / arch.dma_engines * arch.dma_descriptor_ns
    return scattered > arch.dma_start_ns + arch.dma_completion_ns


def _store_transposed(frame: Frame, place: NkiTensor, tile: NkiTensor) -> None:
    """Store a tile in rows of its transposition, in pieces that partitions hold."""
    most = frame.session.arch.partitions
    for first in range(0, tile.shape[1], most):
        end = min(first + most, tile.shape[1])
        turned = temporary_tile(frame, (end - first, tile.shape[0]), tile.dtype)
        dma_transpose(turned, tile.slice(1, first, end))
        transfer(frame, place.slice(1, first, end).permute((1, 0)), turned)


def _source_tile(frame: Frame, target: Tensor, value: Any) -> NkiTensor:
    """The value in SBUF in the shape of the destination."""
    shape = tile_shape(frame, target.shape)
    if not isinstance(value, Tensor):
        tile = temporary_tile(frame, shape, target.dtype_name)
        fill(tile, np.asarray(value).item())
        return tile if len(target.shape) > 1 else tile.reshape((*shape[:1], 1))
    if not value.is_on_chip:
        raise WrongMemory(
            name="value", function="store", wanted="psum|sbuf", found="hbm", loc=caller()
        )
    box = boxed_part("nl.store", value.mask, value.shape).box if value.mask is not None else None
    tile = ensure_in_sbuf(frame, value.read_view(box))
    if tile.size > target.size:
        raise DestinationTooSmall(dst=target.shape, src=tile.shape, loc=caller())
    if tile.size == target.size and tile.shape[0] == shape[0]:
        return tile if tile.shape == shape else tile.reshape(shape)
    return tile if tile.size == target.size else broadcast_view(tile, shape, frame)


def load_transpose2d(src: Any, *, mask: Any = None, dtype: Any = None) -> Tensor:
    """A tile in SBUF with a tensor of two dimensions in HBM, transposed."""
    frame = require_frame("nl.load_transpose2d")
    source = hbm_operand("load_transpose2d", "src", src)
    if source.dynamic is not None:
        raise IndirectNotSupported(loc=caller())
    if source.ndim != 2:
        raise TooManyDimensions(
            name="src", shape=list(source.shape), function="load_transpose2d", most=2, loc=caller()
        )
    part = masked_part(mask, source.shape)
    name = source.dtype_name if dtype is None else to_dtype_name(dtype)
    frame.flush()

    def write(dst: NkiTensor, _: Any) -> None:
        for box in part.boxes():
            place = _slice_box(dst, box[::-1] if box else None)
            transposed_transfer(frame, place, source.read_view(box))

    shape = tile_shape(frame, source.shape[::-1])
    return _defer_load("nl.load_transpose2d", shape, name, write, part.transposed())


def transposed_transfer(
    frame: Frame, dst: NkiTensor, src: NkiTensor, mode: dge_mode = dge_mode.unknown
) -> None:
    """dst in SBUF = src with its dimensions in the order of dma_transpose, by the DMA engines.

    They move bits: an engine converts to another dtype. Hardware makes descriptors for 2 bytes;
    where a run holds such floats in float32, the hint would not fit what is moved.
    """
    if src.stored is not DTYPES[src.dtype]:
        mode = dge_mode.unknown
    if dst.dtype == src.dtype:
        dma_transpose(dst, src, dge_mode=mode)
        return
    turned = temporary_tile(frame, dst.shape, src.dtype)
    dma_transpose(turned, src, dge_mode=mode)
    copy_tile(frame, dst, turned)


def _defer_load(
    function: str,
    shape: tuple[int, ...],
    name: str,
    write: Any,
    part: MaskedPart,
    *,
    skips: bool = False,
) -> Tensor:
    """A deferred transfer into SBUF that slices its destination itself: it writes a part of it."""
    return defer(
        function, shape, name, write, regions=(SBUF,), by_dma=True,
        partial=part, skips=skips,
    )  # fmt: skip


def transpose_on_pe(frame: Frame, dst: NkiTensor, data: NkiTensor) -> None:
    """dst in PSUM = data transposed by the PE array, bits unchanged."""
    bits = _BITS[data.stored.bytes]
    pair = (dst, data) if data.stored.is_float else (dst.view(bits), data.view(bits))
    fields = {"dst": pair[0], "data": ensure_in_sbuf(frame, pair[1])}
    issue(frame.session, "nc_transpose", NcTranspose, fields)


def transpose(x: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """A tile in SBUF with a tile of two dimensions, transposed."""
    frame = require_frame("nl.transpose")
    data = operand("transpose", "x", x)
    if data.ndim != 2:
        raise TooManyDimensions(
            name="x", shape=list(data.shape), function="transpose", most=2, loc=caller()
        )
    most = frame.session.arch.stationary_columns
    if data.shape[1] > most:
        raise DimensionTooLarge(
            axis=1, name="x", shape=list(data.shape), function="transpose", most=most, loc=caller()
        )
    name = x.dtype_name if dtype is None else to_dtype_name(dtype)

    def write(dst: NkiTensor, _: Any) -> None:
        transposed = temporary_tile(frame, data.shape[::-1], data.dtype, PSUM)
        transpose_on_pe(frame, transposed, data)
        copy_tile(frame, dst, transposed)

    return defer("nl.transpose", data.shape[::-1], name, write)


def matmul(x: Any, y: Any, *, transpose_x: bool = False, mask: Any = None) -> Tensor:
    """A tile in PSUM: x @ y, or x.T @ y when x is given transposed, in float32."""
    frame = require_frame("nl.matmul")
    if not transpose_x:
        transposed = transpose(x).read_view()
        return defer_product("nl.matmul", frame, transposed, operand("matmul", "y", y), mask)
    return defer_product("nl.matmul", frame, *matmul_operands(x, y), mask)


def matmul_operands(x: Any, y: Any) -> tuple[NkiTensor, NkiTensor]:
    """The core tensors of both operands of a matrix product."""
    return operand("matmul", "x", x), operand("matmul", "y", y)


def defer_product(
    function: str, frame: Frame, stationary: NkiTensor, moving: NkiTensor, mask: Any = None,
    is_transpose: bool = False, **options: Any,
) -> Tensor:  # fmt: skip
    """stationary.T @ moving, a deferred tile in PSUM; `+=` accumulates it."""
    stationary, moving = _flatten_operand(frame, stationary), _flatten_operand(frame, moving)
    if (stationary.stored is F32) != (moving.stored is F32):  # which the array does not mix
        stationary, moving = (ensure_float32(frame, each) for each in (stationary, moving))
    _check_columns(frame, function, stationary, moving)
    part = boxed_part(function, mask, moving.shape)
    shape = (stationary.shape[1], moving.shape[1])

    def multiply(dst: NkiTensor, accumulate: Any) -> None:
        first, second = stationary, part.cut(moving)
        if part.box is not None:
            first = first.slice(0, *part.box[0])
            dst = dst.slice(1, *part.box[1])
        is_exact = is_transpose and dst.dtype == first.dtype and not accumulate
        nisa.nc_matmul(
            dst=dst, stationary=first, moving=second, accumulate=accumulate, is_transpose=is_exact,
            **options,
        )  # fmt: skip

    def add(slot: Tensor) -> None:
        if part.is_empty:
            return
        dst = slot.write_view(is_sum=True)
        dst = dst if dst.ndim == 2 else dst.reshape(shape)
        multiply(dst, frame.session.accumulates(dst.pattern, caller()))

    def write(dst: NkiTensor, _: Any) -> None:
        multiply(dst if dst.ndim == 2 else dst.reshape(shape), False)

    partial = MaskedPart(shape, ((0, shape[0]), part.box[1]) if part.box else None)
    empty = False if part.is_empty else None
    return defer(
        function, shape, "float32", write, mask=empty, buffer=psum, regions=(PSUM,),
        accumulate=add, partial=partial,
    )  # fmt: skip


def ensure_float32(frame: Frame, tensor: NkiTensor) -> NkiTensor:
    """The tile, or a copy of it in float32."""
    if tensor.stored is F32:
        return tensor
    converted = temporary_tile(frame, tensor.shape, "float32")
    copy_tile(frame, converted, tensor)
    return converted


def _flatten_operand(frame: Frame, tensor: NkiTensor) -> NkiTensor:
    """An operand of the Tensor Engine: in SBUF, its free dimensions as one."""
    held = ensure_in_sbuf(frame, tensor)
    if held.ndim == 2:
        return held
    if not held.is_contiguous():
        copied = temporary_tile(frame, held.shape, held.dtype)
        copy_tile(frame, copied, held)
        held = copied
    return held.reshape((held.shape[0], held.size // held.shape[0]))


def _check_columns(frame: Frame, function: str, stationary: NkiTensor, moving: NkiTensor) -> None:
    arch = frame.session.arch
    limits = {
        "stationary": (stationary, arch.stationary_columns),
        "moving": (moving, arch.psum_bank_bytes // 4),
    }
    for name, (tensor, most) in limits.items():
        if tensor.shape[1] > most:
            raise DimensionTooLarge(
                axis=1, name=name, shape=list(tensor.shape), function=function, most=most,
                loc=caller(),
            )  # fmt: skip


def broadcast_to(src: Any, *, shape: Any) -> Tensor:
    """The tile repeated to a shape; one partition is copied to all."""
    frame = require_frame("nl.broadcast_to")
    data, wanted = operand("broadcast_to", "src", src), tuple(int(n) for n in shape)

    def write(dst: NkiTensor, _: Any) -> None:
        row = (1, *wanted[1:])
        is_plain = dst.tile.memory is Memory.SBUF and dst.stored is data.stored
        if is_plain and wanted[0] > 1 and data.ndim == len(wanted) and data.shape[0] == 1:
            broadcast_partitions_into(frame, dst, broadcast_view(data, row, frame))
        else:
            copy_tile(frame, dst, broadcast_view(data, wanted, frame))

    return defer("nl.broadcast_to", wanted, src.dtype_name, write)


def expand_dims(data: Any, axis: int) -> Tensor:
    """A view with a dimension of one element at a position."""
    view: Tensor = data.expand_dims(axis)
    return view


def gather_flattened(data: Any, indices: Any, *, mask: Any = None, dtype: Any = None) -> Tensor:
    """In each partition the elements that indices name, of its free dimensions as one."""
    source, chosen = operand("gather_flattened", "data", data), indices.read_view()
    name = data.dtype_name if dtype is None else to_dtype_name(dtype)
    gather = core_function("nc_n_gather")

    def write(dst: NkiTensor, cut: Any) -> None:
        gather(dst=dst, data=source, indices=cut(chosen))

    return defer("nl.gather_flattened", chosen.shape, name, write, mask=mask)


def core_function(name: str) -> Any:
    """The function of the current nki.isa of this name; UnsupportedHere without one."""
    found = vars(nisa).get(name)
    if found is None:
        raise UnsupportedHere(
            what=f"nki.isa.{name}", why="no instruction has that name", loc=caller()
        )
    return found


def atomic_rmw(dst: Any, value: Any, op: Any, *, mask: Any = None) -> None:
    """Add a tile to rows of a tensor in HBM that indices choose; equal indices add up."""
    frame = require_frame("nl.atomic_rmw")
    target = hbm_operand("atomic_rmw", "dst", dst)
    if operator_name(op) != "add":
        raise UnsupportedHere(
            what=f"nl.atomic_rmw with op={op!r}",
            why="transfers add only; load, compute and store instead",
            loc=caller(),
        )
    source = ensure_in_sbuf(frame, operand("atomic_rmw", "value", value))
    for box in masked_part(mask, target.shape).boxes():
        add_rows(frame, target, box, _slice_box(source, box), skips=False)


def add_rows(frame: Frame, target: Tensor, box: Any, source: NkiTensor, *, skips: bool) -> None:
    """Add to what is in HBM, by index or in place."""
    with frame.combining():
        place = target.write_view(box, is_partial=True)
    mode = oob_mode.skip if skips else oob_mode.error
    dma_compute(place, [place, source], "add", oob_mode=mode)


def device_print(prefix: str, x: Any, *, mask: Any = None) -> None:
    """Show a tensor under a prefix: at once while simulated, else when the program has run."""
    frame = require_frame("nl.device_print")
    held = x.read_view()
    held = ensure_in_sbuf(frame, held) if held.tile.memory is Memory.PSUM else held
    frame.session.print_tensor(prefix, held.pattern, held.dtype)


FUNCTIONS["broadcast_to"] = broadcast_to

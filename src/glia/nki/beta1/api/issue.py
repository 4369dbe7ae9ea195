"""Issuing instructions for Beta 1 tensors: binding operands, masks, destinations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from glia.base.dtype import F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.vector import Memset, TensorCopy, TensorCopyPredicated
from glia.isa.operand import Memory
from glia.isa.rules import MOST_DIMS, start_partition_holds
from glia.nki import isa as nisa
from glia.nki.api.elementwise import binary_step
from glia.nki.beta1.errors import (
    DestinationTooSmall,
    IndirectNotSupported,
    PartialAssignment,
    PartitionMismatch,
    UnsupportedHere,
    WrongMemory,
)
from glia.nki.beta1.run.frame import Frame, require_frame
from glia.nki.beta1.tensors.buffers import Buffer, sbuf
from glia.nki.beta1.tensors.index import Conditions, Index
from glia.nki.beta1.tensors.masked_part import CutOperand, MaskedPart, boxed_part, masked_part
from glia.nki.beta1.tensors.storage import DeferredWrite, Storage, allocate_unchecked
from glia.nki.beta1.tensors.tensor import Tensor
from glia.nki.issue.instruction import issue
from glia.nki.issue.transfers import dma_copy
from glia.nki.names.enums import MemoryRegion
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
ON_CHIP = (SBUF, PSUM)
Write = Callable[[NkiTensor, CutOperand], Any]


# --- operands ------------------------------------------------------------------------------------


def temporary_tile(
    frame: Frame, shape: tuple[int, ...], dtype: str, region: MemoryRegion = SBUF
) -> NkiTensor:
    """A new tile of the core for an intermediate value."""
    return allocate_unchecked(frame, shape, dtype, region, "temporary")


def operand(function: str, name: str, value: Any) -> NkiTensor:
    """The core tensor of an operand on chip, at a start partition that engines can read.

    UnsupportedHere, WrongMemory or IndirectNotSupported for other operands.
    """
    if not isinstance(value, Tensor):
        raise UnsupportedHere(
            what=f"{function} with {name} of type {type(value).__name__}",
            why="operands are tiles; make one with nl.full",
            loc=caller(),
        )
    if not value.is_on_chip:
        raise WrongMemory(
            name=name, function=function, wanted="psum|sbuf", found="hbm", loc=caller()
        )
    if value.dynamic is not None:
        raise IndirectNotSupported(loc=caller())
    box = boxed_part(function, value.mask, value.shape).box if value.mask is not None else None
    return align_partition_start(value.frame, value.read_view(box))


def align_partition_start(frame: Frame, tensor: NkiTensor) -> NkiTensor:
    """The tensor, or a copy at partition 0 when engines cannot start at its partition."""
    if has_engine_start(tensor) or tensor.tile.memory is Memory.PSUM:
        return tensor
    copied = temporary_tile(frame, tensor.shape, tensor.dtype)
    issue(frame.session, "dma_copy", DmaCopy, {"dst": copied, "src": tensor})
    return copied


def has_engine_start(tensor: NkiTensor) -> bool:
    """Whether engines can access the partitions: contiguous, from an allowed start."""
    step, count = tensor.dims[0]
    start = tensor.partition
    if count > 1 and step not in (0, 1):
        return False
    return not isinstance(start, int) or start == 0 or start_partition_holds(tensor.pattern)


def broadcast_view(tensor: NkiTensor, shape: tuple[int, ...], frame: Frame) -> NkiTensor:
    """The tensor broadcast to a shape as in NumPy; along the partitions it is copied."""
    if tensor.shape == shape:
        return tensor
    view = tensor
    missing = len(shape) - view.ndim
    own = (1,) * missing + view.shape
    if missing > 0 and all(a in (1, b) for a, b in zip(own, shape, strict=True)):
        for _ in range(missing):  # the partitions become a free dimension, as in NumPy
            view = _prepend_axis(view)
    while view.ndim < len(shape):
        view = view.expand_dim(1)
    for axis in range(1, len(shape)):
        if view.shape[axis] == 1 and shape[axis] > 1:
            view = view.broadcast(axis, shape[axis])
    if view.shape[1:] != shape[1:] or view.shape[0] not in (1, shape[0]):
        raise DestinationTooSmall(dst=shape, src=tensor.shape, loc=caller())
    return view if view.shape[0] == shape[0] else broadcast_partitions(frame, view, shape[0])


def _prepend_axis(view: NkiTensor) -> NkiTensor:
    """The single partition of a tile as a free dimension behind a new partition axis."""
    if view.shape[0] != 1:
        raise UnsupportedHere(
            what=f"a tile of shape {view.shape} as a row",
            why="only one partition repeats as a row; index one",
            loc=caller(),
        )
    return view.expand_dim(1)


def broadcast_partitions(frame: Frame, tensor: NkiTensor, partitions: int) -> NkiTensor:
    """A new tile with one partition copied to `partitions`."""
    tile = temporary_tile(frame, (partitions, *tensor.shape[1:]), tensor.dtype)
    broadcast_partitions_into(frame, tile, tensor)
    return tile


def broadcast_partitions_into(frame: Frame, dst: NkiTensor, tensor: NkiTensor) -> None:
    """Copy one partition to all partitions of a tile in SBUF of the same dtype."""
    whole = ensure_in_sbuf(frame, tensor)
    repeated = whole._derive(((0, dst.shape[0]), *whole.dims[1:]))
    issue(frame.session, "dma_copy", DmaCopy, {"dst": dst, "src": repeated})


def broadcast_operand(
    frame: Frame, tensor: NkiTensor, shape: tuple[int, ...], other: NkiTensor
) -> NkiTensor:
    """An operand broadcast to a shape, beside another operand of a Vector instruction.

    A row of float32 that fits in a PSUM bank is spread by a product with ones, as NKI does
    (Trainium/Inferentia2 guide): Vector reads one operand in PSUM and one in SBUF together.
    """
    arch = frame.session.arch
    is_row = tensor.shape[0] == 1 < shape[0] and len(tensor.shape) == len(shape) == 2
    if (
        not is_row
        or tensor.stored is not F32
        or tensor.tile.memory is not Memory.SBUF
        or other.tile.memory is not Memory.SBUF
        or shape[0] > arch.stationary_columns
        or not 1 < tensor.shape[1] == shape[1] <= arch.psum_bank_bytes // tensor.stored.bytes
    ):
        return broadcast_view(tensor, shape, frame)
    ones = frame.ones(lambda: _row_of_ones(frame, arch.stationary_columns))
    spread = temporary_tile(frame, shape, tensor.dtype, PSUM)
    nisa.nc_matmul(
        dst=spread, stationary=ones.slice(1, 0, shape[0]), moving=tensor, accumulate=False,
        is_stationary_onezero=True,
    )  # fmt: skip
    return spread


def _row_of_ones(frame: Frame, columns: int) -> NkiTensor:
    row = temporary_tile(frame, (1, columns), "float32")
    fill(row, 1.0)
    return row


def ensure_in_sbuf(frame: Frame, tensor: NkiTensor) -> NkiTensor:
    """The tensor, or a copy in SBUF of one in PSUM."""
    if tensor.tile.memory is not Memory.PSUM:
        return tensor
    copied = temporary_tile(frame, tensor.shape, tensor.dtype)
    issue(frame.session, "tensor_copy", TensorCopy, {"dst": copied, "src": tensor})
    return copied


def check_partitions(function: str, **operands: NkiTensor) -> None:
    """PartitionMismatch when operands span different numbers of partitions."""
    if len({each.shape[0] for each in operands.values()}) > 1:
        text = ", ".join(f"{name}{list(each.shape)}" for name, each in operands.items())
        raise PartitionMismatch(operands=text, function=function, loc=caller())


# --- results -------------------------------------------------------------------------------------


def defer(
    function: str,
    shape: tuple[int, ...],
    dtype: str,
    write: Write,
    *,
    mask: Any = None,
    masked: tuple[int, ...] | None = None,
    buffer: Buffer = sbuf,
    regions: tuple[MemoryRegion, ...] = ON_CHIP,
    accumulate: Callable[[Tensor], None] | None = None,
    by_dma: bool = False,
    partial: MaskedPart | None = None,
    skips: bool = False,
    splits: bool = False,
    of_number: float | None = None,
) -> Tensor:
    """A result of this shape whose instruction is deferred until its destination is known.

    `write(destination, cut)` issues it for the part of the destination that the mask leaves and
    cuts operands to the same part. The mask is one of `masked`, by default the shape itself.
    `partial` is what `write` itself writes of the result, by default all; `skips` says that the
    data decide. `splits` says that it computes element by element, so that a tile of many
    dimensions can be written in parts. `of_number` is what a fill writes.
    """
    write = _split_free_dimension(write) if splits and len(shape) > MOST_DIMS else write
    frame = require_frame(function)
    frame.flush()
    name = frame.unique_name("", function.rpartition(".")[2])
    storage = Storage(frame, name, buffer, dtype, (), shape)
    part = masked_part(mask, masked or shape)
    is_partial = skips or (partial is not None and not partial.is_whole)

    def emit(destination: Tensor, is_fresh: bool) -> None:
        write_part(
            destination, part, write, is_fresh=is_fresh, by_dma=by_dma, is_partial=is_partial
        )

    written = None if skips else part if partial is None or part.is_empty else partial
    storage.deferred = DeferredWrite(
        emit, regions, accumulate, written, by_dma, of_number if part.is_whole else None
    )
    result = storage.whole = Tensor.of_storage(storage)
    frame.pending = storage
    return result


def _split_free_dimension(write: Write) -> Write:
    """Write a tile of too many dimensions one index of its first free dimension at a time."""

    def parts(dst: NkiTensor, cut: CutOperand) -> None:
        if dst.ndim <= MOST_DIMS:
            write(dst, cut)
            return
        for number in range(dst.shape[1]):
            parts(dst.select(1, number), _select_index(cut, dst.ndim, number))

    return parts


def _select_index(cut: CutOperand, rank: int, number: int) -> CutOperand:
    def chosen(tensor: NkiTensor) -> NkiTensor:
        own = cut(tensor)
        if own.ndim != rank:
            return own
        return own.select(1, number if own.shape[1] > 1 else 0)

    return chosen


def write_part(
    destination: Tensor,
    part: MaskedPart,
    write: Write,
    *,
    is_fresh: bool = False,
    by_dma: bool = False,
    is_partial: bool = False,
) -> None:
    """Issue the write of a part of a destination; other elements keep their contents."""
    if part.is_empty:
        return
    if part.rest is not None and not is_fresh:
        _write_selected(destination, part, write)
        return
    box = part.box if len(part.shape) == destination.ndim else None
    if box is not None and part.shape != destination.shape:
        counts = destination.shape
        box = tuple((0, n) if n == 1 else b for n, b in zip(counts, box, strict=True))
    place = destination.write_view(box, is_partial=is_partial)
    if by_dma or has_engine_start(place):
        write(place, part.cut)
        return
    frame = destination.frame
    tile = temporary_tile(frame, place.shape, place.dtype)
    write(tile, part.cut)
    issue(frame.session, "dma_copy", DmaCopy, {"dst": place, "src": tile})


def _write_selected(destination: Tensor, part: MaskedPart, write: Write) -> None:
    """Compute the whole box in a new tile and copy the elements where the mask's rest holds."""
    frame = destination.frame
    place = destination.write_view(part.box, is_partial=True)
    tile = temporary_tile(frame, place.shape, place.dtype)
    write(tile, part.cut)
    fields = {"dst": place, "src": tile, "predicate": mask_predicate(frame, part, place.shape)}
    issue(frame.session, "tensor_copy_predicated", TensorCopyPredicated, fields)


def mask_predicate(frame: Frame, part: MaskedPart, shape: tuple[int, ...]) -> NkiTensor:
    """A tile that is 1 where the rest of a mask holds in its box, else 0."""
    assert part.rest is not None
    firsts = [first for first, _ in part.box or ((0, 0),) * len(shape)]
    first, *others = (
        _conjunction_predicate(frame, conditions, firsts, shape)
        for conditions in part.rest.alternatives
    )
    for each in others:
        binary_step(first, first, each, "maximum")
    return first


def _conjunction_predicate(
    frame: Frame, conditions: Conditions, firsts: list[int], shape: tuple[int, ...]
) -> NkiTensor:
    held = temporary_tile(frame, shape, "uint8")
    issue(frame.session, "memset", Memset, {"dst": held, "value": 1})
    for condition in conditions:
        moved = sum(step * first for step, first in zip(condition.steps, firsts, strict=True))
        select_affine(held, Index(shape, condition.steps, condition.start + moved), held, 0)
    return held


def select_affine(dst: NkiTensor, condition: Index, data: NkiTensor, otherwise: float) -> None:
    """dst = data where the condition is not negative, `otherwise` elsewhere."""
    pattern = [
        [step, count] for step, count in zip(condition.steps[1:], dst.shape[1:], strict=True)
    ]
    nisa.affine_select(
        dst=dst, pattern=pattern, channel_multiplier=condition.steps[0], on_true_tile=data,
        on_false_value=otherwise, cmp_op="greater_equal", offset=condition.start,
    )  # fmt: skip


# --- assignment ----------------------------------------------------------------------------------


def assign(slot: Tensor, value: Any, mask: Any = None) -> None:
    """slot[...] = value: a deferred instruction gets the slot as its destination."""
    if not slot.is_on_chip:
        raise WrongMemory(
            name="destination", function="assignment", wanted="psum|sbuf", found="hbm", loc=caller()
        )
    number = _number_of(slot, value) if mask is None else None
    if hasattr(value, "assign_to"):
        value.assign_to(slot)
    elif isinstance(value, Tensor) and (number is None or value.storage.deferred is not None):
        _assign_tile(slot, value, mask)
    else:
        chosen = np.asarray(value).item() if number is None else number
        write_part(slot, masked_part(mask, slot.shape), lambda dst, cut: fill(dst, chosen))
    if number == 0 and slot.region is PSUM:
        slot.restart_sums()


def _number_of(slot: Tensor, value: Any) -> float | None:
    """The number that every element of a slot is given, if it is one."""
    if isinstance(value, Tensor):
        is_same = value.is_on_chip and value.shape == slot.shape == value.storage.shape
        return value.storage.initial_value(value.block) if is_same else None
    return None if hasattr(value, "assign_to") else np.asarray(value).item()


def _assign_tile(slot: Tensor, value: Tensor, mask: Any) -> None:
    offer = value.storage.deferred
    if mask is None and _forward_to_slot(slot, value):
        return
    part = masked_part(mask, slot.shape)
    if offer is None or (offer.part is not None and offer.part.is_whole):
        copy_into(slot, value, part)
        return
    written = _written_part(slot, value, offer.part, part)
    if offer.by_dma and written.rest is not None:
        value.storage.fill = 0.0
    copy_into(slot, value, written)


def _forward_to_slot(slot: Tensor, value: Tensor) -> bool:
    """Make the slot the destination of a deferred value; False when it cannot be."""
    storage = value.storage
    offer = storage.deferred
    if offer is None or storage is slot.storage or slot.region not in offer.regions:
        return False
    exact = slot.dtype_name == value.dtype_name or value.dtype_name == "float32"
    if slot.shape != storage.shape or value.shape != storage.shape or not exact:
        return False
    storage.take_deferred()
    offer.write(slot, False)
    storage.forwarded_to = slot
    slot.storage.forwarded_tensors.add(storage)
    return True


def _written_part(
    slot: Tensor, value: Tensor, written: MaskedPart | None, chosen: MaskedPart
) -> MaskedPart:
    """What a slot takes of a value whose instruction writes a part of it; the rest stays."""
    is_all = chosen.is_whole and value.shape == value.storage.shape
    if written is None or not is_all or len(written.shape) != slot.ndim:
        what = f"{value.dtype_name}{list(value.shape)} to {slot.dtype_name}{list(slot.shape)}"
        raise PartialAssignment(what=what, loc=caller())
    return written


def copy_into(slot: Tensor, value: Tensor, part: MaskedPart | None = None) -> None:
    """Copy a tile to a slot, or a part of one, of a shape that it broadcasts to."""
    if not value.is_on_chip:
        raise WrongMemory(
            name="value", function="assignment", wanted="psum|sbuf", found="hbm", loc=caller()
        )
    frame = slot.frame
    if not value.size:
        return
    source = align_partition_start(frame, value.read_view())
    if source.size > slot.size:
        raise DestinationTooSmall(dst=slot.shape, src=source.shape, loc=caller())
    if source.shape[0] == slot.shape[0] and source.size == slot.size:
        shaped = source if source.shape == slot.shape else source.reshape(slot.shape)
    else:
        shaped = broadcast_view(source, slot.shape, frame)

    def write(dst: NkiTensor, cut: CutOperand) -> None:
        copy_tile(frame, dst, align_partition_start(frame, cut(shaped)))

    write_part(slot, part or MaskedPart(slot.shape), _split_free_dimension(write))


def copy_tile(frame: Frame, dst: NkiTensor, src: NkiTensor) -> None:
    """Copy by an engine."""
    issue(frame.session, "tensor_copy", TensorCopy, {"dst": dst, "src": src})


def fill(dst: NkiTensor, value: float) -> None:
    """Write one number to a tile; truth values to tiles of truth values."""
    kind = dst.stored
    number: float = value if kind.is_float else int(value)
    nisa.memset(dst=dst, value=number)


def transfer(frame: Frame, dst: NkiTensor, src: NkiTensor, **options: Any) -> None:
    """Copy by DMA; PSUM goes through SBUF, tensors of too many dimensions in several transfers."""
    source = ensure_in_sbuf(frame, src)
    if max(dst.ndim, source.ndim) > MOST_DIMS and dst.shape == source.shape:
        dst, source = _merge_free_dimensions(dst, source)
        if dst.ndim > MOST_DIMS:
            for number in range(dst.shape[1]):
                transfer(frame, dst.select(1, number), source.select(1, number), **options)
            return
    dma_copy(dst, source, **options)


def _merge_free_dimensions(one: NkiTensor, two: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """Both tensors with free dimensions merged where both are contiguous across them."""
    pairs: list[list[tuple[int, int]]] = []
    for first, second in zip(one.dims, two.dims, strict=True):
        count = first[1]
        if len(pairs) > 1 and all(
            outer[0] == inner[0] * count
            for outer, inner in zip(pairs[-1], (first, second), strict=True)
        ):
            pairs[-1] = [
                (inner[0], outer[1] * count)
                for outer, inner in zip(pairs[-1], (first, second), strict=True)
            ]
        else:
            pairs.append([first, second])
    return one._derive(tuple(p[0] for p in pairs)), two._derive(tuple(p[1] for p in pairs))

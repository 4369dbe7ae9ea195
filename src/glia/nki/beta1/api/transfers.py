"""DMA functions of Beta 1's nki.isa."""

from __future__ import annotations

from typing import Any

from glia.isa.instructions.dma_transpose import AXES
from glia.nki.beta1.api.instructions import core_argument
from glia.nki.beta1.api.issue import SBUF, defer, ensure_in_sbuf, transfer
from glia.nki.beta1.api.load_store import add_rows, tile_shape, transposed_transfer
from glia.nki.beta1.errors import IndirectNotSupported, UnsupportedHere
from glia.nki.beta1.run.frame import Frame, require_frame
from glia.nki.beta1.tensors.dtypes import to_dtype_name
from glia.nki.beta1.tensors.masked_part import MaskedPart, boxed_part, masked_part
from glia.nki.names.enums import dge_mode, oob_mode
from glia.nki.names.operators import operator_name
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor


def dma_copy(
    *, dst: Any, src: Any, mask: Any = None, dst_rmw_op: Any = None,
    oob_mode: Any = oob_mode.error, dge_mode: Any = dge_mode.unknown,
) -> None:  # fmt: skip
    """Copy between memories, rows chosen by indices in memory if given; dst_rmw_op adds to dst.

    IndexError for an index out of bounds, unless oob_mode.skip leaves its row out.
    """
    frame = require_frame("nki.isa.dma_copy")
    modes = {
        "oob_mode": core_argument("dma_copy", "oob_mode", oob_mode),
        "dge_mode": core_argument("dma_copy", "dge_mode", dge_mode),
    }
    shape = dst.shape if dst.ndim >= src.ndim else src.shape
    for box in masked_part(mask, shape).boxes():
        if dst_rmw_op is not None:
            _add(frame, dst, src, box, dst_rmw_op, modes)
        else:
            source = src.read_view(box)
            place = dst.write_view(box, is_partial=_skips(modes))
            transfer(frame, *_match_shapes(place, source), **modes)


def _match_shapes(dst: NkiTensor, src: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """Both in the shape of the one on chip or indexed: only element counts have to agree."""
    if dst.shape == src.shape or dst.indirection is not None or src.indirection is not None:
        return dst, src
    if dst.is_on_chip:
        return dst, src if src.is_on_chip else src.reshape(dst.shape)
    return dst.reshape(src.shape), src


def _add(frame: Frame, dst: Any, src: Any, box: Any, op: Any, modes: dict[str, Any]) -> None:
    if operator_name(op) != "add":
        raise UnsupportedHere(
            what=f"nki.isa.dma_copy with dst_rmw_op={op!r}",
            why="transfers add only; load, compute and store instead",
            loc=caller(),
        )
    source = ensure_in_sbuf(frame, src.read_view(box))
    add_rows(frame, dst, box, source, skips=_skips(modes))


def _skips(modes: dict[str, Any]) -> bool:
    return modes["oob_mode"] is oob_mode.skip


def dma_transpose(
    src: Any, *, axes: Any = None, mask: Any = None, dtype: Any = None,
    dge_mode: Any = dge_mode.unknown,
) -> Any:  # fmt: skip
    """A tile in SBUF with a tensor of two to four dimensions in another order."""
    frame = require_frame("nki.isa.dma_transpose")
    mode = core_argument("dma_transpose", "dge_mode", dge_mode)
    if src.dynamic is not None:
        raise IndirectNotSupported(loc=caller())
    order = AXES.get(src.ndim)
    if order is None or (axes is not None and tuple(axes) != order):
        raise UnsupportedHere(
            what=f"dma_transpose of {src.shape} by axes {axes}",
            why="the orders are (1, 0), (2, 1, 0) and (3, 1, 2, 0)",
            loc=caller(),
        )
    part = boxed_part("nki.isa.dma_transpose", mask, src.shape)
    source = src.read_view(part.box)
    box = tuple(part.box[axis] for axis in order) if part.box else ()
    name = to_dtype_name(dtype) if dtype is not None else src.dtype_name

    def write(dst: NkiTensor, _: Any) -> None:
        place = dst
        for axis, (first, end) in enumerate(box):
            place = place.slice(axis, first, end)
        transposed_transfer(frame, place, ensure_in_sbuf(frame, source), mode)

    shape = tile_shape(frame, tuple(src.shape[axis] for axis in order))
    empty = False if part.is_empty else None
    function = "nki.isa.dma_transpose"
    return defer(
        function, shape, name, write, mask=empty, regions=(SBUF,), by_dma=True,
        partial=MaskedPart(shape, box or None),
    )  # fmt: skip

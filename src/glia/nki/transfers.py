"""The transfers of nki.isa: copies between memories, also of rows that indices choose."""

from __future__ import annotations

import inspect
import math
from typing import Any, NoReturn

import numpy as np

from glia import isa
from glia.base.dtype import S32, U32
from glia.isa.operand import Memory
from glia.nki.enums import dge_mode, engine, oob_mode
from glia.nki.errors import NotInNki
from glia.nki.functions import Binder, describe, dressed
from glia.nki.issue import issue, refuse, refuse_index
from glia.nki.objects import NkiInstruction
from glia.nki.session import Session, caller, current
from glia.nki.tensor import NkiTensor

Parameter = inspect.Parameter
_KIND = Parameter.POSITIONAL_OR_KEYWORD


def _signature(**parameters: tuple[Any, str]) -> inspect.Signature:
    """A signature of name=(default, type)."""
    return inspect.Signature(
        [Parameter(n, _KIND, default=d, annotation=t) for n, (d, t) in parameters.items()],
        return_annotation="NkiInstruction",
    )


_NONE = Parameter.empty
_COMMON: dict[str, tuple[Any, str]] = {
    "priority": (None, "int | None"),
    "oob_mode": (oob_mode.error, "oob_mode"),
    "dge_mode": (dge_mode.unknown, "dge_mode"),
    "engine": (engine.unknown, "engine"),
    "name": (None, "str | None"),
}
_TENSOR = (_NONE, "NkiTensor")
_COPY = _signature(dst=_TENSOR, src=_TENSOR, **_COMMON)
_bind_copy = Binder("nki.isa.dma_copy", _COPY)


def _dma_copy(*args: Any, **kwargs: Any) -> NkiInstruction:
    session = current("nki.isa.dma_copy")
    given = _bind_copy(args, kwargs)
    dst, src, skips = given["dst"], given["src"], given["oob_mode"] is oob_mode.skip
    chosen = given["engine"]
    _check_copy(given)
    if _is_gather(src):
        return _gather(session, dst, src, skips)
    if _is_gather(dst):
        return _scatter(session, "dma_copy", dst, src, skips)
    return issue(session, "dma_copy", isa.DmaCopy, {"dst": dst, "src": src}, chosen, skips=skips)


dma_copy = dressed(_dma_copy, "dma_copy", "nki.isa", _COPY, describe(isa.DmaCopy))


def _check_copy(given: dict[str, Any]) -> None:
    for name in ("dst", "src"):
        if not isinstance(given[name], NkiTensor):
            _refuse_type(f"dma_copy with {name} of type {type(given[name]).__name__}")
        if given[name].tile.memory is Memory.PSUM:
            refuse("dma_copy", f"dma_copy {name} must be in HBM or SBUF; here it is in PSUM")
    for name in ("oob_mode", "dge_mode", "engine"):
        if not isinstance(given[name], type(_COMMON[name][0])):
            _refuse_type(f"dma_copy with {name}={given[name]!r}")
    if given["dge_mode"] is dge_mode.hwdge and given["dst"].dtype != given["src"].dtype:
        dtypes = f"dst is {given['dst'].dtype}, src is {given['src'].dtype}"
        refuse("dma_copy", f"dge_mode.hwdge does not convert dtypes; here {dtypes}")


def _is_gather(tensor: NkiTensor) -> bool:
    return tensor.indirection is not None and tensor.indirection.is_vector


def _gather(session: Session, dst: NkiTensor, src: NkiTensor, skips: bool) -> NkiInstruction:
    """Rows of src by index, one to each row of dst."""
    table = _table(src)
    indices = _indices(session, src, skips)
    rows = dst if dst.shape[0] == src.shape[0] else dst.reshape((src.shape[0], -1))
    fields = {
        "dst": rows, "src": table, "indices": indices,
        "out_of_bounds": "skip" if skips else "error",
    }  # fmt: skip
    return issue(session, "dma_copy", isa.DmaGather, fields, engine.gpsimd, queue="gather")


def _scatter(
    session: Session, function: str, dst: NkiTensor, src: NkiTensor, skips: bool, combine: str = ""
) -> NkiInstruction:
    """Rows of dst by index, one for each row of src."""
    table = _table(dst)
    indices = _indices(session, dst, skips)
    rows = src if src.shape[0] == dst.shape[0] else src.reshape((dst.shape[0], -1))
    fields = {
        "dst": table, "src": rows, "indices": indices, "combine": combine,
        "out_of_bounds": "skip" if skips else "error",
    }  # fmt: skip
    return issue(session, function, isa.DmaScatter, fields, engine.gpsimd, queue="scatter")


def _table(tensor: NkiTensor) -> NkiTensor:
    """All rows that an index may name, first."""
    indirection = tensor.indirection
    assert indirection is not None
    dims = ((indirection.step, _rows_inside(tensor)), *tensor.dims[1:])
    if len(dims) == 1:
        dims = (*dims, (1, 1))
    table = tensor._with(dims)
    table.indirection = None
    return table


def _rows_inside(tensor: NkiTensor) -> int:
    """How many rows lie in the storage: as many as the dimension has, unless rows overhang."""
    indirection = tensor.indirection
    assert indirection is not None
    elements = tensor.tile.bytes // tensor.stored.bytes
    reach = sum(step * (count - 1) for step, count in tensor.dims[1:])
    room = (elements - 1 - tensor.offset - reach) // indirection.step + 1
    return max(1, min(indirection.rows, room))


def _indices(session: Session, tensor: NkiTensor, skips: bool) -> NkiTensor:
    """The index of each row as int32, checked now where it is known."""
    indirection = tensor.indirection
    assert indirection is not None
    index = indirection.index
    if index.stored is U32:
        index = index.view("int32")
    if index.stored is not S32:
        refuse("dma_copy", f"vector_offset must be int32 or uint32; here it is {index.dtype}")
    if not skips:
        held = session.read(index.pattern)
        wrong = np.flatnonzero((held < 0) | (held >= indirection.rows)) if held is not None else ()
        if held is not None and len(wrong):
            refuse_index(tensor, int(held.reshape(-1)[wrong[0]]), caller())
    count = tensor.shape[0]
    if index.size != count:
        refuse("dma_copy", f"vector_offset has {index.size} indices for {count} rows")
    return index if index.shape == (count, 1) or not index.is_on_chip else index.reshape((count, 1))


# --- transposes --------------------------------------------------------------------------------

_TRANSPOSE = _signature(
    dst=_TENSOR,
    src=_TENSOR,
    axes=(None, "tuple[int, ...] | None"),
    priority=_COMMON["priority"],
    dge_mode=_COMMON["dge_mode"],
    oob_mode=_COMMON["oob_mode"],
    name=_COMMON["name"],
)
_bind_transpose = Binder("nki.isa.dma_transpose", _TRANSPOSE)
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _dma_transpose(*args: Any, **kwargs: Any) -> NkiInstruction:
    session = current("nki.isa.dma_transpose")
    given = _bind_transpose(args, kwargs)
    dst, src = given["dst"], given["src"]
    axes = _AXES.get(src.ndim)
    if axes is None or tuple(given["axes"] or axes) != axes:
        refuse("dma_transpose", f"axes must be one of {', '.join(map(str, _AXES.values()))}")
    if dst.ndim != src.ndim:
        refuse("dma_transpose", f"dst must have the rank of src; here {dst.shape}, {src.shape}")
    if dst.dtype != src.dtype:
        refuse("dma_transpose", f"dst must have the dtype of src; here {dst.dtype}, {src.dtype}")
    wanted = tuple(src.shape[axis] for axis in axes)
    if math.prod(dst.shape) != math.prod(wanted) or dst.shape != wanted:
        refuse("dma_transpose", f"dst must have the shape {wanted}; here {dst.shape}")
    turned = src._with(tuple(src.dims[axis] for axis in axes))
    return _issue_turned(session, dst, turned)


def _issue_turned(session: Session, dst: NkiTensor, src: NkiTensor) -> NkiInstruction:
    """A transfer whose source walks through its memory in another order."""
    pattern = src.pattern
    if pattern.memory is not Memory.HBM:
        refuse("dma_transpose", "src must be in HBM")
    return issue(session, "dma_transpose", isa.DmaCopy, {"dst": dst, "src": src})


dma_transpose = dressed(
    _dma_transpose, "dma_transpose", "nki.isa", _TRANSPOSE,
    "Write src with its dimensions in another order: (1, 0), (2, 1, 0) or (3, 1, 2, 0).",
)  # fmt: skip


def _refuse_type(feature: str) -> NoReturn:
    raise NotInNki(feature=f"nki.isa.{feature}", loc=caller())

"""The transfers of nki.isa: DMA copies, gathers, scatters, transposes and sums."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any, NoReturn

import numpy as np

from glia.isa.instructions.dma import DmaCopy, DmaGather, DmaScatter
from glia.isa.instructions.dma_transpose import DmaCompute, DmaGatherTranspose, DmaTranspose
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.nki.issue.call_cache import IssueFunction, accept_name, memoize_calls
from glia.nki.issue.functions import REQUIRED, Binder, describe, with_metadata
from glia.nki.issue.instruction import Arguments, issue, refuse, refuse_index
from glia.nki.names.enums import dge_mode, engine, oob_mode
from glia.nki.names.errors import NotInNki
from glia.nki.names.language_errors import advise
from glia.nki.names.operators import operator_name
from glia.nki.session.session import Session, caller, current, value_text
from glia.nki.tensors.dynamic_offsets import Indirection
from glia.nki.tensors.nki_object import NkiInstruction
from glia.nki.tensors.nki_tensor import NkiTensor

_TENSOR = (REQUIRED, "NkiTensor")
_PRIORITY = (None, "int | None")
_OOB = (oob_mode.error, "oob_mode")
_DGE = (dge_mode.unknown, "dge_mode")
_NAME = (None, "str | None")


def _signature(**parameters: tuple[Any, str]) -> inspect.Signature:
    """A signature of name=(default, type)."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(name, kind, default=default, annotation=annotation)
            for name, (default, annotation) in parameters.items()
        ],
        return_annotation="NkiInstruction",
    )


def _require_types(function: str, given: Arguments, **kinds: Any) -> None:
    """NotInNki for an argument of another type; values of enumerations become members."""
    for name, kind in kinds.items():
        value = given[name]
        is_enum = isinstance(kind, type) and issubclass(kind, Enum)
        if isinstance(value, int) and is_enum and value in {m.value for m in kind}:
            given[name] = kind(value)
        elif not isinstance(value, kind):
            _refuse_type(f"{function} with {name}={value_text(given[name])}")


def _require_numbers(function: str, name: str, values: Any, kind: Any) -> None:
    """NotInNki unless the values are None, or numbers of a kind in a list or tuple."""
    is_listed = isinstance(values, list | tuple) and all(isinstance(v, kind) for v in values)
    if values is not None and not is_listed:
        _refuse_type(f"{function} with {name}={value_text(values)}")


def _refuse_type(feature: str) -> NoReturn:
    raise NotInNki(feature=f"nki.isa.{feature}", loc=caller())


# --- copies ------------------------------------------------------------------------------------

_COPY = _signature(
    dst=_TENSOR, src=_TENSOR, priority=_PRIORITY, oob_mode=_OOB, dge_mode=_DGE,
    engine=(engine.unknown, "engine"), name=_NAME,
)  # fmt: skip
_bind_copy = Binder("nki.isa.dma_copy", _COPY)


def _dma_copy(args: tuple[Any, ...], kwargs: Arguments) -> NkiInstruction:
    session = current("nki.isa.dma_copy")
    earlier = {"dst_rmw_op": None, "unique_indices": True}  # of release 0.2
    earlier |= {name: kwargs[name] for name in earlier.keys() & kwargs.keys()}
    given = _bind_copy(args, {k: v for k, v in kwargs.items() if k not in earlier})
    _require_types(
        "dma_copy", given,
        dst=NkiTensor, src=NkiTensor, oob_mode=oob_mode, dge_mode=dge_mode, engine=engine,
    )  # fmt: skip
    dst, src, skips = given["dst"], given["src"], given["oob_mode"] is oob_mode.skip
    for name, tensor in (("dst", dst), ("src", src)):
        if tensor.tile.memory is Memory.PSUM:
            cure = "copy it to SBUF first" if name == "src" else "copy to SBUF, and from there"
            rule = f"dma_copy {name} must be in HBM or SBUF; here it is in PSUM"
            refuse("dma_copy", f"{rule}\n  cure: {cure}, with tensor_copy")
    how = {"dge_mode": given["dge_mode"].name, "priority": given["priority"]}
    if earlier["dst_rmw_op"] is not None:
        advise("dst_rmw_op= is gone since NKI 0.3: call nki.isa.dma_compute", caller())
        return _add(session, dst, src, earlier, skips)
    if is_row_gather(src):
        return _gather(session, "dma_copy", dst, src, skips, how)
    if is_row_gather(dst):
        return _scatter(session, "dma_copy", dst, src, skips, how)
    chosen = given["engine"]
    if given["dge_mode"] is dge_mode.swdge and chosen is engine.unknown:
        chosen = engine.gpsimd
    fields = {"dst": dst, "src": src, **how}
    return issue(session, "dma_copy", DmaCopy, fields, chosen, skips=skips)


def _add(
    session: Session, dst: NkiTensor, src: NkiTensor, earlier: Arguments, skips: bool
) -> NkiInstruction:
    """Issue dst += src, release 0.2's dst_rmw_op; repeated indices accumulate."""
    if operator_name(earlier["dst_rmw_op"]) != "add":
        refuse("dma_copy", "dma_copy dst_rmw_op must be nl.add")
    if is_row_gather(src):
        return _gather(session, "dma_copy", dst, src, skips, {"combine": "add"})
    if is_row_gather(dst):
        how = {"combine": "add", "unique_indices": bool(earlier["unique_indices"])}
        return _scatter(session, "dma_copy", dst, src, skips, how)
    fields = {"dst": dst, "srcs": [dst, src], "reduce_op": "add"}
    return issue(session, "dma_copy", DmaCompute, fields)


_copy = memoize_calls(IssueFunction(_dma_copy, tuple(_COPY.parameters), {}))
dma_copy = with_metadata(_copy, "dma_copy", "nki.isa", _COPY, describe(DmaCopy))


# --- gathers and scatters of rows ----------------------------------------------------------------


def is_row_gather(tensor: NkiTensor) -> bool:
    """Whether a vector of indices selects the rows of the tensor, in HBM."""
    indirection = tensor.indirection
    return indirection is not None and indirection.is_vector and not tensor.is_on_chip


def _gather(
    session: Session, function: str, dst: NkiTensor, src: NkiTensor, skips: bool, how: Arguments
) -> NkiInstruction:
    """Gather rows of src by index, one to each row of dst."""
    rows = dst if dst.shape[0] == src.shape[0] else dst.reshape((src.shape[0], -1))
    fields = {"dst": rows, "src": _row_table(src), "indices": _indices(function, src), **how}
    return _issue_indexed(session, function, DmaGather, fields, src, skips)


def _scatter(
    session: Session, function: str, dst: NkiTensor, src: NkiTensor, skips: bool, how: Arguments
) -> NkiInstruction:
    """Scatter the rows of src to the rows of dst given by indices."""
    rows = src if src.shape[0] == dst.shape[0] else src.reshape((dst.shape[0], -1))
    fields = {"dst": _row_table(dst), "src": rows, "indices": _indices(function, dst), **how}
    return _issue_indexed(session, function, DmaScatter, fields, dst, skips)


def _issue_indexed(
    session: Session,
    function: str,
    kind: type[Instr],
    fields: Arguments,
    indexed: NkiTensor,
    skips: bool,
) -> NkiInstruction:
    if not skips:
        _check_indices(session, indexed, fields["indices"])
    fields["out_of_bounds"] = "skip" if skips else "error"
    queue = "scatter" if kind is DmaScatter else "gather"
    return issue(session, function, kind, fields, engine.gpsimd, queue=queue)


def _row_table(tensor: NkiTensor) -> NkiTensor:
    """The view of all rows that an index may select, as dimension 0."""
    indirection = _indirection_of(tensor)
    dims = ((indirection.step, _rows_in_storage(tensor)), *tensor.dims[1:])
    table = tensor._derive(dims if len(dims) > 1 else (*dims, (1, 1)))
    table.indirection = None
    return table


def _rows_in_storage(tensor: NkiTensor) -> int:
    """How many rows lie wholly in the storage, at most the extent of the indexed dimension."""
    indirection = _indirection_of(tensor)
    elements = tensor.tile.bytes // tensor.stored.bytes
    reach = sum(step * (count - 1) for step, count in tensor.dims[1:])
    fitting = (elements - 1 - tensor.offset - reach) // indirection.step + 1
    return max(1, min(indirection.rows, fitting))


def _indices(function: str, tensor: NkiTensor) -> NkiTensor:
    """The indices of a gather or scatter, as [rows, 1]."""
    index, count = _indirection_of(tensor).index, tensor.shape[0]
    if index.size != count:
        refuse(function, f"{function} vector_offset has {index.size} indices for {count} rows")
    return index if index.shape == (count, 1) else index.reshape((count, 1))


def _check_indices(session: Session, tensor: NkiTensor, index: NkiTensor) -> None:
    """IndexNotInTable when the current value of an index is out of bounds."""
    held = session.read(index.pattern)
    if held is None:
        return
    wrong = held[(held < 0) | (held >= _indirection_of(tensor).rows)]
    if wrong.size:
        refuse_index(tensor, int(np.ravel(wrong)[0]), caller())


def _indirection_of(tensor: NkiTensor) -> Indirection:
    assert tensor.indirection is not None
    return tensor.indirection


# --- transposes --------------------------------------------------------------------------------

_TRANSPOSE = _signature(
    dst=_TENSOR, src=_TENSOR, axes=(None, "tuple[int, ...] | None"), priority=_PRIORITY,
    dge_mode=_DGE, oob_mode=_OOB, name=_NAME,
)  # fmt: skip
_bind_transpose = Binder("nki.isa.dma_transpose", _TRANSPOSE)


def _dma_transpose(args: tuple[Any, ...], kwargs: Arguments) -> NkiInstruction:
    session = current("nki.isa.dma_transpose")
    given = _bind_transpose(args, kwargs)
    _require_types(
        "dma_transpose", given,
        dst=NkiTensor, src=NkiTensor, oob_mode=oob_mode, dge_mode=dge_mode,
    )  # fmt: skip
    _require_numbers("dma_transpose", "axes", given["axes"], int)
    dst, src, skips = given["dst"], given["src"], given["oob_mode"] is oob_mode.skip
    how = {"dge_mode": given["dge_mode"].name, "priority": given["priority"]}
    if is_row_gather(src):
        fields = {"dst": dst, "src": _row_table(src), "indices": _indirection_of(src).index, **how}
        kind = DmaGatherTranspose
        return _issue_indexed(session, "dma_transpose", kind, fields, src, skips)
    if skips and src.indirection is None:
        refuse("dma_transpose", "dma_transpose takes oob_mode.skip only with an indirect src")
    fields = {"dst": dst, "src": src, "axes": tuple(given["axes"] or ()), **how}
    return issue(session, "dma_transpose", DmaTranspose, fields, skips=skips)


_transpose = memoize_calls(IssueFunction(_dma_transpose, tuple(_TRANSPOSE.parameters), {}))
dma_transpose = with_metadata(
    _transpose, "dma_transpose", "nki.isa", _TRANSPOSE, describe(DmaTranspose)
)

# --- sums by DMA -------------------------------------------------------------------------------

_COMPUTE = _signature(
    dst=_TENSOR, srcs=(REQUIRED, "list[NkiTensor]"), reduce_op=(REQUIRED, "Op"),
    scales=(None, "list[float] | None"), unique_indices=(True, "bool"), oob_mode=_OOB, name=_NAME,
)  # fmt: skip
_bind_compute = Binder("nki.isa.dma_compute", _COMPUTE)


def _dma_compute(*args: Any, **kwargs: Any) -> NkiInstruction:
    session = current("nki.isa.dma_compute")
    given = _bind_compute(args, kwargs)
    _require_types("dma_compute", given, dst=NkiTensor, srcs=list | tuple, oob_mode=oob_mode)
    if not all(isinstance(each, NkiTensor) for each in given["srcs"]):
        _refuse_type(f"dma_compute with srcs of {[type(s).__name__ for s in given['srcs']]}")
    reduce_op, scales = given["reduce_op"], given["scales"]
    _require_numbers("dma_compute", "scales", scales, int | float)
    if operator_name(reduce_op) != "add":
        refuse("dma_compute", "dma_compute reduce_op must be nl.add")
    dst, srcs = given["dst"], list(given["srcs"])
    if any(is_row_gather(tensor) for tensor in (dst, *srcs)):
        skips = given["oob_mode"] is oob_mode.skip
        return _add_rows(session, dst, srcs, given["unique_indices"], skips)
    fields = {
        "dst": dst, "srcs": srcs, "reduce_op": "add",
        "scales": tuple(float(scale) for scale in scales or ()),
    }  # fmt: skip
    return issue(session, "dma_compute", DmaCompute, fields)


def _add_rows(
    session: Session, dst: NkiTensor, srcs: list[NkiTensor], is_unique: bool, skips: bool
) -> NkiInstruction:
    """Scatter-add rows to those of dst selected by indices, or gather-add them to dst's rows."""
    name = "dma_compute"
    others = [tensor for tensor in srcs if tensor.tile is not dst.tile]
    if len(srcs) != 2 or len(others) != 1:
        refuse(name, f"{name} with indices takes two sources, one of them its dst")
    if not is_unique:
        refuse(name, f"{name} with indices needs unique_indices=True")
    if is_row_gather(dst):
        how = {"combine": "add", "unique_indices": True}
        return _scatter(session, name, dst, others[0], skips, how)
    return _gather(session, name, dst, others[0], skips, {"combine": "add"})


dma_compute = with_metadata(
    accept_name(_dma_compute), "dma_compute", "nki.isa", _COMPUTE, describe(DmaCompute)
)

"""The functions of Beta 1's nki.isa, which return their results.

Each passes its operands to the function of the same name of the current nki.isa, which is generated
from the declaration of the instruction; only the shape and dtype of results is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from glia.nki import isa as nisa
from glia.nki.beta1.api.elementwise import as_predicate, broadcast_operands
from glia.nki.beta1.api.issue import (
    ON_CHIP,
    PSUM,
    SBUF,
    align_partition_start,
    broadcast_view,
    check_partitions,
    copy_tile,
    defer,
    ensure_in_sbuf,
    fill,
    mask_predicate,
    operand,
    select_affine,
    temporary_tile,
)
from glia.nki.beta1.api.load_store import (
    core_function,
    defer_product,
    ensure_float32,
    tile_shape,
    transpose_on_pe,
)
from glia.nki.beta1.api.reductions import reduction
from glia.nki.beta1.errors import (
    DimensionTooLarge,
    UnsupportedHere,
    UnsupportedMask,
    WrongActivationOperand,
)
from glia.nki.beta1.run.frame import Frame, require_frame
from glia.nki.beta1.tensors.buffers import Buffer, psum, sbuf
from glia.nki.beta1.tensors.dtypes import promote, to_dtype_name
from glia.nki.beta1.tensors.index import Index, Mask
from glia.nki.beta1.tensors.masked_part import MaskedPart, boxed_part, masked_part
from glia.nki.beta1.tensors.storage import DeferredWrite
from glia.nki.beta1.tensors.tensor import Tensor
from glia.nki.issue.transposes import transpose_in_squares
from glia.nki.names import enums
from glia.nki.names.dtypes import fp32
from glia.nki.names.operators import operator_name
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor

Fields = dict[str, Any]
IDLE = enums.reduce_cmd.idle
DOUBLE_ROW = ("double_row", "double_row_gen3")  # one mode, under the names that kernels write
EXACT = (
    "add",
    "subtract",
    "multiply",
    "power",
    "divide",
    "mod",
    "fmod",
)  # on GpSimd where possible
VECTORS = ("operand0", "operand1", "scale", "initial", "bound0", "bound1")  # in float32


def core_argument(function: str, name: str, value: Any) -> Any:
    """An argument as the current nki.isa takes it: core tensors, its enums, operator names."""
    if isinstance(value, Tensor):
        found = operand(function, name, value)
        if name in VECTORS and found.size == found.shape[0] and found.stored.is_float:
            return ensure_float32(value.frame, found)
        return as_predicate(value.frame, found) if name == "predicate" else found
    if isinstance(value, Enum):
        kind = getattr(enums, type(value).__name__, None)
        return kind[value.name] if kind is not None else value
    if isinstance(value, np.generic):
        return value.item()
    if callable(value):
        operator = operator_name(value)
        if operator is None:
            raise UnsupportedHere(
                what=f"{function} with {name}={value!r}",
                why="it is not an operator of nl",
                loc=caller(),
            )
        return operator
    return value


def output_view(value: Any) -> Any:
    """The core tensor of a second result that the caller passed, None without one."""
    return None if value is None else value.write_view()


def defer_instruction(
    name: str, data: Tensor, fields: Fields, *, dtype: Any, mask: Any,
    outputs: Fields | None = None, shape: tuple[int, ...] | None = None,
    regions: tuple[Any, ...] = ON_CHIP, buffer: Buffer = sbuf,
) -> Tensor:  # fmt: skip
    """The deferred result of an instruction, by default of the shape and dtype of `data`."""
    given = {each: core_argument(name, each, value) for each, value in fields.items()}
    given |= {each: output_view(value) for each, value in (outputs or {}).items()}
    function = core_function(name)
    result = to_dtype_name(dtype) if dtype is not None else data.dtype_name

    def write(dst: NkiTensor, cut: Any) -> None:
        own = {k: cut(v) if isinstance(v, NkiTensor) else v for k, v in given.items()}
        function(dst=dst, **own)

    return defer(
        f"nki.isa.{name}", shape or data.shape, result, write, mask=mask, masked=data.shape,
        regions=regions, splits=not outputs and shape is None, buffer=buffer,
    )  # fmt: skip


def issue_in_place(
    name: str, dst: Tensor, fields: Fields, mask: Any, outputs: Fields | None = None,
    *, is_partial: bool = False,
) -> Tensor:  # fmt: skip
    """Issue an instruction that writes the caller's tensor `dst`; returns that."""
    given = {each: core_argument(name, each, value) for each, value in fields.items()}
    given |= {each: output_view(value) for each, value in (outputs or {}).items()}
    part = boxed_part(f"nki.isa.{name}", mask, dst.shape)
    if part.is_empty:
        return dst
    place = dst.write_view(part.box, is_partial=is_partial)
    own = {k: part.cut(v) if isinstance(v, NkiTensor) else v for k, v in given.items()}
    core_function(name)(dst=place, **own)
    return dst


# --- the Tensor Engine -------------------------------------------------------------------------


def nc_matmul(
    stationary: Any, moving: Any, *, is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False, is_transpose: bool = False,
    tile_position: tuple[int, ...] = (), tile_size: tuple[int, ...] = (), mask: Any = None,
    perf_mode: str = "none",
) -> Tensor:  # fmt: skip
    """stationary.T @ moving, a tile in PSUM; `+=` into a tile in PSUM accumulates.

    perf_mode "double_row_gen3" sums over the first free dimension of extent 2 as well.
    """
    frame = require_frame("nki.isa.nc_matmul")
    first = operand("nc_matmul", "stationary", stationary)
    second = operand("nc_matmul", "moving", moving)
    check_partitions("nc_matmul", stationary=first, moving=second)
    if perf_mode in DOUBLE_ROW:
        return _two_row_matmul(frame, first, second)
    if perf_mode not in (None, "none"):
        why = f"the modes are none, {', '.join(DOUBLE_ROW)}"
        raise UnsupportedHere(what=f"nc_matmul with perf_mode={perf_mode!r}", why=why, loc=caller())
    options: Fields = {"is_transpose": is_transpose}
    if tile_size:
        options |= {"tile_position": tuple(tile_position), "tile_size": tuple(tile_size)}
    return defer_product("nki.isa.nc_matmul", frame, first, second, mask, **options)


def _two_row_matmul(frame: Frame, first: NkiTensor, second: NkiTensor) -> Tensor:
    """The sum of both rows' products: one double-row instruction where possible, else two."""
    shape = (first.size // first.shape[0] // 2, second.size // second.shape[0] // 2)
    arch = frame.session.arch
    is_narrow = first.stored.bits == second.stored.bits == 8
    if is_narrow and arch.capabilities.has_double_row and shape[0] == arch.stationary_columns:
        return _double_row_matmul(frame, first, second, shape)
    (write_low, add_low), (_, add_high) = (
        _take_product(frame, first.select(1, n), second.select(1, n)) for n in (0, 1)
    )

    def write(slot: Tensor, is_fresh: bool) -> None:
        write_low(slot, is_fresh)
        add_high(slot)

    def add(slot: Tensor) -> None:
        add_low(slot)
        add_high(slot)

    return _defer_matmul(shape, write, add)


def _take_product(
    frame: Frame, first: NkiTensor, second: NkiTensor
) -> tuple[Callable[[Tensor, bool], None], Callable[[Tensor], None]]:
    """How first.T @ second is written, and how it is accumulated, neither issued yet."""
    deferred, _ = defer_product("nki.isa.nc_matmul", frame, first, second).storage.take_deferred()
    assert deferred is not None and deferred.accumulate is not None
    return deferred.write, deferred.accumulate


def _double_row_matmul(
    frame: Frame, first: NkiTensor, second: NkiTensor, shape: tuple[int, ...]
) -> Tensor:
    """The product of both rows in one instruction of the double-row mode."""

    def multiply(dst: NkiTensor, accumulate: Any) -> None:
        nisa.nc_matmul(
            dst=dst, stationary=first, moving=second, accumulate=accumulate,
            perf_mode=enums.matmul_perf_mode.double_row,
        )  # fmt: skip

    def write(slot: Tensor, is_fresh: bool) -> None:
        multiply(slot.write_view(), False)

    def add(slot: Tensor) -> None:
        dst = slot.write_view(is_sum=True)
        multiply(dst, frame.session.accumulates(dst.pattern, caller()))

    return _defer_matmul(shape, write, add)


def _defer_matmul(
    shape: tuple[int, ...], write: Callable[[Tensor, bool], None],
    accumulate: Callable[[Tensor], None],
) -> Tensor:  # fmt: skip
    """A float32 tile in PSUM whose instructions `write` or `accumulate` issue."""
    result = defer("nki.isa.nc_matmul", shape, "float32", lambda dst, cut: None, buffer=psum)
    result.storage.deferred = DeferredWrite(
        write, (PSUM,), accumulate, MaskedPart(shape), by_dma=False
    )
    return result


def nc_transpose(
    data: Any, *, mask: Any = None, dtype: Any = None, engine: Any = enums.engine.unknown,
) -> Tensor:  # fmt: skip
    """A tile transposed: by the Tensor Engine into PSUM, or in 32 x 32 blocks on Vector."""
    frame = require_frame("nki.isa.nc_transpose")
    source = operand("nc_transpose", "data", data)
    flat = source if source.ndim == 2 else _flatten_free_axes(frame, source)
    is_vector = core_argument("nc_transpose", "engine", engine) is enums.engine.vector
    most = frame.session.arch.stationary_columns
    if flat.shape[1] > most:
        raise DimensionTooLarge(
            axis=1, name="data", shape=list(flat.shape), function="nc_transpose", most=most,
            loc=caller(),
        )  # fmt: skip
    name = to_dtype_name(dtype) if dtype is not None else data.dtype_name
    part = boxed_part("nki.isa.nc_transpose", mask, flat.shape)

    def write(dst: NkiTensor, _: Any) -> None:
        own = part.cut(flat)
        place = dst
        for axis, (first, end) in enumerate((part.box or ())[::-1]):
            place = place.slice(axis, first, end)
        target = place if name == data.dtype_name else temporary_tile(
            frame, place.shape, data.dtype_name, SBUF if is_vector else PSUM
        )  # fmt: skip
        if is_vector:
            transpose_in_squares(target, own)
        else:
            transpose_on_pe(frame, target, own)
        if target is not place:
            copy_tile(frame, place, target)

    shape = tile_shape(frame, flat.shape[::-1])
    if part.is_empty:
        return defer("nki.isa.nc_transpose", shape, name, write, mask=False)
    regions, buffer = (ON_CHIP, sbuf) if is_vector else ((PSUM,), psum)
    return defer(
        "nki.isa.nc_transpose", shape, name, write, regions=regions, buffer=buffer,
        partial=part.transposed(),
    )  # fmt: skip


def _flatten_free_axes(frame: Frame, tensor: NkiTensor) -> NkiTensor:
    shape = (tensor.shape[0], tensor.size // tensor.shape[0])
    if tensor.is_contiguous():
        return tensor.reshape(shape)
    copied = temporary_tile(frame, tensor.shape, tensor.dtype)
    copy_tile(frame, copied, tensor)
    return copied.reshape(shape)


# --- the Scalar Engine -------------------------------------------------------------------------

_FLOATS = ("float32", "float16", "bfloat16", "tfloat32")


def _check_activation(data: Tensor, bias: Any, scale: Any) -> None:
    if isinstance(bias, Tensor) and bias.dtype_name not in _FLOATS:
        text = (
            "Bias parameter of activation or activation_reduce must be a vector of type float32, "
            "float16, or bfloat16."
        )
        raise WrongActivationOperand(text=text, loc=caller())
    if not isinstance(scale, Tensor):
        return
    if scale.dtype_name not in ("float32", "tfloat32"):
        text = (
            "Scale parameter of activation or activation_reduce must be a scalar or vector of "
            "type float32."
        )
        raise WrongActivationOperand(text=text, loc=caller())
    if scale.size != data.shape[0]:
        text = (
            "Scale parameter of activation must be either a scalar value or a 1D vector spanning "
            "the partition dimension."
        )
        raise WrongActivationOperand(text=text, loc=caller())


def activation(
    op: Any, data: Any, *, bias: Any = None, scale: Any = 1.0, reduce_op: Any = None,
    reduce_res: Any = None, reduce_cmd: Any = IDLE, mask: Any = None, dtype: Any = None,
    buffer: Buffer = sbuf,
) -> Tensor:  # fmt: skip
    """op(data * scale + bias), and with reduce_op a reduction of it in the engine's registers.

    `buffer`, which no document has, is the memory that the result goes to.
    """
    _check_activation(data, bias, scale)
    fields = {"op": op, "data": data, "bias": bias, "scale": scale}
    if reduce_op is not None:
        fields |= {"reduce_op": reduce_op, "reduce_cmd": reduce_cmd}
    return defer_instruction(
        "activation", data, fields, dtype=dtype, mask=mask, outputs={"reduce_res": reduce_res},
        buffer=buffer,
    )  # fmt: skip


def activation_reduce(
    op: Any, data: Any, *, reduce_op: Any, reduce_res: Any, bias: Any = None, scale: Any = 1.0,
    mask: Any = None, dtype: Any = None,
) -> Tensor:  # fmt: skip
    """op(data * scale + bias); reduce_res takes its reduction along all free axes."""
    _check_activation(data, bias, scale)
    fields = {"op": op, "data": data, "reduce_op": reduce_op, "bias": bias, "scale": scale}
    return defer_instruction(
        "activation_reduce", data, fields, dtype=dtype, mask=mask,
        outputs={"reduce_res": reduce_res},
    )  # fmt: skip


# --- the Vector Engine -------------------------------------------------------------------------


def tensor_copy(
    src: Any, *, mask: Any = None, dtype: Any = None, engine: Any = enums.engine.unknown,
) -> Tensor:  # fmt: skip
    """A copy of a tile."""
    fields = {"src": src, "engine": engine}
    return defer_instruction("tensor_copy", src, fields, dtype=dtype, mask=mask)


def tensor_copy_dynamic_src(
    src: Any, *, mask: Any = None, dtype: Any = None, engine: Any = enums.engine.unknown,
) -> Tensor:  # fmt: skip
    """A copy of a tile that starts where an index in memory says."""
    source, chosen = src.read_view(), core_argument("tensor_copy", "engine", engine)
    name = to_dtype_name(dtype) if dtype is not None else src.dtype_name

    def write(dst: NkiTensor, cut: Any) -> None:
        nisa.tensor_copy(dst=dst, src=cut(source), engine=chosen)

    return defer("nki.isa.tensor_copy_dynamic_src", src.shape, name, write, mask=mask)


def tensor_copy_dynamic_dst(
    *, dst: Any, src: Any, mask: Any = None, dtype: Any = None,
    engine: Any = enums.engine.unknown,
) -> None:  # fmt: skip
    """Copy a tile to where an index in memory says."""
    source, chosen = (
        operand("tensor_copy", "src", src),
        core_argument("tensor_copy", "engine", engine),
    )
    part = boxed_part("nki.isa.tensor_copy_dynamic_dst", mask, dst.shape)
    if not part.is_empty:
        place = dst.write_view(part.box)
        nisa.tensor_copy(dst=place, src=part.cut(source), engine=chosen)


def tensor_copy_predicated(
    *, src: Any, dst: Any, predicate: Any, reverse_pred: bool = False, mask: Any = None,
    dtype: Any = None,
) -> Tensor:  # fmt: skip
    """dst takes src where the predicate is not 0 (with reverse_pred where it is 0)."""
    fields = {"src": src, "predicate": predicate, "reverse_pred": reverse_pred}
    return issue_in_place("tensor_copy_predicated", dst, fields, mask, is_partial=True)


def memset(
    shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: Any = enums.engine.unknown,
) -> Tensor:  # fmt: skip
    """A tile of one value."""
    frame = require_frame("nki.isa.memset")
    sizes, number = tile_shape(frame, tuple(int(n) for n in shape)), np.asarray(value).item()
    return defer(
        "nki.isa.memset", sizes, to_dtype_name(dtype), lambda dst, cut: fill(dst, number),
        mask=mask, of_number=number,
    )  # fmt: skip


def tensor_tensor(
    data1: Any, data2: Any, op: Any, *, dtype: Any = None, mask: Any = None,
    engine: Any = enums.engine.unknown,
) -> Tensor:  # fmt: skip
    """data1 op data2, of the same partitions; a free dimension of one element repeats."""
    frame = require_frame("nki.isa.tensor_tensor")
    a, b = operand("tensor_tensor", "data1", data1), operand("tensor_tensor", "data2", data2)
    check_partitions("tensor_tensor", data1=a, data2=b)
    if a.tile.memory == b.tile.memory and a.tile.memory.value == "PSUM":
        a = ensure_in_sbuf(frame, a)
    if a.size != b.size:  # a column beside a tile
        shape = broadcast_operands(a.shape, b.shape)
        a, b = broadcast_view(a, shape, frame), broadcast_view(b, shape, frame)
    name = promote(data1.dtype_name, data2.dtype_name)
    operator, chosen = (
        core_argument("tensor_tensor", "op", op),
        core_argument("tensor_tensor", "engine", engine),
    )
    if chosen is enums.engine.unknown and operator not in EXACT:
        chosen = enums.engine.vector

    def write(dst: NkiTensor, cut: Any) -> None:
        nisa.tensor_tensor(dst=dst, data1=cut(a), data2=cut(b), op=operator, engine=chosen)

    result = to_dtype_name(dtype) if dtype is not None else name
    return defer("nki.isa.tensor_tensor", a.shape, result, write, mask=mask)


def tensor_scalar(
    data: Any, op0: Any, operand0: Any, reverse0: bool = False, op1: Any = None,
    operand1: Any = None, reverse1: bool = False, *, dtype: Any = None, mask: Any = None,
    engine: Any = enums.engine.unknown,
) -> Tensor:  # fmt: skip
    """(data op0 operand0) op1 operand1, each operand a number or one of each partition."""
    fields = {
        "data": data, "op0": op0, "operand0": operand0, "reverse0": reverse0, "op1": op1,
        "operand1": operand1, "reverse1": reverse1, "engine": engine,
    }  # fmt: skip
    return defer_instruction("tensor_scalar", data, fields, dtype=dtype, mask=mask)


def scalar_tensor_tensor(
    *, data: Any, op0: Any, operand0: Any, op1: Any, operand1: Any, reverse0: bool = False,
    reverse1: bool = False, dtype: Any = None, mask: Any = None,
) -> Tensor:  # fmt: skip
    """(data op0 operand0) op1 operand1, with operand1 a tile."""
    fields = {
        "data": data, "op0": op0, "operand0": operand0, "op1": op1, "operand1": operand1,
        "reverse0": reverse0, "reverse1": reverse1,
    }  # fmt: skip
    return defer_instruction("scalar_tensor_tensor", data, fields, dtype=dtype, mask=mask)


def tensor_reduce(
    op: Any, data: Any, axis: Any, *, mask: Any = None, dtype: Any = None, negate: bool = False,
    keepdims: bool = False,
) -> Tensor:  # fmt: skip
    """The reduction along free axes, with negate minus that."""
    name = core_argument("tensor_reduce", "op", op)
    function = "nki.isa.tensor_reduce"
    return reduction(function, name, data, axis, dtype, mask, keepdims, negate)


def tensor_partition_reduce(op: Any, data: Any, *, mask: Any = None, dtype: Any = None) -> Tensor:
    """The reduction over the partitions, a tile of one."""
    frame = require_frame("nki.isa.tensor_partition_reduce")
    source = ensure_in_sbuf(frame, operand("tensor_partition_reduce", "data", data))
    name = to_dtype_name(dtype) if dtype is not None else data.dtype_name
    operator = core_argument("tensor_partition_reduce", "op", op)
    part = boxed_part("nki.isa.tensor_partition_reduce", mask, source.shape)

    def write(dst: NkiTensor, _: Any) -> None:
        place = dst
        for axis, (first, end) in enumerate(part.box or ()):
            place = place.slice(axis, first, end) if axis else place
        nisa.tensor_partition_reduce(dst=place, op=operator, data=part.cut(source))

    shape = (1, *source.shape[1:])
    empty = False if part.is_empty else None
    box = ((0, 1), *part.box[1:]) if part.box else None
    return defer(
        "nki.isa.tensor_partition_reduce", shape, name, write, mask=empty, regions=(SBUF,),
        partial=MaskedPart(shape, box),
    )  # fmt: skip


def tensor_scalar_reduce(
    *, data: Any, op0: Any, operand0: Any, reduce_op: Any, reduce_res: Any,
    reverse0: bool = False, dtype: Any = None, mask: Any = None,
) -> Tensor:  # fmt: skip
    """data op0 operand0; reduce_res takes its reduction along all free axes."""
    fields = {
        "data": data, "op0": op0, "operand0": operand0, "reduce_op": reduce_op,
        "reverse0": reverse0,
    }  # fmt: skip
    outputs = {"reduce_res": reduce_res}
    return defer_instruction(
        "tensor_scalar_reduce", data, fields, dtype=dtype, mask=mask, outputs=outputs
    )


def tensor_scalar_cumulative(
    *, dst: Any, src: Any, op0: Any, op1: Any, imm0: Any, imm1: Any = None,
    reduce_cmd: Any = enums.reduce_cmd.reset_reduce, mask: Any = None,
) -> Tensor:  # fmt: skip
    """dst takes the running op1 of src op0 imm0, with load_reduce from imm1 on."""
    command = core_argument("tensor_scalar_cumulative", "reduce_cmd", reduce_cmd)
    imm1 = imm1 if command is enums.reduce_cmd.load_reduce else None
    fields = {
        "src": src, "op0": op0, "op1": op1, "imm0": imm0, "imm1": imm1, "reduce_cmd": reduce_cmd,
    }  # fmt: skip
    return issue_in_place("tensor_scalar_cumulative", dst, fields, mask)


def tensor_tensor_scan(
    data0: Any, data1: Any, initial: Any, op0: Any, op1: Any, reverse0: bool = False,
    reverse1: bool = False, *, dtype: Any = None, mask: Any = None,
) -> Tensor:  # fmt: skip
    """s = op1(op0(data0, s before), data1) along the free dimensions."""
    fields = {
        "data0": data0, "data1": data1, "initial": initial, "op0": op0, "op1": op1,
        "reverse0": reverse0, "reverse1": reverse1,
    }  # fmt: skip
    return defer_instruction("tensor_tensor_scan", data0, fields, dtype=dtype, mask=mask)


def reciprocal(data: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """1 / data."""
    return defer_instruction("reciprocal", data, {"data": data}, dtype=dtype, mask=mask)


def bn_stats(data: Any, *, mask: Any = None, dtype: Any = None) -> Tensor:
    """(count, mean, variance * count) of the even elements, then of the odd ones."""
    shape = (data.shape[0], 6)
    return _rows_only("bn_stats", data, {"data": data}, shape, dtype, mask)


def bn_aggr(data: Any, *, mask: Any = None, dtype: Any = None) -> Tensor:
    """(mean, variance) of triples as bn_stats gives them."""
    return _rows_only("bn_aggr", data, {"data": data}, (data.shape[0], 2), dtype, mask)


def max8(*, src: Any, mask: Any = None, dtype: Any = None) -> Tensor:
    """The eight greatest elements of each partition, greatest first."""
    return _rows_only("max8", src, {"src": src}, (src.shape[0], 8), dtype, mask)


def nc_find_index8(*, data: Any, vals: Any, mask: Any = None, dtype: Any = None) -> Tensor:
    """The index in data of the first occurrence of each of eight values."""
    fields = {"data": data, "vals": vals}
    shape = (data.shape[0], 8)
    return _rows_only("nc_find_index8", data, fields, shape, dtype or np.uint32, mask)


def _rows_only(
    name: str, data: Tensor, fields: Fields, shape: tuple[int, ...], dtype: Any, mask: Any
) -> Tensor:
    """An instruction whose result has elements of its own: the mask's free axes cut only `data`."""
    given = {each: core_argument(name, each, value) for each, value in fields.items()}
    part = boxed_part(f"nki.isa.{name}", mask, data.shape)
    function = core_function(name)

    def write(dst: NkiTensor, _: Any) -> None:
        place = dst.slice(0, *part.box[0]) if part.box else dst
        own = {k: _cut_as(data, part, v) for k, v in given.items()}
        function(dst=place, **own)

    result = to_dtype_name(dtype) if dtype is not None else data.dtype_name
    empty = False if part.is_empty else None
    box = (part.box[0], *((0, count) for count in shape[1:])) if part.box else None
    return defer(
        f"nki.isa.{name}", shape, result, write, mask=empty, regions=(SBUF,),
        partial=MaskedPart(shape, box),
    )  # fmt: skip


def _cut_as(data: Tensor, part: MaskedPart, value: NkiTensor) -> NkiTensor:
    """Cut an operand of the shape of `data` to the part, any other by its partitions only."""
    if part.box is None or value.shape == data.shape:
        return part.cut(value)
    return value.slice(0, *part.box[0])


def nc_match_replace8(
    *, data: Any, vals: Any, imm: Any, dst_idx: Any = None, mask: Any = None, dtype: Any = None,
) -> Tensor:  # fmt: skip
    """data with the first occurrence of each of eight values replaced; dst_idx says where."""
    given: dict[str, NkiTensor] = {
        name: core_argument("nc_match_replace8", name, v)
        for name, v in (("data", data), ("vals", vals))
    }
    part = boxed_part("nki.isa.nc_match_replace8", mask, data.shape)
    if dst_idx is not None:
        given["dst_idx"] = output_view(dst_idx)
    number = float(imm)

    def write(dst: NkiTensor, _: Any) -> None:
        own: Fields = {k: _cut_as(data, part, v) for k, v in given.items()}
        nisa.nc_match_replace8(dst=dst, imm=number, **own)

    result = to_dtype_name(dtype) if dtype is not None else data.dtype_name
    return defer("nki.isa.nc_match_replace8", data.shape, result, write, mask=mask)


def nc_stream_shuffle(
    src: Any, dst: Any, shuffle_mask: Any, *, dtype: Any = None, mask: Any = None
) -> Tensor:
    """Partition p of dst in each group of 32 takes partition shuffle_mask[p] of src; 255 none."""
    frame = require_frame("nki.isa.nc_stream_shuffle")
    destination: Tensor = dst
    part = boxed_part("nki.isa.nc_stream_shuffle", mask, destination.shape)
    if part.is_empty:
        return destination
    if part.box is not None:
        raise UnsupportedMask(what="a mask of nki.isa.nc_stream_shuffle", loc=caller())
    source = src.read_view()
    place = destination.write_view(is_partial=255 in shuffle_mask)
    if source.shape[0] != place.shape[0]:
        wide = temporary_tile(frame, place.shape, source.dtype)
        fill(wide, 0)
        copy_tile(frame, wide.slice(0, 0, source.shape[0]), align_partition_start(frame, source))
        source = wide
    nisa.nc_stream_shuffle(dst=place, src=source, shuffle_mask=tuple(map(int, shuffle_mask)))
    return destination


def range_select(
    *, on_true_tile: Any, comp_op0: Any, comp_op1: Any, bound0: Any, bound1: Any,
    reduce_cmd: Any = IDLE, reduce_res: Any = None, reduce_op: Any = np.amax,
    range_start: int = 0, on_false_value: float = fp32.min, mask: Any = None, dtype: Any = None,
) -> Tensor:  # fmt: skip
    """on_true_tile where range_start + the element's number compares with both bounds."""
    fields = {
        "on_true_tile": on_true_tile, "comp_op0": comp_op0, "comp_op1": comp_op1,
        "bound0": bound0, "bound1": bound1, "reduce_cmd": reduce_cmd, "reduce_op": reduce_op,
        "range_start": range_start, "on_false_value": on_false_value,
    }  # fmt: skip
    outputs = {"reduce_res": reduce_res}
    return defer_instruction(
        "range_select", on_true_tile, fields, dtype=dtype, mask=mask, outputs=outputs
    )


def select_reduce(
    *, dst: Any, predicate: Any, on_true: Any, on_false: Any, reduce_res: Any = None,
    reduce_cmd: Any = IDLE, reduce_op: Any = np.amax, reverse_pred: bool = False,
    mask: Any = None, dtype: Any = None,
) -> Tensor:  # fmt: skip
    """dst takes on_true where the predicate is not 0, on_false elsewhere, and its maximum."""
    fields = {
        "predicate": predicate, "on_true": on_true, "on_false": on_false,
        "reduce_cmd": reduce_cmd, "reduce_op": reduce_op, "reverse_pred": reverse_pred,
    }  # fmt: skip
    return issue_in_place("select_reduce", dst, fields, mask, {"reduce_res": reduce_res})


def dropout(data: Any, prob: Any, *, mask: Any = None, dtype: Any = None) -> Tensor:
    """data with elements replaced by 0, each with a probability."""
    fields = {"data": data, "prob": prob}
    return defer_instruction("dropout", data, fields, dtype=dtype, mask=mask)


# --- GpSimd ------------------------------------------------------------------------------------


def iota(expr: Any, dtype: Any, *, mask: Any = None) -> Tensor:
    """A tile of the values of an index."""
    frame = require_frame("nki.isa.iota")
    index = expr if isinstance(expr, Index) else Index((1, 1), (0, 0), int(expr))
    shape = tile_shape(frame, index.shape if index.ndim > 1 else (1, *index.shape))
    index = index.at_rank(len(shape))
    box = masked_part(mask, shape).box or tuple((0, count) for count in shape)
    start = index.start + sum(
        step * first for step, (first, _) in zip(index.steps, box, strict=True)
    )

    def write(dst: NkiTensor, _: Any) -> None:
        steps, counts = index.steps[1:], dst.shape[1:]
        pattern = [[step, count] for step, count in zip(steps, counts, strict=True)]
        nisa.iota(dst=dst, pattern=pattern, offset=start, channel_multiplier=index.steps[0])

    return defer("nki.isa.iota", shape, to_dtype_name(dtype), write, mask=mask, regions=(SBUF,))


def affine_select(
    pred: Any, on_true_tile: Any, on_false_value: Any, *, mask: Any = None, dtype: Any = None,
) -> Tensor:  # fmt: skip
    """on_true_tile where comparisons of indices hold, a number elsewhere."""
    frame = require_frame("nki.isa.affine_select")
    data = ensure_in_sbuf(frame, operand("affine_select", "on_true_tile", on_true_tile))
    where = _predicate_mask(pred, data.shape)
    number = float(np.asarray(on_false_value).item())
    box = masked_part(mask, data.shape).box or tuple((0, count) for count in data.shape)

    def write(dst: NkiTensor, cut: Any) -> None:
        if len(where.alternatives) > 1:
            _select_disjunction(frame, dst, cut(data), number, MaskedPart(dst.shape, box, where))
            return
        own = cut(data)
        for condition in where.alternatives[0]:
            start = condition.start + sum(
                step * first for step, (first, _) in zip(condition.steps, box, strict=True)
            )
            select_affine(dst, Index(dst.shape, condition.steps, start), own, number)
            own = dst

    name = to_dtype_name(dtype) if dtype is not None else on_true_tile.dtype_name
    return defer("nki.isa.affine_select", data.shape, name, write, mask=mask, regions=(SBUF,))


def _select_disjunction(
    frame: Frame, dst: NkiTensor, data: NkiTensor, otherwise: float, part: MaskedPart
) -> None:
    """dst = data where the mask of the part holds, `otherwise` elsewhere."""
    chosen, result = (temporary_tile(frame, dst.shape, dst.dtype) for _ in range(2))
    copy_tile(frame, chosen, data)
    fill(result, otherwise)
    predicate = mask_predicate(frame, part, dst.shape)
    nisa.tensor_copy_predicated(dst=result, src=chosen, predicate=predicate)
    copy_tile(frame, dst, result)


def _predicate_mask(pred: Any, shape: tuple[int, ...]) -> Mask:
    """The Mask of a predicate over the axes of a tile; True and False are masks too."""
    rank = len(shape)
    if isinstance(pred, Mask):
        return Mask(tuple(tuple(c.at_rank(rank) for c in each) for each in pred.alternatives))
    if isinstance(pred, bool | np.bool_):
        return Mask(((Index(shape, (0,) * rank, 0 if pred else -1),),))
    raise UnsupportedMask(what=f"pred of type {type(pred).__name__}", loc=caller())


def local_gather(
    src_buffer: Any, index: Any, num_elem_per_idx: int = 1, num_valid_indices: int | None = None,
    *, mask: Any = None,
) -> Tensor:  # fmt: skip
    """In each group of 16 partitions the elements that the group's indices name."""
    source, chosen = operand("local_gather", "src_buffer", src_buffer), index.read_view()
    count = num_valid_indices or chosen.size // chosen.shape[0] * 16
    group = (16,) if count % 16 == 0 else ()
    shape = (source.shape[0], count // math.prod(group), *group, num_elem_per_idx)
    gather = core_function("local_gather")

    def write(dst: NkiTensor, cut: Any) -> None:
        place = dst.reshape((dst.shape[0], count, num_elem_per_idx))
        gather(
            dst=place, src_buffer=source, index=chosen, num_elem_per_idx=num_elem_per_idx,
            num_valid_indices=num_valid_indices,
        )  # fmt: skip

    return defer("nki.isa.local_gather", shape, src_buffer.dtype_name, write, mask=mask)


def sequence_bounds(*, segment_ids: Any, dtype: Any = None) -> Tensor:
    """For each element of a sequence of segments where its segment begins and ends."""
    rows, count = segment_ids.shape[0], segment_ids.size // segment_ids.shape[0]
    fields = {"segment_ids": segment_ids}
    shape = (rows, 2, count)
    return defer_instruction(
        "sequence_bounds", segment_ids, fields, dtype=dtype, mask=None, shape=shape, regions=(SBUF,)
    )


def builtin_custom_op(
    function_name: str, lib_file_name: str, ulib_to_ucode_version: str, ulib_to_isa_version: str,
    srcs: Any, dsts: Any,
) -> None:  # fmt: skip
    """UnsupportedHere: runs a compiled GpSimd library, whose interface is not public."""
    raise UnsupportedHere(
        what=f"nki.isa.builtin_custom_op({function_name!r})",
        why="it runs a compiled library, whose interface is not public; use functions of nki.isa",
        loc=caller(),
    )


__all__ = [
    "activation", "activation_reduce", "affine_select", "bn_aggr", "bn_stats",
    "builtin_custom_op", "dropout", "iota", "local_gather", "max8", "memset",
    "nc_find_index8", "nc_match_replace8", "nc_matmul", "nc_stream_shuffle", "nc_transpose",
    "range_select", "reciprocal",
    "scalar_tensor_tensor", "select_reduce", "sequence_bounds", "tensor_copy",
    "tensor_copy_dynamic_dst", "tensor_copy_dynamic_src", "tensor_copy_predicated",
    "tensor_partition_reduce", "tensor_reduce", "tensor_scalar", "tensor_scalar_cumulative",
    "tensor_scalar_reduce", "tensor_tensor", "tensor_tensor_scan",
]  # fmt: skip

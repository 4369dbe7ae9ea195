"""Written by tools/nki_stubs.py; the module itself holds the documentation."""

from enum import IntEnum as _IntEnum
from glia.nki.beta1.tensors.buffers import Buffer as _Buffer
from glia.nki.beta1.tensors.tensor import Tensor as _Tensor
from glia.nki.names.dtypes import FloatLimits as _FloatLimits
from typing import Any as _Any

__all__ = ["activation", "activation_reduce", "affine_select", "bn_aggr", "bn_stats", "builtin_custom_op", "dge_mode", "dma_copy", "dma_engine", "dma_transpose", "dropout", "engine", "fp32", "get_nc_version", "gpsimd_engine", "iota", "local_gather", "max8", "memset", "nc_find_index8", "nc_match_replace8", "nc_matmul", "nc_stream_shuffle", "nc_transpose", "nc_version", "oob_mode", "range_select", "reciprocal", "reduce_cmd", "scalar_engine", "scalar_tensor_tensor", "select_reduce", "sequence_bounds", "tensor_copy", "tensor_copy_dynamic_dst", "tensor_copy_dynamic_src", "tensor_copy_predicated", "tensor_engine", "tensor_partition_reduce", "tensor_reduce", "tensor_scalar", "tensor_scalar_cumulative", "tensor_scalar_reduce", "tensor_tensor", "tensor_tensor_scan", "unknown_engine", "vector_engine"]

def activation(
    op: _Any,
    data: _Any,
    *,
    bias: _Any = None,
    scale: _Any = 1.0,
    reduce_op: _Any = None,
    reduce_res: _Any = None,
    reduce_cmd: _Any = ...,
    mask: _Any = None,
    dtype: _Any = None,
    buffer: _Buffer = ...,
    name: _Any = None,
) -> _Tensor:
    """op(data * scale + bias), and with reduce_op a reduction of it in the engine's registers."""
def activation_reduce(
    op: _Any,
    data: _Any,
    *,
    reduce_op: _Any,
    reduce_res: _Any,
    bias: _Any = None,
    scale: _Any = 1.0,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """op(data * scale + bias); reduce_res takes its reduction along all free axes."""
def affine_select(
    pred: _Any,
    on_true_tile: _Any,
    on_false_value: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """on_true_tile where comparisons of indices hold, a number elsewhere."""
def bn_aggr(data: _Any, *, mask: _Any = None, dtype: _Any = None, name: _Any = None) -> _Tensor:
    """(mean, variance) of triples as bn_stats gives them."""
def bn_stats(data: _Any, *, mask: _Any = None, dtype: _Any = None, name: _Any = None) -> _Tensor:
    """(count, mean, variance * count) of the even elements, then of the odd ones."""
def builtin_custom_op(
    function_name: str,
    lib_file_name: str,
    ulib_to_ucode_version: str,
    ulib_to_isa_version: str,
    srcs: _Any,
    dsts: _Any,
    *,
    name: _Any = None,
) -> None:
    """UnsupportedHere: runs a compiled GpSimd library, whose interface is not public."""
def dma_copy(
    *,
    dst: _Any,
    src: _Any,
    mask: _Any = None,
    dst_rmw_op: _Any = None,
    oob_mode: _Any = ...,
    dge_mode: _Any = ...,
    name: _Any = None,
) -> None:
    """Copy between memories, rows chosen by indices in memory if given; dst_rmw_op adds to dst."""
dma_engine: _engine
def dma_transpose(
    src: _Any,
    *,
    axes: _Any = None,
    mask: _Any = None,
    dtype: _Any = None,
    dge_mode: _Any = ...,
    name: _Any = None,
) -> _Any:
    """A tile in SBUF with a tensor of two to four dimensions in another order."""
def dropout(
    data: _Any,
    prob: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """data with elements replaced by 0, each with a probability."""
fp32: _FloatLimits
def get_nc_version() -> _nc_version:
    """The generation of the core that the kernel is for."""
gpsimd_engine: _engine
def iota(expr: _Any, dtype: _Any, *, mask: _Any = None, name: _Any = None) -> _Tensor:
    """A tile of the values of an index."""
def local_gather(
    src_buffer: _Any,
    index: _Any,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    *,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """In each group of 16 partitions the elements that the group's indices name."""
def max8(*, src: _Any, mask: _Any = None, dtype: _Any = None, name: _Any = None) -> _Tensor:
    """The eight greatest elements of each partition, greatest first."""
def memset(
    shape: _Any,
    value: _Any,
    dtype: _Any,
    *,
    mask: _Any = None,
    engine: _Any = ...,
    name: _Any = None,
) -> _Tensor:
    """A tile of one value."""
def nc_find_index8(
    *,
    data: _Any,
    vals: _Any,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """The index in data of the first occurrence of each of eight values."""
def nc_match_replace8(
    *,
    data: _Any,
    vals: _Any,
    imm: _Any,
    dst_idx: _Any = None,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """data with the first occurrence of each of eight values replaced; dst_idx says where."""
def nc_matmul(
    stationary: _Any,
    moving: _Any,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    mask: _Any = None,
    perf_mode: str = 'none',
    name: _Any = None,
) -> _Tensor:
    """stationary.T @ moving, a tile in PSUM; `+=` into a tile in PSUM accumulates."""
def nc_stream_shuffle(
    src: _Any,
    dst: _Any,
    shuffle_mask: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """Partition p of dst in each group of 32 takes partition shuffle_mask[p] of src; 255 none."""
def nc_transpose(
    data: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    engine: _Any = ...,
    name: _Any = None,
) -> _Tensor:
    """A tile transposed: by the Tensor Engine into PSUM, or in 32 x 32 blocks on Vector."""
def range_select(
    *,
    on_true_tile: _Any,
    comp_op0: _Any,
    comp_op1: _Any,
    bound0: _Any,
    bound1: _Any,
    reduce_cmd: _Any = ...,
    reduce_res: _Any = None,
    reduce_op: _Any = ...,
    range_start: int = 0,
    on_false_value: float = -3.4028234663852886e+38,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """on_true_tile where range_start + the element's number compares with both bounds."""
def reciprocal(data: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """1 / data."""
scalar_engine: _engine
def scalar_tensor_tensor(
    *,
    data: _Any,
    op0: _Any,
    operand0: _Any,
    op1: _Any,
    operand1: _Any,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """(data op0 operand0) op1 operand1, with operand1 a tile."""
def select_reduce(
    *,
    dst: _Any,
    predicate: _Any,
    on_true: _Any,
    on_false: _Any,
    reduce_res: _Any = None,
    reduce_cmd: _Any = ...,
    reduce_op: _Any = ...,
    reverse_pred: bool = False,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """dst takes on_true where the predicate is not 0, on_false elsewhere, and its maximum."""
def sequence_bounds(*, segment_ids: _Any, dtype: _Any = None, name: _Any = None) -> _Tensor:
    """For each element of a sequence of segments where its segment begins and ends."""
def tensor_copy(
    src: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    engine: _Any = ...,
    name: _Any = None,
) -> _Tensor:
    """A copy of a tile."""
def tensor_copy_dynamic_dst(
    *,
    dst: _Any,
    src: _Any,
    mask: _Any = None,
    dtype: _Any = None,
    engine: _Any = ...,
    name: _Any = None,
) -> None:
    """Copy a tile to where an index in memory says."""
def tensor_copy_dynamic_src(
    src: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    engine: _Any = ...,
    name: _Any = None,
) -> _Tensor:
    """A copy of a tile that starts where an index in memory says."""
def tensor_copy_predicated(
    *,
    src: _Any,
    dst: _Any,
    predicate: _Any,
    reverse_pred: bool = False,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """dst takes src where the predicate is not 0 (with reverse_pred where it is 0)."""
tensor_engine: _engine
def tensor_partition_reduce(
    op: _Any,
    data: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """The reduction over the partitions, a tile of one."""
def tensor_reduce(
    op: _Any,
    data: _Any,
    axis: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    negate: bool = False,
    keepdims: bool = False,
    name: _Any = None,
) -> _Tensor:
    """The reduction along free axes, with negate minus that."""
def tensor_scalar(
    data: _Any,
    op0: _Any,
    operand0: _Any,
    reverse0: bool = False,
    op1: _Any = None,
    operand1: _Any = None,
    reverse1: bool = False,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    engine: _Any = ...,
    name: _Any = None,
) -> _Tensor:
    """(data op0 operand0) op1 operand1, each operand a number or one of each partition."""
def tensor_scalar_cumulative(
    *,
    dst: _Any,
    src: _Any,
    op0: _Any,
    op1: _Any,
    imm0: _Any,
    imm1: _Any = None,
    reduce_cmd: _Any = ...,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """dst takes the running op1 of src op0 imm0, with load_reduce from imm1 on."""
def tensor_scalar_reduce(
    *,
    data: _Any,
    op0: _Any,
    operand0: _Any,
    reduce_op: _Any,
    reduce_res: _Any,
    reverse0: bool = False,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """data op0 operand0; reduce_res takes its reduction along all free axes."""
def tensor_tensor(
    data1: _Any,
    data2: _Any,
    op: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    engine: _Any = ...,
    name: _Any = None,
) -> _Tensor:
    """data1 op data2, of the same partitions; a free dimension of one element repeats."""
def tensor_tensor_scan(
    data0: _Any,
    data1: _Any,
    initial: _Any,
    op0: _Any,
    op1: _Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """s = op1(op0(data0, s before), data1) along the free dimensions."""
unknown_engine: _engine
vector_engine: _engine
class dge_mode(_IntEnum):
    none = 0
    swdge = 1
    hwdge = 2
    unknown = 3
_engine = engine
class engine(_IntEnum):
    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6
_nc_version = nc_version
class nc_version(_IntEnum):
    gen2 = 2
    gen3 = 3
    gen4 = 4
class oob_mode(_IntEnum):
    error = 0
    skip = 1
class reduce_cmd(_IntEnum):
    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4

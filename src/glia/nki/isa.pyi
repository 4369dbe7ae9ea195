"""Written by tools/nki_stubs.py; the module itself holds the documentation."""

from glia.nki.names.enums import dge_mode as _dge_mode
from glia.nki.names.enums import dge_mode as dge_mode
from glia.nki.names.enums import dma_engine as dma_engine
from glia.nki.names.enums import engine as _engine
from glia.nki.names.enums import engine as engine
from glia.nki.names.enums import matmul_perf_mode as _matmul_perf_mode
from glia.nki.names.enums import matmul_perf_mode as matmul_perf_mode
from glia.nki.names.enums import nc_version as _nc_version
from glia.nki.names.enums import nc_version as nc_version
from glia.nki.names.enums import oob_mode as _oob_mode
from glia.nki.names.enums import oob_mode as oob_mode
from glia.nki.names.enums import reduce_cmd as _reduce_cmd
from glia.nki.names.enums import reduce_cmd as reduce_cmd
from glia.nki.names.errors import NkiValidationError as NkiValidationError
from glia.nki.names.operators import Op as _Op
from glia.nki.tensors.nki_object import NkiInstruction as NkiInstruction
from glia.nki.tensors.nki_object import NkiInstruction as _NkiInstruction
from glia.nki.tensors.nki_tensor import NkiTensor as _NkiTensor
from glia.nki.tensors.registers import VirtualRegister as VirtualRegister
from glia.nki.tensors.registers import VirtualRegister as _VirtualRegister
from typing import Any as _Any

__all__ = ["NkiInstruction", "NkiValidationError", "VirtualRegister", "activate2", "activation", "activation_reduce", "affine_select", "bn_aggr", "bn_stats", "core_barrier", "dge_mode", "dma_compute", "dma_copy", "dma_engine", "dma_transpose", "dropout", "engine", "exponential", "get_nc_sub_version", "get_nc_version", "gpsimd_engine", "iota", "local_gather", "matmul_perf_mode", "max8", "memset", "nc_find_index8", "nc_match_replace8", "nc_matmul", "nc_matmul_mx", "nc_n_gather", "nc_stream_shuffle", "nc_transpose", "nc_version", "nonzero_with_count", "oob_mode", "quantize_mx", "rand2", "rand_get_state", "rand_set_state", "range_select", "reciprocal", "reduce_cmd", "register_alloc", "register_load", "register_move", "register_store", "rng", "scalar_engine", "scalar_tensor_tensor", "select_reduce", "sendrecv", "sequence_bounds", "set_rng_seed", "tensor_copy", "tensor_copy_predicated", "tensor_engine", "tensor_partition_reduce", "tensor_reduce", "tensor_scalar", "tensor_scalar_cumulative", "tensor_scalar_reduce", "tensor_tensor", "tensor_tensor_scan", "topk", "unknown_engine", "vector_engine"]

def activate2(
    dst: _NkiTensor,
    op: _Op,
    data: _NkiTensor,
    imm0: _NkiTensor | float | None,
    imm1: _NkiTensor | float | None,
    op0: _Op,
    op1: _Op,
    relu_param: _NkiTensor | float = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: _Op | None = None,
    reduce_res: _NkiTensor | None = None,
    reduce_cmd: _reduce_cmd = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Write function((data `op0` operand0) `op1` operand1) in float32, and reduce it."""
def activation(
    dst: _NkiTensor,
    op: _Op,
    data: _NkiTensor,
    bias: _NkiTensor | float | None = None,
    scale: _NkiTensor | float = 1.0,
    reduce_op: _Op | None = None,
    reduce_res: _NkiTensor | None = None,
    reduce_cmd: _reduce_cmd = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Write function(scale * data + bias) in float32, and sum it into the accumulators."""
def activation_reduce(
    dst: _NkiTensor,
    op: _Op,
    data: _NkiTensor,
    reduce_op: _Op,
    reduce_res: _NkiTensor | None,
    bias: _NkiTensor | float | None = None,
    scale: _NkiTensor | float = 1.0,
    name: str | None = None,
) -> _NkiInstruction:
    """Write function(scale * data + bias) in float32, and sum it into the accumulators."""
def affine_select(
    dst: _NkiTensor,
    pattern: list[list[int]],
    channel_multiplier: int,
    on_true_tile: _NkiTensor,
    on_false_value: float | int,
    cmp_op: _Op = ...,
    offset: int | _VirtualRegister = 0,
    name: str | None = None,
) -> _NkiInstruction:
    """Write data where (offset + partition * channel_multiplier + sum(index * step)) `op` 0 holds."""
def bn_aggr(dst: _NkiTensor, data: _NkiTensor, name: str | None = None) -> _NkiInstruction:
    """Combine triples (count, mean, variance * count) into dst = (mean, variance)."""
def bn_stats(dst: _NkiTensor, data: _NkiTensor, name: str | None = None) -> _NkiInstruction:
    """Write (count, mean, variance * count) of data's even elements, then of its odd ones."""
def core_barrier(
    data: _NkiTensor,
    cores: tuple[int, ...],
    engine: _engine = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Cores wait for each other: what each wrote to `data` before is seen by all of them after."""
def dma_compute(
    dst: _NkiTensor,
    srcs: list[_NkiTensor],
    reduce_op: _Op,
    scales: list[float] | None = None,
    unique_indices: bool = True,
    oob_mode: _oob_mode = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Add several sources, element by element: dst = srcs[0] * scales[0] + srcs[1] * scales[1] ..."""
def dma_copy(
    dst: _NkiTensor,
    src: _NkiTensor,
    priority: int | None = None,
    oob_mode: _oob_mode = ...,
    dge_mode: _dge_mode = ...,
    engine: _engine = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Copy src to dst, both in row-major order of their patterns, whatever their shapes."""
def dma_transpose(
    dst: _NkiTensor,
    src: _NkiTensor,
    axes: tuple[int, ...] | None = None,
    priority: int | None = None,
    dge_mode: _dge_mode = ...,
    oob_mode: _oob_mode = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Transpose on the way: two dimensions to (1, 0), three to (2, 1, 0), four to (3, 1, 2, 0)."""
def dropout(
    dst: _NkiTensor,
    data: _NkiTensor,
    prob: _NkiTensor | float,
    name: str | None = None,
) -> _NkiInstruction:
    """Copy data to dst with every element replaced by 0 with a probability."""
def exponential(
    dst: _NkiTensor,
    src: _NkiTensor,
    max_value: _NkiTensor | float = 0.0,
    reduce_res: _NkiTensor | None = None,
    reduce_cmd: _reduce_cmd = ...,
    reduce_init: _NkiTensor | float | None = 0.0,
    name: str | None = None,
) -> _NkiInstruction:
    """Write exp(data - most) in float32, and sum it into the accumulators."""
def get_nc_sub_version() -> int:
    """The revision of the silicon: 0, the first."""
def get_nc_version() -> _nc_version:
    """The NeuronCore generation of the kernel's target."""
gpsimd_engine: _engine
def iota(
    dst: _NkiTensor,
    pattern: list[list[int]],
    offset: int | _VirtualRegister = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> _NkiInstruction:
    """Write offset + partition * channel_multiplier + sum(index * step)."""
def local_gather(
    dst: _NkiTensor,
    src_buffer: _NkiTensor,
    index: _NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """Gather runs of elements with the indices of a core's 16 partitions, alike in each of them."""
def max8(dst: _NkiTensor, src: _NkiTensor, name: str | None = None) -> _NkiInstruction:
    """Write the eight greatest elements of each partition of data, greatest first."""
def memset(
    dst: _NkiTensor,
    value: float | int,
    engine: _engine = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Write one value to every element of dst; an integer dtype takes the value exactly."""
def nc_find_index8(
    dst: _NkiTensor,
    data: _NkiTensor,
    vals: _NkiTensor,
    name: str | None = None,
) -> _NkiInstruction:
    """Write, for each of eight values, the index in data of its first occurrence."""
def nc_match_replace8(
    dst: _NkiTensor,
    data: _NkiTensor,
    vals: _NkiTensor,
    imm: float,
    dst_idx: _NkiTensor | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """Copy data to dst with the first occurrence of each of eight values replaced by `imm`."""
def nc_matmul(
    dst: _NkiTensor,
    stationary: _NkiTensor,
    moving: _NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | _VirtualRegister | None = None,
    tile_position: tuple[int, int] | tuple[()] = (),
    tile_size: tuple[int, int] | tuple[()] = (),
    perf_mode: _matmul_perf_mode = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Multiply matrices: dst = stationary.T @ moving, or dst += stationary.T @ moving."""
def nc_matmul_mx(
    dst: _NkiTensor,
    stationary: _NkiTensor,
    moving: _NkiTensor,
    stationary_scale: _NkiTensor,
    moving_scale: _NkiTensor,
    tile_position: tuple[int, int] | tuple[()] | None = None,
    tile_size: tuple[int, int] | tuple[()] | None = None,
    accumulate: bool | _VirtualRegister | None = None,
    name: str | None = None,
) -> _NkiInstruction:
    """Multiply microscaled matrices: dst = stationary.T @ moving, each value times its scale."""
def nc_n_gather(
    dst: _NkiTensor,
    data: _NkiTensor,
    indices: _NkiTensor,
    name: str | None = None,
) -> _NkiInstruction:
    """Gather within each partition: dst[p, i] = data[p, indices[p, i]], free dimensions flattened."""
def nc_stream_shuffle(
    dst: _NkiTensor,
    src: _NkiTensor,
    shuffle_mask: tuple[int, ...],
    name: str | None = None,
) -> _NkiInstruction:
    """Shuffle partitions in quadrants of 32: dst[32 q + i] = src[32 q + mask[i]]."""
def nc_transpose(
    dst: _NkiTensor,
    data: _NkiTensor,
    engine: _engine = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Transpose: dst [F, P] = data [P, F].T, bit by bit; free dimensions of data count as one."""
def nonzero_with_count(
    dst: _NkiTensor,
    src: _NkiTensor,
    index_offset: int = 0,
    padding_val: int = -1,
    name: str | None = None,
) -> _NkiInstruction:
    """List where elements are not 0: their places, then padding, last their count."""
def quantize_mx(
    dst: _NkiTensor,
    src: _NkiTensor,
    dst_scale: _NkiTensor,
    name: str | None = None,
) -> _NkiInstruction:
    """Quantize src to packed 8-bit floats with a scale for each group of 8 partitions by 4 values."""
def rand2(
    dst: _NkiTensor,
    min: _NkiTensor | float,
    max: _NkiTensor | float,
    name: str | None = None,
) -> _NkiInstruction:
    """Write random numbers, uniform from low to high in float32, converted to dst's dtype."""
def rand_get_state(
    dst: _NkiTensor,
    engine: _engine = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Write the generators' state: each partition of dst takes the state of the same lane."""
def rand_set_state(
    src_seeds: _NkiTensor,
    engine: _engine = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Set the generators' state: each partition of seeds is the state of the same lane."""
def range_select(
    dst: _NkiTensor,
    on_true_tile: _NkiTensor,
    comp_op0: str,
    comp_op1: str,
    bound0: _NkiTensor,
    bound1: _NkiTensor,
    reduce_cmd: _reduce_cmd = ...,
    reduce_res: _NkiTensor | None = None,
    reduce_op: _Op = ...,
    range_start: int = 0,
    on_false_value: float = -3.4028234663852886e+38,
    name: str | None = None,
) -> _NkiInstruction:
    """Write data where its index compares with two bounds, the least float32 elsewhere."""
def reciprocal(dst: _NkiTensor, data: _NkiTensor, name: str | None = None) -> _NkiInstruction:
    """Write 1 / data, element by element, in float32."""
def register_alloc(x: int | None = None) -> _VirtualRegister:
    """A new register, initialised with `x` if given."""
def register_load(dst: _VirtualRegister, src: _NkiTensor) -> None:
    """Load a 32-bit integer, a tensor of one element in HBM or SBUF, into a register."""
def register_move(dst: _VirtualRegister, src: int | _VirtualRegister) -> None:
    """Set a register to an integer or to the value of another register."""
def register_store(dst: _NkiTensor, src: _VirtualRegister) -> None:
    """Store the value of a register to a tensor of one integer in HBM or SBUF."""
def rng(dst: _NkiTensor, engine: _engine = ..., name: str | None = None) -> _NkiInstruction:
    """Write 32 random bits for every element, to a narrower dtype the least significant ones."""
scalar_engine: _engine
def scalar_tensor_tensor(
    dst: _NkiTensor,
    data: _NkiTensor,
    op0: _Op,
    operand0: _NkiTensor | float,
    op1: _Op,
    operand1: _NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> _NkiInstruction:
    """Write (data `op0` operand0) `op1` operand1 with operand0 one value per partition or a number."""
def select_reduce(
    dst: _NkiTensor,
    predicate: _NkiTensor,
    on_true: _NkiTensor,
    on_false: _NkiTensor | float,
    reduce_res: _NkiTensor | None = None,
    reduce_cmd: _reduce_cmd = ...,
    reduce_op: _Op = ...,
    reverse_pred: bool = False,
    name: str | None = None,
) -> _NkiInstruction:
    """Write data where predicate is not 0 (with `reverse` where it is 0), on_false elsewhere."""
def sendrecv(
    src: _NkiTensor,
    dst: _NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: str = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Send src to another core of the logical core and receive its src into dst, at one time."""
def sequence_bounds(
    dst: _NkiTensor,
    segment_ids: _NkiTensor,
    name: str | None = None,
) -> _NkiInstruction:
    """Tell for each of n segment ids where its segment begins and ends: dst [1, 2, n]."""
def set_rng_seed(src_seeds: _NkiTensor, name: str | None = None) -> _NkiInstruction:
    """Seed the generators of all Vector lanes with one value of 32 bits."""
def tensor_copy(
    dst: _NkiTensor,
    src: _NkiTensor,
    engine: _engine = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Copy src to dst, converting the dtype."""
def tensor_copy_predicated(
    dst: _NkiTensor,
    src: _NkiTensor | float,
    predicate: _NkiTensor,
    reverse_pred: bool = False,
    name: str | None = None,
) -> _NkiInstruction:
    """Copy src to dst where predicate is not 0 (with `reverse` where it is 0)."""
tensor_engine: _engine
def tensor_partition_reduce(
    dst: _NkiTensor,
    op: _Op,
    data: _NkiTensor,
    name: str | None = None,
) -> _NkiInstruction:
    """Reduce across partitions: dst [1, F] = `op` over the partitions of data [P, F]."""
def tensor_reduce(
    dst: _NkiTensor,
    op: _Op,
    data: _NkiTensor,
    axis: int | tuple[int, ...],
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> _NkiInstruction:
    """Reduce the innermost `axes` free dimensions of data with `op`."""
def tensor_scalar(
    dst: _NkiTensor,
    data: _NkiTensor,
    op0: _Op,
    operand0: _NkiTensor | float | None,
    reverse0: bool = False,
    op1: _Op | None = None,
    operand1: _NkiTensor | float | None = None,
    reverse1: bool = False,
    engine: _engine = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Write (data `op0` operand0) `op1` operand1, each operand one value per partition or a number."""
def tensor_scalar_cumulative(
    dst: _NkiTensor,
    src: _NkiTensor,
    op0: _Op,
    op1: _Op,
    imm0: _NkiTensor | float,
    imm1: _NkiTensor | float | None = None,
    reduce_cmd: _reduce_cmd = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Scan: s[i] = (data[i] `op0` operand0) `op1` s[i-1]; dst[i] = s[i], in float32."""
def tensor_scalar_reduce(
    dst: _NkiTensor,
    data: _NkiTensor,
    op0: _Op,
    operand0: _NkiTensor | float | None,
    reduce_op: _Op,
    reduce_res: _NkiTensor | None = None,
    reverse0: _Any = False,
    reduce_cmd: _reduce_cmd = ...,
    reduce_init: _NkiTensor | float | None = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> _NkiInstruction:
    """Write data `op0` operand0 in float32, and reduce it into the accumulators with `reduce_op`."""
def tensor_tensor(
    dst: _NkiTensor,
    data1: _NkiTensor,
    data2: _NkiTensor,
    op: _Op,
    engine: _engine = ...,
    name: str | None = None,
) -> _NkiInstruction:
    """Write data1 `op` data2, element by element."""
def tensor_tensor_scan(
    dst: _NkiTensor,
    data0: _NkiTensor,
    data1: _NkiTensor,
    initial: _NkiTensor | float,
    op0: _Op,
    op1: _Op,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> _NkiInstruction:
    """Scan along the free dimensions: s[i] = (data0[i] `op0` s[i-1]) `op1` data1[i]; dst[i] = s[i]."""
def topk(
    val_dst: _NkiTensor,
    idx_dst: _NkiTensor,
    src: _NkiTensor,
    n: int,
    name: str | None = None,
) -> _NkiInstruction:
    """Find the K greatest of the first n elements of each core's snake, and their places in it."""
unknown_engine: _engine
vector_engine: _engine

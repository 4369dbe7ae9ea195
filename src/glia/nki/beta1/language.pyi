"""Written by tools/nki_stubs.py; the module itself holds the documentation."""

from collections.abc import Iterator as _Iterator
from glia.nki.api.tile_size import TileSize as _TileSize
from glia.nki.beta1.api.creation import NcDim as _NcDim
from glia.nki.beta1.api.creation import par_dim as par_dim
from glia.nki.beta1.api.reductions import Axis as _Axis
from glia.nki.beta1.api.reductions import LoopReduction as _LoopReduction
from glia.nki.beta1.tensors.buffers import Buffer as _Buffer
from glia.nki.beta1.tensors.buffers import PsumAllocator as _PsumAllocator
from glia.nki.beta1.tensors.buffers import SbufAllocator as _SbufAllocator
from glia.nki.beta1.tensors.index import DynamicSlice as _DynamicSlice
from glia.nki.beta1.tensors.index import Grid as _Grid
from glia.nki.beta1.tensors.index import Index as _Index
from glia.nki.beta1.tensors.index import LoopIndex as _LoopIndex
from glia.nki.beta1.tensors.tensor import Tensor as _Tensor
from glia.nki.names.dtypes import FloatLimits as _FloatLimits
from numpy import bool as bool_
from numpy import float16 as float16
from numpy import float32 as float32
from numpy import int16 as int16
from numpy import int32 as int32
from numpy import int8 as int8
from numpy import uint16 as uint16
from numpy import uint32 as uint32
from numpy import uint8 as uint8
from typing import Any as _Any

__all__ = ["abs", "add", "affine_range", "all", "all_reduce", "arange", "arctan", "atomic_rmw", "bfloat16", "bfp16", "bitwise_and", "bitwise_or", "bitwise_xor", "bool_", "broadcast_to", "ceil", "copy", "cos", "device_print", "divide", "dropout", "ds", "empty_like", "equal", "erf", "erf_dx", "exp", "expand_dims", "finfo", "float16", "float32", "float8_e4m3", "float8_e5m2", "floor", "fmod", "fp32", "full", "gather_flattened", "gelu", "gelu_apprx_sigmoid", "gelu_apprx_tanh", "gelu_dx", "gemm_grid", "gemm_stationary_grid", "greater", "greater_equal", "hbm", "int16", "int32", "int8", "invert", "left_shift", "less", "less_equal", "load", "load_transpose2d", "log", "logical_and", "logical_not", "logical_or", "logical_xor", "loop_reduce", "matmul", "max", "maximum", "mean", "mgrid", "min", "minimum", "mish", "mod", "multiply", "nc", "ndarray", "negative", "not_equal", "num_programs", "ones", "par_dim", "power", "private_hbm", "prod", "program_id", "program_ndim", "psum", "rand", "random_seed", "reciprocal", "relu", "right_shift", "rms_norm", "rsqrt", "sbuf", "sequential_range", "shared_constant", "shared_hbm", "shared_identity_matrix", "sigmoid", "sign", "silu", "silu_dx", "sin", "softmax", "softplus", "spmd_dim", "sqrt", "square", "static_cast", "static_range", "store", "subtract", "sum", "tan", "tanh", "tfloat32", "tile_size", "transpose", "trunc", "uint16", "uint32", "uint8", "var", "where", "zeros", "zeros_like"]

def abs(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """The magnitude of x. `mask` leaves elements out; as an operator, abs."""
def add(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    max_free_vec_size: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """x + y. `mask` leaves elements out; as an operator, add."""
def affine_range(
    *args: _Any,
    directives: _Any = None,
    precise_schedule: _Any = None,
) -> _Iterator[_LoopIndex]:
    """range(start, stop, step): iterations that may run in any order; here they run forward."""
def all(
    x: _Any,
    axis: _Axis,
    *,
    dtype: _Any = ...,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """Whether no element is 0 along free axes."""
def all_reduce(
    x: _Any,
    op: _Any,
    program_axes: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    parallel_reduce: bool = True,
    asynchronous: bool = False,
    name: _Any = None,
) -> _Tensor:
    """The tiles of all programs along axes of the grid combined by `op`, the same in each of them."""
def arange(*args: int) -> _Index:
    """The index of range(start, stop, step) along one axis."""
def arctan(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """arctan of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, arctan."""
def atomic_rmw(dst: _Any, value: _Any, op: _Any, *, mask: _Any = None, name: _Any = None) -> None:
    """Add a tile to rows of a tensor in HBM that indices choose; equal indices add up."""
bfloat16: _Any
bfp16: _FloatLimits
def bitwise_and(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """The bits that x and y both have. `mask` leaves elements out; as an operator, bitwise_and."""
def bitwise_or(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """The bits that x or y has. `mask` leaves elements out; as an operator, bitwise_or."""
def bitwise_xor(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """The bits that one of x and y has. `mask` leaves elements out; as an operator, bitwise_xor."""
def broadcast_to(src: _Any, *, shape: _Any, name: _Any = None) -> _Tensor:
    """The tile repeated to a shape; one partition is copied to all."""
def ceil(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """The least whole number not below x. `mask` leaves elements out; as an operator, ceil."""
def copy(src: _Any, *, mask: _Any = None, dtype: _Any = None, name: _Any = None) -> _Tensor:
    """The contents of a tile in another one, converted to a dtype."""
def cos(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """The cosine of x, multiples of 2 pi removed first. `mask` leaves elements out; as an operator, cos."""
def device_print(prefix: str, x: _Any, *, mask: _Any = None, name: _Any = None) -> None:
    """Show a tensor under a prefix: at once while simulated, else when the program has run."""
def divide(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    max_free_vec_size: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """x / y. `mask` leaves elements out; as an operator, divide."""
def dropout(
    x: _Any,
    rate: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """x with elements replaced by 0, each with the probability `rate`."""
def ds(start: _Any, size: int) -> slice | _DynamicSlice:
    """`size` elements from `start`, a number or a tile of one element, for indexing."""
def empty_like(
    a: _Tensor,
    dtype: _Any = None,
    *,
    buffer: _Any = None,
    name: str = '',
    lazy_initialization: _Any = None,
) -> _Tensor:
    """A tensor without contents; shape, and by default dtype and buffer, are those of `a`."""
def equal(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """Whether x == y. `mask` leaves elements out; as an operator, equal."""
def erf(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """erf of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, erf."""
def erf_dx(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """erf_dx of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, erf_dx."""
def exp(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """exp of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, exp."""
def expand_dims(data: _Any, axis: int, *, name: _Any = None) -> _Tensor:
    """A view with a dimension of one element at a position."""
def finfo(dtype: _Any) -> _Any:
    """numpy.finfo of a float dtype, including those of ml_dtypes."""
float8_e4m3: _Any
float8_e5m2: _Any
def floor(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """The greatest whole number not above x. `mask` leaves elements out; as an operator, floor."""
def fmod(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """The remainder of x / y with the sign of x. `mask` leaves elements out; as an operator, fmod."""
fp32: _FloatLimits
def full(
    shape: _Any,
    fill_value: _Any,
    dtype: _Any,
    *,
    buffer: _Any = None,
    name: str = '',
    lazy_initialization: _Any = None,
) -> _Tensor:
    """A tensor of one value."""
def gather_flattened(
    data: _Any,
    indices: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """In each partition the elements that indices name, of its free dimensions as one."""
def gelu(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """gelu of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, gelu."""
def gelu_apprx_sigmoid(
    x: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """gelu_apprx_sigmoid of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, gelu_apprx_sigmoid."""
def gelu_apprx_tanh(
    x: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """gelu_apprx_tanh of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, gelu_apprx_tanh."""
def gelu_dx(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """gelu_dx of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, gelu_dx."""
def gemm_grid() -> _Grid:
    """The indices of a moving tile of the largest size."""
def gemm_stationary_grid() -> _Grid:
    """The indices of a stationary tile of the largest size."""
def greater(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """Whether x > y. `mask` leaves elements out; as an operator, greater."""
def greater_equal(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """Whether x >= y. `mask` leaves elements out; as an operator, greater_equal."""
hbm: _Buffer
def invert(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """x with every bit inverted. `mask` leaves elements out; as an operator, invert."""
def left_shift(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """x with its bits y places to the left. `mask` leaves elements out; as an operator, left_shift."""
def less(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """Whether x < y. `mask` leaves elements out; as an operator, less."""
def less_equal(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """Whether x <= y. `mask` leaves elements out; as an operator, less_equal."""
def load(
    src: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    mode: _Any = ...,
    name: _Any = None,
) -> _Tensor:
    """A tile in SBUF with the contents of a tensor in HBM, converted to a dtype."""
def load_transpose2d(
    src: _Any,
    *,
    mask: _Any = None,
    dtype: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """A tile in SBUF with a tensor of two dimensions in HBM, transposed."""
def log(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """log of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, log."""
def logical_and(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """Whether neither x nor y is 0. `mask` leaves elements out; as an operator, logical_and."""
def logical_not(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """Whether x is 0. `mask` leaves elements out; as an operator, logical_not."""
def logical_or(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """Whether x or y is not 0. `mask` leaves elements out; as an operator, logical_or."""
def logical_xor(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """Whether one of x and y is 0. `mask` leaves elements out; as an operator, logical_xor."""
def loop_reduce(
    x: _Any,
    op: _Any,
    loop_indices: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _LoopReduction:
    """x combined by `op` over the loops of the indices, into the slot that it is assigned to."""
def matmul(
    x: _Any,
    y: _Any,
    *,
    transpose_x: bool = False,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """A tile in PSUM: x @ y, or x.T @ y when x is given transposed, in float32."""
def max(
    x: _Any,
    axis: _Axis,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    keepdims: bool = False,
    name: _Any = None,
) -> _Tensor:
    """The greatest along free axes; as an operator, maximum."""
def maximum(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """The greater of x and y. `mask` leaves elements out; as an operator, maximum."""
def mean(
    x: _Any,
    axis: _Axis,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    keepdims: bool = False,
    name: _Any = None,
) -> _Tensor:
    """The mean along free axes, computed in float32."""
mgrid: _Any
def min(
    x: _Any,
    axis: _Axis,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    keepdims: bool = False,
    name: _Any = None,
) -> _Tensor:
    """The least along free axes; as an operator, minimum."""
def minimum(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """The lesser of x and y. `mask` leaves elements out; as an operator, minimum."""
def mish(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """mish of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, mish."""
def mod(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """The remainder of x / y with the sign of y. `mask` leaves elements out; as an operator, mod."""
def multiply(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    max_free_vec_size: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """x * y. `mask` leaves elements out; as an operator, multiply."""
def nc(cores: int) -> _NcDim:
    """`cores` programs of the grid, each on a physical core of its own."""
def ndarray(
    shape: _Any,
    dtype: _Any,
    *,
    buffer: _Any = None,
    name: str = '',
    lazy_initialization: _Any = None,
) -> _Tensor:
    """A tensor without contents; nl.par_dim marks the partitions, dimensions before are blocks."""
def negative(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """-x. `mask` leaves elements out; as an operator, negative."""
def not_equal(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """Whether x != y. `mask` leaves elements out; as an operator, not_equal."""
def num_programs(axes: _Any = None) -> int:
    """How many programs run along axes of the grid, all without any; 1 without a grid."""
def ones(
    shape: _Any,
    dtype: _Any,
    *,
    buffer: _Any = None,
    name: str = '',
    lazy_initialization: _Any = None,
) -> _Tensor:
    """A tensor of ones."""
def power(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """x to the power y. `mask` leaves elements out; as an operator, power."""
private_hbm: _Buffer
def prod(
    x: _Any,
    axis: _Axis,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    keepdims: bool = False,
    name: _Any = None,
) -> _Tensor:
    """The product along free axes; as an operator, multiply."""
def program_id(axis: int = 0) -> int:
    """The number of this program along an axis of the grid."""
def program_ndim() -> int:
    """Dimensions of the grid; 0 without one."""
psum: _PsumAllocator
def rand(shape: _Any, dtype: _Any = ..., *, name: _Any = None) -> _Tensor:
    """A tile of random numbers, uniform in [0, 1)."""
def random_seed(seed: _Any, *, mask: _Any = None, name: _Any = None) -> None:
    """Seed the generator of nl.rand with a number, or one element of 32 bits."""
def reciprocal(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """1 / x. `mask` leaves elements out; as an operator, reciprocal."""
def relu(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """relu of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, relu."""
def right_shift(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    name: _Any = None,
) -> _Tensor:
    """x with its bits y places to the right, zeros from the left. `mask` leaves elements out; as an operator, right_shift."""
def rms_norm(
    x: _Any,
    w: _Any,
    axis: _Axis,
    n: int,
    epsilon: float = 1e-06,
    *,
    dtype: _Any = None,
    compute_dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """x over the root of (its squares' sum / n + epsilon) along free axes, times w."""
def rsqrt(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """rsqrt of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, rsqrt."""
sbuf: _SbufAllocator
def sequential_range(
    *args: _Any,
    directives: _Any = None,
    body_no_reorder: bool = False,
    precise_schedule: _Any = None,
) -> _Iterator[_LoopIndex]:
    """range(start, stop, step): iterations that run one after the other."""
def shared_constant(constant: _Any, dtype: _Any = None, *, name: _Any = None) -> _Tensor:
    """A tensor in HBM that holds an array of the host from the start, in a dtype."""
shared_hbm: _Buffer
def shared_identity_matrix(n: int, dtype: _Any = ..., *, name: _Any = None) -> _Tensor:
    """The identity of n rows, in HBM."""
def sigmoid(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """sigmoid of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, sigmoid."""
def sign(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """sign of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, sign."""
def silu(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """silu of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, silu."""
def silu_dx(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """silu_dx of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, silu_dx."""
def sin(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """The sine of x, multiples of 2 pi removed first. `mask` leaves elements out; as an operator, sin."""
def softmax(
    x: _Any,
    axis: _Axis,
    *,
    dtype: _Any = None,
    compute_dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """exp(x - greatest) over its sum along free axes."""
def softplus(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """softplus of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, softplus."""
def spmd_dim(*parts: int) -> int:
    """A dimension of the grid made of several, some of which may be nl.nc(...)."""
def sqrt(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """sqrt of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, sqrt."""
def square(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """square of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, square."""
def static_cast(input_data: _Any, dtype: _Any) -> _Any:
    """An array or number of the host in another dtype; tfloat32 is float32 there."""
def static_range(*args: _Any) -> _Iterator[_LoopIndex]:
    """range(start, stop, step), unrolled when the kernel is compiled."""
def store(
    dst: _Any,
    value: _Any,
    *,
    mask: _Any = None,
    mode: _Any = ...,
    name: _Any = None,
) -> None:
    """Write a tile, or a number, to a tensor in HBM; `mode` as in nl.load."""
def subtract(
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    spreads_partitions: bool = True,
    max_free_vec_size: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """x - y. `mask` leaves elements out; as an operator, subtract."""
def sum(
    x: _Any,
    axis: _Axis,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    keepdims: bool = False,
    name: _Any = None,
) -> _Tensor:
    """The sum along free axes; as an operator, add."""
def tan(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """The tangent of x. `mask` leaves elements out; as an operator, tan."""
def tanh(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """tanh of x, from a table of the Scalar Engine. `mask` leaves elements out; as an operator, tanh."""
tfloat32: _Any
tile_size: _TileSize
def transpose(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """A tile in SBUF with a tile of two dimensions, transposed."""
def trunc(x: _Any, *, dtype: _Any = None, mask: _Any = None, name: _Any = None) -> _Tensor:
    """x without its fraction. `mask` leaves elements out; as an operator, trunc."""
def var(
    x: _Any,
    axis: _Axis,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """The mean square distance from the mean along free axes."""
def where(
    condition: _Tensor,
    x: _Any,
    y: _Any,
    *,
    dtype: _Any = None,
    mask: _Any = None,
    name: _Any = None,
) -> _Tensor:
    """x where the condition is not 0, y elsewhere; both are tiles or numbers."""
def zeros(
    shape: _Any,
    dtype: _Any,
    *,
    buffer: _Any = None,
    name: str = '',
    lazy_initialization: _Any = None,
) -> _Tensor:
    """A tensor of zeros; in PSUM the first product overwrites them."""
def zeros_like(
    a: _Tensor,
    dtype: _Any = None,
    *,
    buffer: _Any = None,
    name: str = '',
    lazy_initialization: _Any = None,
) -> _Tensor:
    """A tensor of zeros; shape, and by default dtype and buffer, are those of `a`."""

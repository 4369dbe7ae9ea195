"""Written by tools/nki_stubs.py; the module itself holds the documentation."""

from builtins import str as DType
from collections.abc import Callable as _Callable
from collections.abc import Iterator as _Iterator
from glia.nki.api.creation import Shape as _Shape
from glia.nki.api.loops import Bound as _Bound
from glia.nki.api.reductions import Axis as _Axis
from glia.nki.api.tile_size import TileSize as _TileSize
from glia.nki.names.enums import MemoryRegion as MemoryRegion
from glia.nki.names.enums import MemoryRegion as _MemoryRegion
from glia.nki.names.operators import OperatorToken as _OperatorToken
from glia.nki.tensors.nki_object import NKIObject as NKIObject
from glia.nki.tensors.nki_tensor import NkiTensor as NkiTensor
from glia.nki.tensors.nki_tensor import NkiTensor as _NkiTensor
from glia.nki.tensors.registers import VirtualRegister as _VirtualRegister
from typing import Any as _Any

__all__ = ["DType", "MemoryRegion", "NKIObject", "NkiTensor", "abs", "abs_max", "abs_min", "add", "affine_range", "all", "arctan", "average", "bfloat16", "bitwise_and", "bitwise_or", "bitwise_xor", "bool_", "broadcast_to", "bypass", "ceil", "copy", "cos", "device_print", "divide", "dropout", "ds", "dynamic_range", "empty_like", "equal", "erf", "erf_dx", "exp", "expand_dims", "float16", "float32", "float4_e2m1fn_x4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fn_x4", "float8_e5m2", "float8_e5m2_x4", "float8_e8m0fnu", "floor", "fmod", "fori_loop", "full", "gather_flattened", "gelu", "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "gelu_apprx_tanh", "gelu_dx", "greater", "greater_equal", "hbm", "int16", "int32", "int8", "invert", "is_hbm", "is_on_chip", "is_psum", "is_sbuf", "left_shift", "less", "less_equal", "load", "load_transpose2d", "log", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "max", "maximum", "mean", "min", "minimum", "mish", "mod", "multiply", "ndarray", "negative", "no_reorder", "not_equal", "num_programs", "ones", "power", "prelu", "private_hbm", "prod", "program_id", "program_ndim", "psum", "rand", "random_seed", "reciprocal", "relu", "right_shift", "rms_norm", "rsqrt", "sbuf", "sequential_range", "shared_constant", "shared_hbm", "shared_identity_matrix", "sigmoid", "sign", "silu", "silu_dx", "sin", "softmax", "softplus", "sqrt", "square", "static_range", "store", "subtract", "sum", "tan", "tanh", "tfloat32", "tile_size", "transpose", "trunc", "uint16", "uint32", "uint8", "var", "where", "while_loop", "zeros", "zeros_like"]

def abs(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The magnitude of x."""
def abs_max(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """x or y, of greater magnitude; y if equal. From generation 4."""
def abs_min(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """x or y, of lesser magnitude; y if equal. From generation 4."""
def add(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """x + y, element by element."""
def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's range: the loop is unrolled."""
def all(x: _NkiTensor, axis: _Axis, dtype: str | None = None) -> _NkiTensor:
    """1 where no element of the last dimensions is 0, else 0."""
def arctan(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The arc tangent of x."""
average: _OperatorToken
bfloat16: str
def bitwise_and(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """The bits that x and y both have."""
def bitwise_or(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """The bits that x or y has."""
def bitwise_xor(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """The bits that one of x and y has."""
bool_: str
def broadcast_to(x: _NkiTensor, shape: tuple[int, ...], dtype: str | None = None) -> _NkiTensor:
    """A tile of a shape of the same rank; dimensions of extent 1 repeat."""
bypass: _OperatorToken
def ceil(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The least integer not below x."""
def copy(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """x in another tile."""
def cos(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The cosine of x, reduced modulo 2 pi first."""
def device_print(print_prefix: str, tensor: _NkiTensor) -> None:
    """Print a tensor under a prefix: at once while simulated, else after the program has run."""
def divide(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """x / y, element by element, on GpSimd."""
def dropout(x: _NkiTensor, rate: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """x with elements replaced by 0, each with the probability `rate`."""
def ds(start: int | _VirtualRegister, size: int) -> _Any:
    """`size` elements from `start`, for indexing; start may be a register."""
def dynamic_range(
    start: _Bound,
    stop: _Bound | None = None,
    step: int = 1,
) -> _Iterator[_VirtualRegister]:
    """A loop on the device over start, start + step, ... below stop; bounds may be registers."""
def empty_like(
    x: _NkiTensor,
    dtype: str | None = None,
    buffer: _MemoryRegion | None = None,
    name: str = '',
) -> _NkiTensor:
    """A new uninitialised tensor of the shape of `x`; dtype and buffer default to those of `x`."""
def equal(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """1 where x == y, else 0."""
def erf(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The error function of x."""
def erf_dx(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The derivative of erf."""
def exp(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """e to the power x."""
def expand_dims(x: _NkiTensor, axis: int) -> _NkiTensor:
    """A view with a dimension of extent 1 at `axis`."""
float16: str
float32: str
float4_e2m1fn_x4: str
float8_e4m3: str
float8_e4m3fn: str
float8_e4m3fn_x4: str
float8_e5m2: str
float8_e5m2_x4: str
float8_e8m0fnu: str
def floor(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The greatest integer not above x."""
def fmod(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """The remainder of x / y with the sign of x, on GpSimd."""
def fori_loop(
    lower: _Bound,
    upper: _Bound,
    body_fun: _Callable[[_VirtualRegister], _Any],
    step: int = 1,
) -> None:
    """Call body_fun(i) on the device for i = lower, lower + step, ... below upper."""
def full(
    shape: _Shape,
    fill_value: float,
    dtype: str,
    buffer: _MemoryRegion = ...,
    name: str = '',
) -> _NkiTensor:
    """A new tensor filled with one value."""
def gather_flattened(
    data: _NkiTensor,
    indices: _NkiTensor,
    axis: int = 0,
    dtype: str | None = None,
) -> _NkiTensor:
    """Gather elements of each partition by index into its flattened free dimensions."""
def gelu(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """x times the normal distribution of x."""
def gelu_apprx_sigmoid(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """x * sigmoid(1.702 x)."""
def gelu_apprx_sigmoid_dx(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The derivative of gelu_apprx_sigmoid."""
def gelu_apprx_tanh(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """gelu through tanh."""
def gelu_dx(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The derivative of gelu."""
def greater(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """1 where x > y, else 0."""
def greater_equal(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """1 where x >= y, else 0."""
hbm: _MemoryRegion
int16: str
int32: str
int8: str
def invert(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """x with all bits inverted."""
def is_hbm(buffer: _MemoryRegion) -> bool:
    """Whether a buffer is in HBM."""
def is_on_chip(buffer: _MemoryRegion) -> bool:
    """Whether a buffer is SBUF or PSUM."""
def is_psum(buffer: _MemoryRegion) -> bool:
    """Whether a buffer is PSUM."""
def is_sbuf(buffer: _MemoryRegion) -> bool:
    """Whether a buffer is SBUF."""
def left_shift(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """x with its bits y places to the left."""
def less(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """1 where x < y, else 0."""
def less_equal(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """1 where x <= y, else 0."""
def load(src: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """A tile in SBUF with the contents of a tensor in HBM."""
def load_transpose2d(src: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """A tile in SBUF with the contents of a tensor of two dimensions, transposed."""
def log(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The natural logarithm of x, from 2**-64 to 2**64."""
def logical_and(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """1 where neither x nor y is 0, else 0."""
def logical_not(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """1 where x is 0, else 0."""
def logical_or(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """1 where x or y is not 0, else 0."""
def logical_xor(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """1 where one of x and y is 0, else 0."""
def matmul(x: _NkiTensor, y: _NkiTensor, transpose_x: bool = False) -> _NkiTensor:
    """A tile in PSUM: x @ y, or x.T @ y when x is given transposed, in float32."""
def max(x: _NkiTensor, axis: _Axis, dtype: str | None = None, keepdims: bool = False) -> _NkiTensor:
    """The maximum over the last dimensions; as an operator, maximum."""
def maximum(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """The greater of x and y, element by element."""
def mean(
    x: _NkiTensor,
    axis: _Axis,
    dtype: str | None = None,
    keepdims: bool = False,
) -> _NkiTensor:
    """The mean over the last dimensions, computed in float32."""
def min(x: _NkiTensor, axis: _Axis, dtype: str | None = None, keepdims: bool = False) -> _NkiTensor:
    """The minimum over the last dimensions; as an operator, minimum."""
def minimum(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """The lesser of x and y, element by element."""
def mish(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """x * tanh(softplus(x))."""
def mod(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """The remainder of x / y with the sign of y, on GpSimd."""
def multiply(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """x * y, element by element."""
def ndarray(
    shape: tuple[int, ...] | list[int],
    dtype: str,
    buffer: _MemoryRegion = ...,
    name: str = '',
    address: tuple[int, int] | None = None,
) -> _NkiTensor:
    """A new uninitialised tensor; on chip the first dimension is the partitions."""
def negative(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """-x."""
def no_reorder() -> _Any:
    """A context manager whose block keeps program order."""
def not_equal(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """1 where x != y, else 0."""
def num_programs(axes: int | tuple[int, ...] | None = 0) -> int:
    """How many programs run; 1 without a grid."""
def ones(shape: _Shape, dtype: str, buffer: _MemoryRegion = ..., name: str = '') -> _NkiTensor:
    """A new tensor of ones."""
def power(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """x to the power y, element by element, on GpSimd."""
prelu: _OperatorToken
private_hbm: _MemoryRegion
def prod(
    x: _NkiTensor,
    axis: _Axis,
    dtype: str | None = None,
    keepdims: bool = False,
) -> _NkiTensor:
    """The product over the last dimensions; as an operator, multiply."""
def program_id(axis: int = 0) -> int:
    """The number of this program along an axis of the grid."""
def program_ndim() -> int:
    """Dimensions of the grid: 1, or 0 when the kernel was launched without one."""
psum: _MemoryRegion
def rand(shape: _Shape, dtype: str, buffer: _MemoryRegion = ..., name: str = '') -> _NkiTensor:
    """A new tensor of random numbers, uniform in [0, 1)."""
def random_seed(seed: _NkiTensor) -> None:
    """Seed the generator of nl.rand with one element of 32 bits."""
def reciprocal(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """1 / x."""
def relu(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """x where it is positive, else 0."""
def right_shift(
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """x with its bits y places to the right, zeros from the left."""
def rms_norm(
    x: _NkiTensor,
    w: _NkiTensor,
    axis: _Axis,
    n: int,
    epsilon: float = 1e-06,
    dtype: str | None = None,
    compute_dtype: str | None = None,
) -> _NkiTensor:
    """w * x / sqrt(sum(x * x) / n + epsilon), the sum along `axis`."""
def rsqrt(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """1 / sqrt(x), from 2**-87 to 2**97."""
sbuf: _MemoryRegion
def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's range: the loop is unrolled."""
def shared_constant(constant: _Any) -> _NkiTensor:
    """A tensor in shared HBM initialised with an array, or with the array of an .npy file."""
shared_hbm: _MemoryRegion
def shared_identity_matrix(
    n: int,
    dtype: str = 'uint8',
    dst: _NkiTensor | None = None,
) -> _NkiTensor:
    """The identity of n rows in SBUF, in `dst` when it is given."""
def sigmoid(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """1 / (1 + exp(-x))."""
def sign(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """-1, 0 or 1 as x is negative, 0 or positive."""
def silu(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """x * sigmoid(x)."""
def silu_dx(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The derivative of silu."""
def sin(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The sine of x, reduced modulo 2 pi first."""
def softmax(x: _NkiTensor, axis: _Axis = -1, dtype: str | None = None) -> _NkiTensor:
    """exp(x - maximum) over its sum along the last dimensions, computed in float32."""
def softplus(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """log(1 + exp(x))."""
def sqrt(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The square root of x, from 2**-116 to 2**118."""
def square(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """x * x."""
def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's range: the loop is unrolled."""
def store(dst: _NkiTensor, value: _NkiTensor) -> None:
    """Write a tile to a tensor in HBM."""
def subtract(x: _NkiTensor | float, y: _NkiTensor | float, dtype: str | None = None) -> _NkiTensor:
    """x - y, element by element."""
def sum(x: _NkiTensor, axis: _Axis, dtype: str | None = None, keepdims: bool = False) -> _NkiTensor:
    """The sum over the last dimensions; as an operator, add."""
def tan(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The tangent of x."""
def tanh(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """The hyperbolic tangent of x."""
tfloat32: str
tile_size: _TileSize
def transpose(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """A tile in PSUM with the contents of a tile of two dimensions, transposed."""
def trunc(x: _NkiTensor, dtype: str | None = None) -> _NkiTensor:
    """x without its fraction."""
uint16: str
uint32: str
uint8: str
def var(x: _NkiTensor, axis: _Axis, dtype: str | None = None, keepdims: bool = False) -> _NkiTensor:
    """The variance over the last dimensions, which stay with extent 1."""
def where(
    condition: _NkiTensor,
    x: _NkiTensor | float,
    y: _NkiTensor | float,
    dtype: str | None = None,
) -> _NkiTensor:
    """x where the condition is not 0, y elsewhere."""
def while_loop(
    init: _VirtualRegister,
    body_fun: _Callable[[_VirtualRegister], _VirtualRegister],
) -> None:
    """r = init; while r != 0: r = body_fun(r), on the device."""
def zeros(shape: _Shape, dtype: str, buffer: _MemoryRegion = ..., name: str = '') -> _NkiTensor:
    """A new tensor of zeros."""
def zeros_like(
    x: _NkiTensor,
    dtype: str | None = None,
    buffer: _MemoryRegion | None = None,
    name: str = '',
) -> _NkiTensor:
    """A new tensor of zeros of the shape of `x`; dtype and buffer default to those of `x`."""

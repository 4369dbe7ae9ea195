"""Functions of nl that move data: loads, stores, transposes, products, gathers and views."""

from __future__ import annotations

from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.gpsimd_gather import NcNGather
from glia.isa.operand import Memory
from glia.nki.api.elementwise import SBUF, convert, copy_into, ensure_in_sbuf, result_dtype
from glia.nki.issue.functions import issuer
from glia.nki.issue.instruction import issue, refuse
from glia.nki.issue.transfers import dma_copy, dma_transpose
from glia.nki.names.dtypes import DTYPES
from glia.nki.names.enums import MemoryRegion
from glia.nki.session.session import current
from glia.nki.tensors.nki_tensor import NkiTensor, ndarray

PSUM = MemoryRegion.psum
_nc_matmul = issuer("nc_matmul")
_nc_transpose = issuer("nc_transpose")
_FLOATS = {4: "float32", 2: "bfloat16", 1: "float8_e5m2"}  # transposed bit for bit


def load(src: NkiTensor, dtype: str | None = None) -> NkiTensor:
    """A tile in SBUF with the contents of a tensor in HBM."""
    tile = ndarray(src.shape, result_dtype(dtype, src), SBUF, "load")
    dma_copy(tile, src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Write a tile to a tensor in HBM."""
    dma_copy(dst, ensure_in_sbuf(value))


def load_transpose2d(src: NkiTensor, dtype: str | None = None) -> NkiTensor:
    """A tile in SBUF with the contents of a tensor of two dimensions, transposed."""
    if src.ndim != 2:
        refuse("load_transpose2d", f"nl.load_transpose2d src must have two dimensions: {src.shape}")
    turned = ndarray(src.shape[::-1], src.dtype, SBUF, "load")
    dma_transpose(turned, src)
    name = result_dtype(dtype, src)
    return turned if name == src.dtype else convert(turned, name)


def transpose(x: NkiTensor, dtype: str | None = None) -> NkiTensor:
    """A tile in PSUM with the contents of a tile of two dimensions, transposed."""
    session = current("nl.transpose")
    name = result_dtype(dtype, x)
    data = ensure_in_sbuf(x) if name == x.dtype else convert(x, name)
    transposed = ndarray((x.size // x.shape[0], x.shape[0]), name, PSUM, "transpose")
    is_float = DTYPES[name].is_float
    if not is_float and not session.arch.capabilities.has_bit_exact_transpose:
        _transpose_integers(data, transposed)
        return transposed
    bits = _FLOATS[data.stored.bytes]
    dst, src = (t if is_float else t.view(bits) for t in (transposed, data))
    _nc_transpose(dst=dst, data=src)
    return transposed


def _transpose_integers(data: NkiTensor, transposed: NkiTensor) -> None:
    """Transpose integers 16 bits at a time, as float32 numbers, which products keep exact."""
    parts = [(data, transposed)]
    if data.stored.bytes == 4:
        halves = data.view("uint16"), transposed.view("uint16")
        parts = [(halves[0][:, k::2], halves[1][:, k::2]) for k in range(2)]
    for part, place in parts:
        number = convert(part, "float32")
        across = ndarray(transposed.shape, "float32", PSUM, "transpose")
        _nc_transpose(dst=across, data=number)
        copy_into(dst=place, src=across)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """A tile in PSUM: x @ y, or x.T @ y when x is given transposed, in float32."""
    for name, tile in (("x", x), ("y", y)):
        if tile.ndim < 2:
            refuse("matmul", f"nl.matmul {name} must have two dimensions; here it has {tile.ndim}")
    stationary = x if transpose_x else ensure_in_sbuf(transpose(x))
    result = ndarray((stationary.shape[1], y.shape[1]), "float32", PSUM, "matmul")
    _nc_matmul(dst=result, stationary=stationary, moving=ensure_in_sbuf(y), accumulate=False)
    return result


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view with a dimension of extent 1 at `axis`."""
    return x.expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: tuple[int, ...], dtype: str | None = None) -> NkiTensor:
    """A tile of a shape of the same rank; dimensions of extent 1 repeat."""
    wanted, name = tuple(shape), result_dtype(dtype, x)
    if wanted == x.shape and name == x.dtype:
        return x
    if len(wanted) != x.ndim or any(
        have not in (1, want) for have, want in zip(x.shape, wanted, strict=True)
    ):
        refuse("broadcast_to", f"shape {x.shape} does not broadcast to {wanted}")
    dims = tuple(
        (step if count == want else 0, want)
        for (step, count), want in zip(x.dims, wanted, strict=True)
    )
    repeated = x._derive(dims)
    tile = ndarray(wanted, name, SBUF, "broadcast")
    if x.shape[0] == wanted[0] and x.is_on_chip:
        copy_into(dst=tile, src=repeated)
    else:
        fields = {"dst": tile, "src": repeated if x.is_on_chip else x}
        issue(current("nl.broadcast_to"), "dma_copy", DmaCopy, fields)
    return tile


def gather_flattened(
    data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: str | None = None
) -> NkiTensor:
    """Gather elements of each partition by index into its flattened free dimensions."""
    if axis != 0:
        refuse("gather_flattened", f"gather_flattened axis must be 0; here it is {axis}")
    result = ndarray(indices.shape, data.dtype, SBUF, "gathered")
    fields = {"dst": result, "data": ensure_in_sbuf(data), "indices": indices}
    issue(current("nl.gather_flattened"), "nc_n_gather", NcNGather, fields)
    name = result_dtype(dtype, data)
    return result if name == data.dtype else convert(result, name)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor under a prefix: at once while simulated, else after the program has run.

    It is printed in every iteration of a loop; of a loop with a run-time trip count a compiled
    kernel prints the last iteration only.
    """
    if not isinstance(print_prefix, str):
        refuse("device_print", "device_print takes a string as its prefix")
    if not isinstance(tensor, NkiTensor) or tensor.tile.memory is Memory.PSUM:
        refuse("device_print", "device_print takes a tensor in SBUF or HBM")
    current("nl.device_print").print_tensor(print_prefix, tensor.direct_pattern, tensor.dtype)

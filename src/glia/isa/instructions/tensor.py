"""The Tensor Engine: matrix multiplication and transposition through the systolic array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import BF16, F8E4M3, F8E4M3FN, F8E5M2, F16, F32, TF32, DType, from_numpy
from glia.base.errors import Unspecified
from glia.isa.cost import stream_cycles
from glia.isa.examples import chip
from glia.isa.kit import Array, Indirect, Instr, Rule, reads, updates, writes
from glia.isa.numerics import narrow, widen
from glia.isa.operand import Pattern
from glia.isa.rules import FLOATS, dtypes

if TYPE_CHECKING:
    from glia.arch import Arch

MATMUL = "NKI nki.isa.nc_matmul"
TRANSPOSE = "NKI nki.isa.nc_transpose"
WIDE = (F32, TF32)
DOUBLE = (F8E4M3, F8E5M2, F8E4M3FN)
ARRAY = (128, 128)  # rows and columns of processing elements
QUARTER = 32
SIDES = (QUARTER, 64, 128)  # of a tile of the array
WHOLE_ARRAY = (
    "tile_position is unset or (0, 0) with indirect operands",
    lambda i, _: i.tile_position in ((), (0, 0)),
)


def passes(dtype: DType, arch: Arch) -> float:
    """How many times the cost of bfloat16 a product of this dtype has."""
    return arch.tensor_passes.get(dtype.name, 1.0)


class OnArray(Protocol):
    """An instruction that may take a part of the array; without position and size all of it."""

    @property
    def tile_position(self) -> tuple[int, ...]: ...

    @property
    def tile_size(self) -> tuple[int, ...]: ...


def fits_tile(i: Any, columns: int) -> bool:
    """Whether the rows and columns of the stationary operand fit in the part that is used."""
    rows, most, *_ = (*tile_of(i)[1], *ARRAY)
    return i.stationary.partitions <= rows and columns <= most


def tile_of(i: OnArray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The part of the array that is used: (start row, start column), (rows, columns)."""
    return i.tile_position or (0, 0), i.tile_size or ARRAY


def tiling_holds(i: OnArray, arch: Arch) -> bool:
    """Whether position and size are given together and name a tile of the array."""
    if bool(i.tile_position) != bool(i.tile_size):
        return False
    position, size = tile_of(i)
    if len(position) != 2 or len(size) != 2:
        return False
    pairs = list(zip(position, size, ARRAY, strict=True))
    sides = all(side in SIDES for side in size)
    inside = sides and all(0 <= p <= most - s and p % s == 0 for p, s, most in pairs)
    return inside and (arch.capabilities.has_quarter_tiles or QUARTER not in size)


def _columns(i: NcMatmul) -> int:
    return i.stationary.free // i.rows_per_partition


def _product_shape(i: NcMatmul, _: Arch) -> bool:
    per = i.rows_per_partition
    return i.dst.partitions * per == i.stationary.free and i.dst.free * per == i.moving.free


def moving_fits(i: Instr, columns: int, arch: Arch) -> bool:
    """At most the columns of one PSUM bank; what fits in all banks where products cross them."""
    if not arch.capabilities.has_products_across_banks:
        return columns <= arch.moving_columns
    dst: Pattern = i.dst  # type: ignore[attr-defined]
    return columns * dst.dtype.bytes <= arch.psum_bytes_per_partition


def _both_float32_or_neither(i: NcMatmul, _: Arch) -> bool:
    return (i.stationary.dtype in WIDE) == (i.moving.dtype in WIDE)


def _formats_are_compatible(i: NcMatmul, _: Arch) -> bool:
    return {i.stationary.dtype, i.moving.dtype} != {F8E4M3, F8E4M3FN}


def sum_dtype(i: Instr, arch: Arch) -> bool:
    """Whether dst has a dtype of sums: float32, or bfloat16 where the core has such sums."""
    dst: Pattern = i.dst  # type: ignore[attr-defined]
    return dst.dtype is F32 or (dst.dtype is BF16 and arch.capabilities.has_bf16_sums)


def _destination_dtype(i: NcMatmul, arch: Arch) -> bool:
    if not i.is_transpose:
        return sum_dtype(i, arch)
    multiplies = not arch.capabilities.has_bit_exact_transpose
    return i.dst.dtype is i.stationary.dtype or (multiplies and i.dst.dtype is F32)


def _double_rows(i: NcMatmul, _: Arch) -> bool:
    if i.perf_mode != "double_row":
        return True
    patterns = (i.stationary, i.moving)
    return all(p.dtype in DOUBLE and len(p.dims) >= 3 and p.dims[1][1] == 2 for p in patterns)


def _double_row_is_allowed(i: NcMatmul, arch: Arch) -> bool:
    if i.perf_mode != "double_row":
        return True
    has_columns = tile_of(i)[1][1:] == ARRAY[1:]
    return arch.capabilities.has_double_row and has_columns and not i.is_transpose


class NcMatmul(Instr, engine="tensor"):
    """Multiply matrices: dst = stationary.T @ moving, or dst += stationary.T @ moving.

    stationary is [K, M], moving [K, N], dst [M, N], K and M on the partitions; free dimensions
    count as one. Products and sums are float32; tf32 operands have 10 bits of mantissa.
    `accumulate` adds to what dst holds; an affine expression accumulates where it is not 0, so
    that a loop's first iteration can overwrite. With None each element accumulates that already
    holds a sum of products through the same tile, and every other one is overwritten; whatever else
    writes an element ends its sum.

    `is_transpose` gives stationary turned, bit by bit, where moving is an identity matrix (a
    product on generation 2). In `perf_mode` "double_row" stationary is [K, 2, M], moving [K, 2, N],
    and both rows are contracted. `tile_position` and `tile_size` say which rows and columns of the
    array are used, `is_stationary_onezero` and `is_moving_onezero` that an operand holds nothing
    but ones and zeros: they change the cost and no value.

    The array's structured sparsity (4 of 16 and so on) has no public instruction; it is
    documented in the architecture guides as pictures only.
    """

    dst: Pattern = updates("PSUM")
    stationary: Pattern = reads("SBUF")
    moving: Pattern = reads("SBUF")
    accumulate: bool | Affine | None = False
    is_stationary_onezero: bool = False
    is_moving_onezero: bool = False
    is_transpose: bool = False
    tile_position: tuple[int, ...] = ()
    tile_size: tuple[int, ...] = ()
    perf_mode: str = "none"

    arrives = "flat"
    read_when: ClassVar = {"dst": "accumulate"}
    sums: ClassVar = {"dst": "accumulate"}
    hints: ClassVar = ("tile_position", "tile_size")
    takes_capabilities: ClassVar = ("has_bit_exact_transpose",)
    assumed: ClassVar = (
        "tf32 operands are rounded to the nearest value, ties to even",
        "the order in which products are added is that of the host's matrix product",
    )
    indirect = Indirect(
        ("dst", "stationary", "moving"),
        "stationary",
        MATMUL,
        group=32,
        rules=(
            (
                "in transpose mode moving is no indirect view",
                lambda i, indices: not i.is_transpose or "moving" not in indices,
            ),
            WHOLE_ARRAY,
            (
                "indirect stationary and moving are float16, bfloat16 or 8-bit floats",
                lambda i, indices: all(
                    getattr(i, name).dtype in (F16, BF16, *DOUBLE)
                    for name in indices.keys() - {"dst"}
                ),
            ),
        ),
    )
    cost_source = (
        "NKI release 2.26.1, nki.isa.nc_matmul; fp32 as measured, 2 instructions of 2N; double fp8 "
        "rows: Trainium2 guide"
    )
    rules = (
        Rule(
            "{stationary} and {moving} must have the same number of partitions",
            lambda i, _: i.stationary.partitions == i.moving.partitions,
            MATMUL,
            "both hold the dimension that is summed over on their partitions; transpose the other",
        ),
        Rule(
            "{dst} must have a partition for each column of {stationary}, a column for each of "
            "{moving}",
            _product_shape,
            MATMUL,
        ),
        Rule(
            "{moving} must have at most 512 columns, the float32 elements of one PSUM bank, or on "
            "generation 4 what fits in PSUM",
            lambda i, arch: moving_fits(i, i.moving.free // i.rows_per_partition, arch),
            MATMUL,
            "loop over 512 columns of moving, into another bank of PSUM each",
        ),
        dtypes("stationary", FLOATS, source=MATMUL),
        dtypes("moving", FLOATS, source=MATMUL),
        Rule(
            "float32 and tf32 multiply only each other",
            _both_float32_or_neither,
            MATMUL,
            "copy one with tensor_copy into a tile of the other's dtype",
        ),
        Rule("float8_e4m3 does not multiply float8_e4m3fn", _formats_are_compatible, MATMUL),
        Rule(
            "{dst} must be float32 (bfloat16 too on generation 4), in transpose mode as stationary",
            _destination_dtype,
            MATMUL,
            "let dst be float32, and round when it is copied to SBUF",
        ),
        Rule(
            "transpose mode does not accumulate",
            lambda i, _: not i.is_transpose or i.accumulate in (None, False),
            "assumed",
        ),
        Rule(
            "{perf_mode} must be none or double_row",
            lambda i, _: i.perf_mode in ("none", "double_row"),
            MATMUL,
        ),
        Rule(
            "double rows are of 8-bit floats, a first free dimension of 2 in both operands",
            _double_rows,
            MATMUL,
        ),
        Rule(
            "double rows need generation 3, all columns of the array, and no transpose mode",
            _double_row_is_allowed,
            "Trainium2 architecture guide, double fp8 performance",
        ),
        Rule(
            "{tile_position} and {tile_size} must name a tile of 64 or 128 (from generation 3 on "
            "also 32) rows and columns at a multiple of its size",
            tiling_holds,
            MATMUL,
        ),
        Rule(
            "{stationary} must have at most as many partitions and columns as the tile of the "
            "array, 128 without one",
            lambda i, _: fits_tile(i, _columns(i)),
            MATMUL,
            "loop over 128 columns of stationary, and over 128 partitions, which add up in dst",
        ),
    )

    @property
    def rows_per_partition(self) -> int:
        """How many rows of the product's operands lie in one partition."""
        return 2 if self.perf_mode == "double_row" else 1

    @property
    def is_exact(self) -> bool:
        return self.is_transpose

    @property
    def is_sum(self) -> bool:
        return not self.is_transpose

    @property
    def products(self) -> int:
        """How many pairs of numbers are multiplied."""
        return self.stationary.partitions * self.stationary.free * self.dst.free

    @staticmethod
    def compute(
        dst: Array,
        stationary: Array,
        moving: Array,
        accumulate: bool | Array,
        is_stationary_onezero: bool,
        is_moving_onezero: bool,
        is_transpose: bool,
        perf_mode: str,
        has_bit_exact_transpose: bool,
    ) -> Array:
        if is_stationary_onezero:
            _require_onezero(widen(stationary), "stationary")
        if is_moving_onezero:
            _require_onezero(widen(moving), "moving")
        if is_transpose:
            return _transposed_by_selection(stationary, moving, has_bit_exact_transpose)
        if perf_mode == "double_row":
            stationary = stationary.reshape(2 * len(stationary), -1)
            moving = moving.reshape(2 * len(moving), -1)
        return added(dst, stationary.T @ moving, accumulate)

    def cycles(self, arch: Arch) -> int:
        """One column of moving per cycle, at least the least issue interval, in every pass.

        Ones and zeros halve the passes of float32; transpose mode has its own number of passes.
        """
        columns = max(arch.min_issue_cycles["tensor"], self.moving.free // self.rows_per_partition)
        if self.is_transpose:
            return round(columns * arch.transpose_passes.get(self.stationary.dtype.name, 1.0))
        is_simple = self.is_stationary_onezero or self.is_moving_onezero
        saved = 2 if is_simple and self.moving.dtype is F32 else 1
        return round(columns * passes(self.moving.dtype, arch) / saved)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("sum", 32, 32, memory="PSUM"),
            stationary=chip("a", 64, 32),
            moving=chip("b", 64, 32),
        )


def added(dst: Array, product: Array, accumulate: bool | Array) -> Array:
    """The product, added to dst where it accumulates."""
    if isinstance(accumulate, np.ndarray):
        if not accumulate.any():
            return product
        return np.where(accumulate, dst + product, product)
    return dst + product if accumulate else product


def _require_onezero(array: Array, name: str) -> None:
    if not ((array == 0) | (array == 1)).all():
        raise Unspecified(f"{name} is said to hold ones and zeros only, and holds others")


def _transposed_by_selection(
    stationary: Array, moving: Array, has_bit_exact_transpose: bool
) -> Array:
    """stationary's rows as moving's columns choose them: bit by bit, or as a product.

    Bit by bit it raises Unspecified unless every column of moving chooses one row.
    """
    choices = widen(moving)
    if not has_bit_exact_transpose:
        return widen(stationary).T @ choices
    ones = choices == 1
    if not ((choices == 0) | ones).all() or not (ones.sum(axis=0) == 1).all():
        raise Unspecified("transpose mode with a moving tile that is no identity matrix")
    return np.ascontiguousarray(stationary[ones.argmax(axis=0)].T)


class NcTranspose(Instr, engine="tensor", engines=("tensor", "vector")):
    """Transpose: dst [F, P] = data [P, F].T, bit by bit; free dimensions of data count as one.

    The Tensor Engine passes up to 128 x 128 elements through its array into PSUM, the Vector
    Engine transposes up to 32 x 32 between SBUF and PSUM. Before generation 3 the Tensor Engine
    multiplies with an identity matrix, which spreads infinities and NaN over a row of dst as NaN;
    so it does on all generations where dst is float32 and data are not.
    """

    dst: Pattern = writes("PSUM", "SBUF")
    data: Pattern = reads("SBUF", "PSUM")

    arrives = "flat"
    takes_capabilities: ClassVar = ("has_bit_exact_transpose",)
    assumed: ClassVar = (
        "8-bit floats are turned to 8 bits as the page says (the guide: 16, the upper 8 zero)",
        "into float32, against the page, it is a product with identity, as in published kernels",
    )
    cost_source = "NKI release 2.26.1, nki.isa.nc_transpose"
    rules = (
        Rule(
            "{dst} must be [F, P] where data is [P, F]",
            lambda i, _: i.dst.partitions == i.data.free and i.dst.free == i.data.partitions,
            TRANSPOSE,
        ),
        Rule(
            "{dst}, {data} must have the same dtype, or dst float32 where the Tensor Engine turns "
            "narrower floats",
            lambda i, _: (
                i.dst.dtype is i.data.dtype
                or (i.runs_on == "tensor" and i.dst.dtype is F32 and i.data.dtype in FLOATS)
            ),
            TRANSPOSE,
            "copy one with tensor_copy into a tile of the other's dtype",
        ),
        Rule(
            "the Tensor Engine transposes at most 128 x 128 elements, the Vector Engine 32 x 32",
            lambda i, _: i.data.free <= i.most and i.data.partitions <= i.most,
            TRANSPOSE,
        ),
        Rule(
            "the Tensor Engine reads SBUF and writes PSUM",
            lambda i, _: (
                i.runs_on != "tensor"
                or (i.dst.memory.name == "PSUM" and i.data.memory.name == "SBUF")
            ),
            TRANSPOSE,
        ),
        Rule(
            "before generation 3 the Tensor Engine transposes floats only, which it multiplies",
            lambda i, arch: (
                i.runs_on != "tensor"
                or arch.capabilities.has_bit_exact_transpose
                or i.data.dtype in FLOATS
            ),
            TRANSPOSE,
        ),
    )

    @property
    def is_exact(self) -> bool:
        return self.dst.dtype is self.data.dtype

    @property
    def most(self) -> int:
        """The greatest extent of either side on this instruction's engine."""
        return 128 if self.runs_on == "tensor" else 32

    def attributes(self) -> dict[str, object]:
        """Whether the array multiplies, as the Tensor Engine does before it has a mode for it."""
        own = {"on_array": self.runs_on == "tensor", "is_product": not self.is_exact}
        return {**super().attributes(), **own}

    @staticmethod
    def compute(
        data: Array, on_array: bool, is_product: bool, has_bit_exact_transpose: bool
    ) -> Array:
        if not on_array or (has_bit_exact_transpose and not is_product):
            return data.T
        wide = widen(data)
        if np.isfinite(wide).all():
            return data.T
        return narrow(wide.T @ np.eye(len(wide), dtype=np.float32), from_numpy(data.dtype))

    def cycles(self, arch: Arch) -> int:
        """The columns of the transposed tile through the array, or the elements of a partition."""
        if self.runs_on == "vector":
            return stream_cycles(arch, "vector", self.data.free)
        columns = max(self.data.partitions, min(arch.min_issue_cycles["tensor"], self.data.free))
        if not self.is_exact:
            return round(columns * passes(self.data.dtype, arch))
        name = F32.name if self.data.dtype.bytes == F32.bytes else self.data.dtype.name
        return round(columns * arch.transpose_passes.get(name, 1.0))

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("turned", 32, 64, memory="PSUM"), data=chip("a", 64, 32))

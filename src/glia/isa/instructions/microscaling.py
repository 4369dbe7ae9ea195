"""Microscaled (MX) floats: 32 values share a scale, four lie packed in one element.

A group is 8 partitions by the 4 values of an element. Scales are exponents of 2 with a bias of
127; those of a quadrant's 32 partitions lie in 4 partitions of that same quadrant, from its
partition 0, 4, 8 or 12 on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from glia.arch import generations_from
from glia.base.affine import Affine
from glia.base.dtype import (
    BF16,
    F8E4M3FN,
    F8E4M3FN_X4,
    F8E5M2,
    F8E5M2_X4,
    F8E8M0FNU,
    F16,
    PACKED_DTYPES,
    U8,
    DType,
)
from glia.base.errors import Unspecified
from glia.isa.cost import stream_cycles
from glia.isa.examples import chip
from glia.isa.instructions.tensor import (
    ARRAY,
    WHOLE_ARRAY,
    added,
    fits_tile,
    moving_fits,
    sum_dtype,
    tiling_holds,
)
from glia.isa.kit import Array, Indirect, Instr, Rule, reads, updates, writes
from glia.isa.numerics import narrow, pack, unpack
from glia.isa.operand import Pattern
from glia.isa.rules import dtypes, same_partitions

if TYPE_CHECKING:
    from glia.arch import Arch

MATMUL = "NKI nki.isa.nc_matmul_mx"
QUANTIZE = "NKI nki.isa.quantize_mx"
LAYOUT = "NKI deep dive on MXFP matrix multiplication, scale tensor"
QUADRANT = 32
GROUP = 8  # partitions that share a scale
SCALES = QUADRANT // GROUP  # partitions of scales for each quadrant
BIAS = 127
NOT_A_NUMBER = 255
GREATEST_EXPONENT = {F8E4M3FN: 8, F8E5M2: 15}


def scale_rows(partitions: int) -> Array:
    """For each group of a tile so many partitions high, the row of its scale tile."""
    groups = np.arange(partitions // GROUP)
    return groups // SCALES * QUADRANT + groups % SCALES


def exponents_of(groups: Array, greatest: int) -> tuple[Array, Array]:
    """Exponents of the scales of [G, 8, F, 4], and their codes: that of the group's greatest value
    less `greatest`, and -127 for zeros. Unspecified where there is no such code.
    """
    largest = np.abs(groups).max(axis=(1, 3))
    if not np.isfinite(largest).all():
        raise Unspecified("quantize_mx of an infinity or NaN")
    exponents = np.where(largest == 0, -BIAS, np.frexp(largest)[1] - 1 - greatest)
    if exponents.min() < -BIAS:
        raise Unspecified("quantize_mx of a group whose scale would be less than 2 ** -127")
    return exponents, (exponents + BIAS).astype(np.uint8)


def quantized(groups: Array, exponents: Array, dtype: DType, greatest: float = np.inf) -> Array:
    """[G, 8, F, 4] without the scales of these exponents, clipped to `greatest`, in a dtype."""
    values = np.ldexp(groups, -exponents[:, None, :, None]).astype(np.float32)
    return narrow(np.clip(values, -greatest, greatest), dtype)


def dequantized(data: Array, codes: Array, dtype: DType) -> Array:
    """[partitions, F] packed elements as [4 * partitions, F] float32 rows of a product.

    There is a row of codes for each group.
    """
    values = unpack(data, dtype).astype(np.float32)
    factors = np.ldexp(np.float32(1), codes.astype(np.int32) - BIAS).astype(np.float32)
    factors = np.where(codes == NOT_A_NUMBER, np.float32(np.nan), factors)
    scaled = values * np.repeat(factors, GROUP, axis=0)[:, :, None]
    return scaled.transpose(0, 2, 1).reshape(4 * len(data), -1)


def _whole_quadrants(name: str, source: str) -> Rule:
    return Rule(
        f"{{{name}}} must have 32, 64, 96 or 128 partitions",
        lambda i, _: getattr(i, name).partitions in (32, 64, 96, 128),
        source,
    )


def _scales_have_shape(data: str, scale: str, free: Callable[[Pattern], int], source: str) -> Rule:
    """The scale tile has a row for every group and a column for every four values."""

    def holds(i: Any, _: Arch) -> bool:
        values: Pattern = getattr(i, data)
        scales: Pattern = getattr(i, scale)
        rows = scale_rows(values.partitions)
        has_rows = bool(scales.partitions > rows.max(initial=0))
        return scales.free == free(values) and has_rows

    return Rule(
        f"{{{scale}}} must hold 4 partitions for each quadrant of {{{data}}}, "
        "a column for each 4 values",
        holds,
        source,
    )


def _scales_start_in_quadrant(data: str, scale: str) -> Rule:
    def holds(i: Any, _: Arch) -> bool:
        start = getattr(i, scale).partition - getattr(i, data).partition
        return start.is_constant and start.constant in (0, 4, 8, 12)

    return Rule(
        f"{{{scale}}} must start in the quadrant of {{{data}}}, at its partition 0, 4, 8 or 12",
        holds,
        LAYOUT,
    )


class QuantizeMx(Instr, engine="vector"):
    """Quantize src to packed 8-bit floats with a scale for each group of 8 partitions by 4 values.

    The scale is 2 ** (floor(log2(greatest magnitude)) - (Emax - 1)) with Emax the greatest exponent
    of the 8-bit float, and 2 ** -127 for a group of zeros. Values are divided by it and rounded.
    Infinities, NaN, and groups so small that their scale has no code are not documented.
    """

    dst: Pattern = writes("SBUF")
    src: Pattern = reads("SBUF")
    dst_scale: Pattern = updates("SBUF", raw=True)

    arrives = "flat"
    generations = generations_from(4)
    partly_written: ClassVar = ("dst_scale",)
    starts_anywhere: ClassVar = ("dst_scale",)
    takes_packed: ClassVar = ("dst",)
    cost_source = "Trainium3 architecture guide: 4 elements per partition and cycle"
    rules = (
        _whole_quadrants("src", QUANTIZE),
        same_partitions("dst", "src", source=QUANTIZE),
        Rule(
            "{src} must have 4 elements per partition for each of dst",
            lambda i, _: i.src.free == 4 * i.dst.free,
            QUANTIZE,
        ),
        dtypes("src", (F16, BF16), source=QUANTIZE),
        dtypes("dst", (F8E4M3FN_X4, F8E5M2_X4), source=QUANTIZE),
        dtypes("dst_scale", (F8E8M0FNU, U8), source=QUANTIZE),
        _scales_have_shape("src", "dst_scale", lambda p: p.free // 4, QUANTIZE),
        _scales_start_in_quadrant("src", "dst_scale"),
    )

    def attributes(self) -> dict[str, object]:
        """The dtype of what is packed."""
        return {**super().attributes(), "packed": self.dst.dtype}

    @staticmethod
    def compute(src: Array, dst_scale: Array, packed: DType) -> tuple[Array, Array]:
        assert packed.packs is not None
        partitions, free = src.shape
        groups = src.reshape(partitions // GROUP, GROUP, free // 4, 4)
        exponents, codes = exponents_of(groups, GREATEST_EXPONENT[packed.packs] - 1)
        data = pack(quantized(groups, exponents, packed.packs), packed)
        scales = dst_scale.copy()
        scales[scale_rows(partitions)] = codes.view(dst_scale.dtype)
        return data.reshape(partitions, free // 4), scales

    def cycles(self, arch: Arch) -> int:
        """Four elements of a partition per cycle."""
        return stream_cycles(arch, "vector", self.src.free / 4)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("packed", 64, 8, dtype=F8E4M3FN_X4),
            src=chip("halves", 64, 32, dtype=BF16),
            dst_scale=chip("scales", 64, 8, dtype=F8E8M0FNU),
        )


def _tile_of_rows(i: NcMatmulMx, arch: Arch) -> bool:
    if not i.tile_size and not i.tile_position:
        return True
    return tiling_holds(i, arch) and i.tile_size[1:] == ARRAY[1:]


def _dequantized(data: Array, scale: Array, dtype: DType) -> Array:
    """[partitions, F] packed elements as [4 * partitions, F] float32 rows of a product."""
    codes = scale.view(np.uint8)[scale_rows(len(data))]
    return dequantized(data, codes, dtype)


class NcMatmulMx(Instr, engine="tensor"):
    """Multiply microscaled matrices: dst = stationary.T @ moving, each value times its scale.

    stationary is [K, M] and moving [K, N] in packed elements of four values, so that 4 K values are
    contracted; their scales are laid out as quantize_mx leaves them. Products and sums are float32.
    `accumulate` and the tile of the array are as in nc_matmul, with all columns of the array.
    """

    dst: Pattern = updates("PSUM")
    stationary: Pattern = reads("SBUF", raw=True)
    moving: Pattern = reads("SBUF", raw=True)
    stationary_scale: Pattern = reads("SBUF", raw=True)
    moving_scale: Pattern = reads("SBUF", raw=True)
    accumulate: bool | Affine | None = False
    tile_position: tuple[int, ...] = ()
    tile_size: tuple[int, ...] = ()

    arrives = "flat"
    generations = generations_from(4)
    read_when: ClassVar = {"dst": "accumulate"}
    sums: ClassVar = {"dst": "accumulate"}
    hints: ClassVar = ("tile_position", "tile_size")
    partly_written: ClassVar = ("stationary_scale", "moving_scale")
    starts_anywhere: ClassVar = ("stationary_scale", "moving_scale")
    takes_packed: ClassVar = ("stationary", "moving")
    indirect = Indirect(
        ("dst", "stationary", "stationary_scale", "moving", "moving_scale"),
        "stationary",
        MATMUL,
        group=32,
        rules=(
            WHOLE_ARRAY,
            *(
                (
                    f"{name} and {name}_scale are indirect together, by the same index",
                    lambda i, indices, name=name: indices.get(name) == indices.get(f"{name}_scale"),
                )
                for name in ("stationary", "moving")
            ),
        ),
    )
    cost_source = "Trainium3 architecture guide: 512 rows in the time of 128 rows of bfloat16"
    rules = (
        _whole_quadrants("stationary", MATMUL),
        same_partitions("stationary", "moving", source=MATMUL),
        Rule(
            "{dst} must have a partition for each column of {stationary}, a column for each of "
            "{moving}",
            lambda i, _: i.dst.partitions == i.stationary.free and i.dst.free == i.moving.free,
            MATMUL,
        ),
        Rule(
            "{stationary} must have an even number of columns, at most 128",
            lambda i, _: i.stationary.free % 2 == 0 and i.stationary.free <= 128,
            MATMUL,
        ),
        Rule(
            "{moving} must have at most as many columns as fit in PSUM",
            lambda i, arch: moving_fits(i, i.moving.free, arch),
            MATMUL,
        ),
        dtypes("stationary", PACKED_DTYPES, source=MATMUL),
        dtypes("moving", PACKED_DTYPES, source=MATMUL),
        dtypes("stationary_scale", (F8E8M0FNU, U8), source=MATMUL),
        dtypes("moving_scale", (F8E8M0FNU, U8), source=MATMUL),
        Rule("{dst} must be float32 or bfloat16", sum_dtype, MATMUL),
        _scales_have_shape("stationary", "stationary_scale", lambda p: p.free, MATMUL),
        _scales_have_shape("moving", "moving_scale", lambda p: p.free, MATMUL),
        _scales_start_in_quadrant("stationary", "stationary_scale"),
        _scales_start_in_quadrant("moving", "moving_scale"),
        Rule(
            "{tile_position} and {tile_size} must name rows of the array, with all its columns",
            _tile_of_rows,
            MATMUL,
        ),
        Rule(
            "{stationary} must have at most as many partitions as the tile of the array",
            lambda i, _: fits_tile(i, 1),
            MATMUL,
        ),
    )

    @property
    def products(self) -> int:
        """How many pairs of numbers are multiplied."""
        return 4 * self.stationary.partitions * self.stationary.free * self.moving.free

    def attributes(self) -> dict[str, object]:
        """The dtypes of what is packed."""
        packed = {"left": self.stationary.dtype, "right": self.moving.dtype}
        return {**super().attributes(), **packed}

    @staticmethod
    def compute(
        dst: Array,
        stationary: Array,
        moving: Array,
        stationary_scale: Array,
        moving_scale: Array,
        accumulate: bool | Array,
        left: DType,
        right: DType,
    ) -> Array:
        rows = _dequantized(stationary, stationary_scale, left)
        columns = _dequantized(moving, moving_scale, right)
        return added(dst, rows.T @ columns, accumulate)

    def cycles(self, arch: Arch) -> int:
        """One column of moving per cycle, at least the least issue interval."""
        return round(max(arch.min_issue_cycles["tensor"], self.moving.free))

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("sum", 8, 8, memory="PSUM"),
            stationary=chip("packed", 64, 8, dtype=F8E4M3FN_X4),
            moving=chip("packed", 64, 8, dtype=F8E4M3FN_X4),
            stationary_scale=chip("scales", 64, 8, dtype=F8E8M0FNU),
            moving_scale=chip("scales", 64, 8, dtype=F8E8M0FNU),
        )

"""The extents at which limits of a core lie, from its declaration."""

from __future__ import annotations

from collections.abc import Iterable

from glia.arch.kit import Arch

WORD = 4  # bytes


def limits(arch: Arch) -> list[int]:
    """The extents around the limits on rows, columns and one bank of PSUM."""
    return _around(
        1,
        arch.quadrant_partitions,
        2 * arch.quadrant_partitions,
        arch.partitions,
        2 * arch.partitions,
        arch.stationary_columns,
        arch.moving_columns,
        arch.psum_bank_bytes // WORD,
    )


def long_limits(arch: Arch) -> list[int]:
    """The extents around the limits on a transfer's packets and the bytes of a partition."""
    return _around(
        arch.dma_packet_bytes // WORD,
        arch.psum_banks * arch.psum_bank_bytes // WORD,
        arch.sbuf_usable_bytes_per_partition // (2 * WORD),
        arch.sbuf_usable_bytes_per_partition // WORD,
    )


def _around(*extents: int) -> list[int]:
    """Each extent, one less and one more; none below 1."""
    found: Iterable[int] = {n + step for n in extents for step in (-1, 0, 1)}
    return sorted(n for n in found if n > 0)

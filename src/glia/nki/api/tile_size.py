"""`tile_size`: the limits of tiles on the device that the kernel is for."""

from __future__ import annotations

import os

import numpy as np

from glia.arch import Arch
from glia.nki.names.targets import platform_target
from glia.nki.session.session import current, is_running
from glia.nki.tensors.nki_object import NKIObject

WORD = np.dtype(np.float32).itemsize
STATISTICS_ELEMENTS = 512  # nki.isa.bn_stats takes at most so many


class TileSize(NKIObject):
    """Limits in elements, or in bytes where the name says so, of the device the kernel is for."""

    @property
    def _arch(self) -> Arch:
        target = current("nl.tile_size").target if is_running() else platform_target()
        return target.arch

    @property
    def pmax(self) -> int:
        """Partitions of SBUF and PSUM."""
        return self._arch.partitions

    @property
    def psum_fmax(self) -> int:
        """The older name of psum_bank_fmax."""
        return self.psum_bank_fmax

    @property
    def psum_bank_fmax(self) -> int:
        """float32 elements of one PSUM bank in a partition."""
        return self._arch.psum_bank_bytes // WORD

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of one PSUM bank in a partition."""
        return self._arch.psum_bank_bytes

    @property
    def gemm_stationary_fmax(self) -> int:
        """Columns of nc_matmul's stationary operand."""
        return self._arch.stationary_columns

    @property
    def gemm_moving_fmax(self) -> int:
        """Columns of nc_matmul's moving operand."""
        return self._arch.psum_bank_bytes // WORD

    @property
    def bn_stats_fmax(self) -> int:
        """Elements per partition that bn_stats takes."""
        return STATISTICS_ELEMENTS

    @property
    def psum_min_align(self) -> int:
        """Bytes that addresses in PSUM are multiples of."""
        return 4

    @property
    def sbuf_min_align(self) -> int:
        """Bytes that addresses in SBUF are multiples of."""
        return 1

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks that kernels may use."""
        is_reserved = os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "0") not in ("", "0")
        return self._arch.psum_banks - is_reserved

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF, all partitions together."""
        return self._arch.sbuf_bytes_per_partition * self._arch.partitions

    @property
    def sbuf_fmax(self) -> int:
        """float32 elements of a partition of SBUF that a kernel can use."""
        return self.sbuf_fmax_bytes // WORD

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of a partition of SBUF that a kernel can use."""
        return self._arch.sbuf_usable_bytes_per_partition

    @property
    def total_available_sbuf_size(self) -> int:
        """The older name of sbuf_fmax_bytes."""
        return self.sbuf_fmax_bytes


tile_size = TileSize()

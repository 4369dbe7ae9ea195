"""The enumerations of NKI, with their documented values."""

# The names are those that kernels write.
# ruff: noqa: N801

from __future__ import annotations

from enum import Enum
from functools import total_ordering

from glia.isa.operand import Memory


class _Enum(Enum):
    """An enumeration with identity hashes: Enum's own hash is a slow Python function."""

    __hash__ = object.__hash__


class engine(_Enum):
    """Which engine runs an instruction; `unknown` leaves the choice to the compiler."""

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0


class reduce_cmd(_Enum):
    """The command of a reducing instruction to the accumulators of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(_Enum):
    """Which engine generates the DMA descriptors; `unknown` leaves it to the compiler."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(_Enum):
    """The effect of an out-of-bounds index of a transfer."""

    error = 0
    skip = 1


class matmul_perf_mode(_Enum):
    """How nc_matmul uses the array; `double_row` multiplies two rows of 8-bit floats at once."""

    none = "none"
    double_row = "double_row"


@total_ordering
class nc_version(_Enum):
    """Generations of the NeuronCore, in order."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: object) -> bool:
        return isinstance(other, nc_version) and self.value < other.value


class dma_engine(_Enum):
    """The engines that move the data of sendrecv."""

    dma = 1
    gpsimd_dma = 2


class MemoryRegion(_Enum):
    """The buffer of a tensor; HBM is shared with the caller or private to one program.

    `memory` is the machine's memory that it is part of; `is_on_chip` is false for HBM.
    """

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __init__(self, value: str) -> None:
        self.is_on_chip = not value.endswith("hbm")
        self.memory = Memory[value.upper()] if self.is_on_chip else Memory.HBM

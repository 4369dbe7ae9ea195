"""What a kernel imports as `nl`: dtypes, buffers, tensors, loops and the names of operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.isa.activation import ACTIVATIONS
from glia.isa.alu import ALU_OPS
from glia.nki.errors import NotInNki
from glia.nki.recorder import caller, current
from glia.nki.tensor import MemoryRegion, NkiTensor, new_tensor

float32 = "float32"
bfloat16 = "bfloat16"
float16 = "float16"
float8_e4m3 = "float8_e4m3"
float8_e4m3fn = "float8_e4m3fn"
float8_e5m2 = "float8_e5m2"
int32 = "int32"
uint32 = "uint32"
int16 = "int16"
uint16 = "uint16"
int8 = "int8"
uint8 = "uint8"
bool_ = "bool"

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
shared_hbm = MemoryRegion.shared_hbm
private_hbm = MemoryRegion.private_hbm
hbm = private_hbm

affine_range = range
sequential_range = range
static_range = range


@dataclass(frozen=True)
class Op:
    """The name of an operator or activation function, given to nki.isa functions as `op`."""

    name: str

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Operators name what an instruction does; they compute nothing themselves."""
        raise NotInNki(feature=f"nl.{self.name} called as a function", loc=caller())


class TileSize:
    """The limits of tiles on the target of the kernel being traced, in elements or bytes."""

    @property
    def _arch(self) -> Arch:
        return current("nl.tile_size").target.arch

    @property
    def pmax(self) -> int:
        """Partitions of SBUF and PSUM."""
        return self._arch.partitions

    @property
    def gemm_stationary_fmax(self) -> int:
        """Columns of nc_matmul's stationary operand."""
        return self._arch.stationary_columns

    @property
    def gemm_moving_fmax(self) -> int:
        """Columns of nc_matmul's moving operand."""
        return self._arch.moving_columns

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of one PSUM bank in a partition."""
        return self._arch.psum_bank_bytes

    @property
    def psum_bank_fmax(self) -> int:
        """float32 elements of one PSUM bank in a partition."""
        return self._arch.psum_bank_bytes // np.dtype(np.float32).itemsize

    @property
    def psum_fmax(self) -> int:
        """The older name of psum_bank_fmax."""
        return self.psum_bank_fmax

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks."""
        return self._arch.psum_banks

    @property
    def total_available_sbuf_size(self) -> int:
        """Bytes of a partition of SBUF that a kernel can use."""
        return self._arch.sbuf_usable_bytes_per_partition


tile_size = TileSize()


def ndarray(
    shape: tuple[int, ...], dtype: str, buffer: MemoryRegion = sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor without contents; on chip the first dimension is the partitions.

    ImpossibleTensor when the memory cannot hold it.
    """
    return new_tensor(shape, dtype, buffer, name)


def ds(start: int, size: int) -> slice:
    """The slice of `size` elements from `start`."""
    return slice(start, start + size)


def __getattr__(name: str) -> Op:
    """nl.add, nl.exp, ...: the operators of the engines and the activation functions, by name."""
    if name in ALU_OPS or name in ACTIVATIONS:
        return Op(name)
    if name.startswith("_"):
        raise AttributeError(name)
    raise NotInNki(feature=f"nl.{name}", loc=caller())

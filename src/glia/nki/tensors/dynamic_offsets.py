"""What a view says that only the running program knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glia.nki.tensors.registers import VirtualRegister

if TYPE_CHECKING:
    from glia.nki.tensors.nki_tensor import NkiTensor


@dataclass(frozen=True)
class DynamicSlice:
    """`count` elements from where a register says."""

    start: VirtualRegister
    count: int


@dataclass(frozen=True)
class Indirection:
    """Where a view starts is `index`, a tensor, times `step` elements further.

    With `is_vector` every entry of the first dimension has an index of its own; on chip the index
    holds offsets for every partition. `rows` indices are valid, from 0; `is_partition` counts steps
    in partitions.
    """

    index: NkiTensor
    step: int
    rows: int
    is_vector: bool = False
    is_partition: bool = False

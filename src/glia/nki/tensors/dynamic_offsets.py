"""Offsets of views that are known only at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glia.nki.tensors.registers import VirtualRegister

if TYPE_CHECKING:
    from glia.nki.tensors.nki_tensor import NkiTensor


@dataclass(frozen=True)
class DynamicSlice:
    """`count` elements from the value of a register on."""

    start: VirtualRegister
    count: int


@dataclass(frozen=True)
class Indirection:
    """An offset of a view: the value of the tensor `index` times `step` elements.

    With `is_vector` every entry of the first dimension has an index of its own; on chip the index
    holds offsets for every partition. Valid indices are 0 to `rows` - 1. With `is_partition` the
    step counts partitions.
    """

    index: NkiTensor
    step: int
    rows: int
    is_vector: bool = False
    is_partition: bool = False

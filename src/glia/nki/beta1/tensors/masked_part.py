"""Which elements of a tile an instruction writes: what its mask leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.nki.beta1.errors import UnsupportedMask
from glia.nki.beta1.tensors.index import Box, Mask
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor

CutOperand = Callable[[NkiTensor], NkiTensor]


@dataclass(frozen=True)
class MaskedPart:
    """The elements of a tile of `shape` that a mask selects: none, or those of `box` and `rest`."""

    shape: tuple[int, ...]
    box: Box | None = None
    rest: Mask | None = None
    is_empty: bool = False

    def cut(self, tensor: NkiTensor) -> NkiTensor:
        """The box of an operand; its dimensions of one element stay whole."""
        if self.box is None:
            return tensor
        for axis, (first, end) in enumerate(self.box[: tensor.ndim]):
            if (first, end) != (0, self.shape[axis]) and tensor.shape[axis] == self.shape[axis]:
                tensor = tensor.slice(axis, first, end)
        return tensor

    @property
    def is_whole(self) -> bool:
        """Whether it leaves no element out."""
        return not self.is_empty and self.box is None and self.rest is None

    def boxes(self) -> Iterator[Box | None]:
        """Disjoint boxes that make up the part; None stands for all of the tile."""
        if self.is_empty:
            return
        if self.rest is None:
            yield self.box
            return
        yield from self.rest.boxes(self.box or tuple((0, count) for count in self.shape))

    def transposed(self) -> MaskedPart:
        """The same elements of the tile with its dimensions in reverse order."""
        box = self.box[::-1] if self.box is not None else None
        rest = self.rest.transposed() if self.rest is not None else None
        return MaskedPart(self.shape[::-1], box, rest, self.is_empty)


def masked_part(mask: Any, shape: tuple[int, ...]) -> MaskedPart:
    """The part of a tile that a mask selects: a Mask, a truth value, or None for all of it."""
    if 0 in shape:
        return MaskedPart(shape, is_empty=True)
    if mask is None or mask is True or (isinstance(mask, np.bool_) and mask):
        return MaskedPart(shape)
    if isinstance(mask, bool | np.bool_):
        return MaskedPart(shape, is_empty=True)
    if not isinstance(mask, Mask):
        raise UnsupportedMask(what=f"a {type(mask).__name__}", loc=caller())
    box, rest = mask.bounding_box(shape)
    if box is None:
        return MaskedPart(shape, is_empty=True)
    is_whole = box == tuple((0, count) for count in shape)
    return MaskedPart(shape, None if is_whole else box, rest)


def boxed_part(function: str, mask: Any, shape: tuple[int, ...]) -> MaskedPart:
    """The part of a tile that a mask selects; UnsupportedMask where that is not a box."""
    part = masked_part(mask, shape)
    if part.rest is not None:
        what = f"a mask of {function} that is not a box (mask the store in its place)"
        raise UnsupportedMask(what=what, loc=caller())
    return part


def conjoin_masks(first: Any, second: Any) -> Any:
    """The conjunction of two optional masks."""
    if first is None or second is None:
        return second if first is None else first
    return first & second

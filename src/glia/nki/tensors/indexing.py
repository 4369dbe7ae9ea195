"""Resolution of the entries of an index to start, step and count of dimensions."""

from __future__ import annotations

from typing import Any

from glia.base.affine import Affine
from glia.nki.names.errors import IndexOutsideTensor, NotInNki
from glia.nki.session.session import caller
from glia.nki.tensors.dynamic_offsets import DynamicSlice
from glia.nki.tensors.registers import VirtualRegister
from glia.nki.tensors.views import is_integer

Shape = tuple[int, ...]


def expand_index(index: tuple[Any, ...], shape: Shape) -> tuple[Any, ...]:
    """One entry for each dimension; `...` and missing entries become full slices."""
    positions = [i for i, entry in enumerate(index) if entry is Ellipsis]
    given = len(index) - len(positions)
    if len(positions) > 1 or given > len(shape):
        require_inside(False, given - 1, len(index) - 1, shape)
    at = positions[0] if positions else len(index)
    missing = (slice(None),) * (len(shape) - given)
    return (*index[:at], *missing, *index[at + 1 :])


def resolve_entry(entry: Any, dimension: int, shape: Shape) -> tuple[int | Affine, int, int, bool]:
    """(start, step, count, whether it is an integer) of one entry.

    IndexOutsideTensor when it is out of bounds, NotInNki for unsupported types.
    """
    extent = shape[dimension]
    if isinstance(entry, slice):
        return _resolve_slice(entry, dimension, shape)
    if isinstance(entry, DynamicSlice):
        is_inside = 0 <= entry.count <= extent
        require_inside(is_inside, dimension, f"nl.ds(register, {entry.count})", shape)
        return entry.start.expression, 1, entry.count, False
    if isinstance(entry, VirtualRegister):
        return entry.expression, 1, 1, True
    if not is_integer(entry):
        raise NotInNki(feature=f"indexing a tensor by {type(entry).__name__}", loc=caller())
    position = int(entry) + (extent if entry < 0 else 0)
    require_inside(0 <= position < extent, dimension, entry, shape)
    return position, 1, 1, True


def _resolve_slice(
    entry: slice, dimension: int, shape: Shape
) -> tuple[int | Affine, int, int, bool]:
    extent = shape[dimension]
    parts = (entry.start, entry.stop, entry.step)
    if not all(part is None or is_integer(part) for part in parts):
        raise NotInNki(feature=f"a slice with bounds other than integers ({entry})", loc=caller())
    step = 1 if entry.step is None else int(entry.step)
    if step < 1:
        raise NotInNki(feature=f"a slice with step {step} (give 1 or more)", loc=caller())
    start = 0 if entry.start is None else int(entry.start)
    stop = extent if entry.stop is None else int(entry.stop)
    start = start + extent if start < 0 else start
    stop = stop + extent if stop < 0 else stop
    text = f"{'' if entry.start is None else entry.start}:{stop}"
    require_inside(0 <= start <= stop <= extent, dimension, text, shape)
    return start, step, -(-(stop - start) // step), False


def require_inside(is_inside: bool, dimension: int, index: object, shape: Shape) -> None:
    """Raise IndexOutsideTensor unless `is_inside`."""
    if not is_inside:
        raise IndexOutsideTensor(index=index, dimension=dimension, shape=shape, loc=caller())

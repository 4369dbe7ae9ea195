"""Arrays of all ranks as one: divided along the axes of a mesh, and put together again.

A mesh numbers its ranks as NumPy and JAX do, the last axis fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.machine.ir import Binding
from glia.runtime.errors import BadSharding
from glia.runtime.rank_names import named_by_rank

if TYPE_CHECKING:
    from glia.runtime.model import Model

Array = np.ndarray[Any, Any]
WHOLE = "-"  # for a dimension that is not divided


@dataclass(frozen=True)
class Sharding:
    """By which axes of a mesh each dimension of an array is divided; dimensions left out are not.

    `mesh` has the size of each axis, by name, in order.
    """

    mesh: Mapping[str, int]
    axes: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        used = [axis for each in self.axes for axis in each]
        if unknown := [axis for axis in used if axis not in self.mesh]:
            raise BadSharding(problem=f"the mesh has no axis {unknown[0]!r}")
        if len(set(used)) < len(used):
            raise BadSharding(problem=f"{self} divides by an axis twice")

    def __str__(self) -> str:
        return ",".join("+".join(each) or WHOLE for each in self.axes) or WHOLE

    @property
    def ranks(self) -> int:
        """How many the mesh has."""
        return math.prod(self.mesh.values())

    def pieces(self, array: Array) -> list[Array]:
        """The part of each rank. Raises BadSharding where a dimension cannot be divided evenly."""
        return [array[self._place(array.shape, rank)] for rank in range(self.ranks)]

    def joined_array(self, pieces: Sequence[Array]) -> Array:
        """The array of which these are the ranks' parts; of equal parts the first is taken."""
        shape = self.whole_shape(pieces[0].shape)
        found = np.empty(shape, pieces[0].dtype)
        for rank in reversed(range(self.ranks)):
            found[self._place(shape, rank)] = pieces[rank]
        return found

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the array of which ranks have parts of that shape."""
        if len(self.axes) > len(shape):
            raise self._too_many(shape)
        counts = [math.prod(self.mesh[name] for name in names) for names in self.axes]
        counts += [1] * (len(shape) - len(counts))
        return tuple(extent * count for extent, count in zip(shape, counts, strict=True))

    def _place(self, shape: Sequence[int], rank: int) -> tuple[slice, ...]:
        if len(self.axes) > len(shape):
            raise self._too_many(shape)
        position = dict(
            zip(self.mesh, np.unravel_index(rank, tuple(self.mesh.values())), strict=True)
        )
        place = []
        for names, extent in zip(self.axes, shape, strict=False):
            count = math.prod(self.mesh[name] for name in names)
            if extent % count:
                raise BadSharding(problem=f"a dimension of {extent} does not divide by {count}")
            number = 0
            for name in names:
                number = number * self.mesh[name] + int(position[name])
            part = extent // count
            place.append(slice(number * part, (number + 1) * part))
        return tuple(place)

    def _too_many(self, shape: Sequence[int]) -> BadSharding:
        return BadSharding(problem=f"{self} is for more dimensions than {list(shape)} has")


def mesh_of(text: str, ranks: int) -> dict[str, int]:
    """The mesh of `data=2,model=4`, for so many ranks. Raises BadSharding."""
    mesh: dict[str, int] = {}
    for each in text.split(","):
        name, _, size = each.partition("=")
        if not name or not (size.isascii() and size.isdecimal() and int(size)) or name in mesh:
            raise BadSharding(problem=f"{text!r} is not a mesh such as data=2,model=4")
        mesh[name] = int(size)
    if math.prod(mesh.values()) != ranks:
        raise BadSharding(problem=f"the mesh {text} is not of {ranks} ranks")
    return mesh


def sharding_of(text: str, mesh: Mapping[str, int]) -> Sharding:
    """The sharding of `data,-`: an axis or several (`data+model`) for each dimension."""
    parts = text.split(",")
    return Sharding(mesh, tuple(() if each == WHOLE else tuple(each.split("+")) for each in parts))


def divide_inputs(
    arrays: Mapping[str, Array], shardings: Mapping[str, Sharding]
) -> dict[str, Array]:
    """Arrays by name, those with a sharding as the pieces NAME@RANK of all ranks."""
    found: dict[str, Array] = {}
    for name, array in arrays.items():
        if name in shardings:
            pieces = shardings[name].pieces(array)
            found |= {f"{name}@{rank}": piece for rank, piece in enumerate(pieces)}
        else:
            found[name] = array
    return found


def join_outputs(
    found: Sequence[Mapping[str, Array]], shardings: Mapping[str, Sharding]
) -> dict[str, Array]:
    """Outputs of all ranks by name: one array where there is a sharding, else NAME@RANK."""
    names = [name for name in found[0] if name in shardings]
    rest = [{n: array for n, array in each.items() if n not in names} for each in found]
    wholes = {name: shardings[name].joined_array([each[name] for each in found]) for name in names}
    return wholes | named_by_rank(rest)


def whole_outputs(model: Model, shardings: Mapping[str, Sharding]) -> tuple[Binding, ...]:
    """What `join_outputs` gives of a model's outputs: name, shape and dtype."""
    wholes = [
        replace(each, shape=shardings[each.name].whole_shape(each.shape))
        for each in model.outputs
        if each.name in shardings
    ]
    rest = {each.name: each for each in model.outputs if each.name not in shardings}
    named = named_by_rank([rest] * model.ranks)
    return (*wholes, *(replace(binding, name=name) for name, binding in named.items()))

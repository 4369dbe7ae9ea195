"""One block of statements under construction, and the names and buffers of the whole program."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from glia.base.dtype import DType
from glia.graph.ir import Node
from glia.tile.build.nest import Index, NestInProgress, Split
from glia.tile.build.values import Target, Value
from glia.tile.ir import Accumulator, Apply, Buffer, Expr, Load, Nest, Statement, Store
from glia.tile.nest_rewriting import rename_axes
from glia.tile.text import KEYWORDS

StoreMaker = Callable[[NestInProgress, Index, Index], Store]


def whole(buffer: str) -> Target:
    """All of a buffer of the value's own shape."""
    return Target(buffer, lambda index: index, is_whole=True)


class Names:
    """Buffers and constants of the program, and names nobody has yet."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.constants: dict[str, np.ndarray] = {}
        self._taken: set[str] = set(KEYWORDS)
        self._counts: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """`stem` followed by a running number."""
        while True:
            count = self._counts.get(stem, 0)
            self._counts[stem] = count + 1
            name = f"{stem}.{count}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def exactly(self, wanted: str, otherwise: str) -> str:
        """A name as near to `wanted` as the text form allows."""
        name = re.sub(r"[^A-Za-z0-9_]+", "_", wanted).strip("_") or otherwise
        if not name[0].isalpha():
            name = f"{otherwise}_{name}"
        if name in self._taken:
            return self.fresh(name)
        self._taken.add(name)
        return name

    def buffer(self, name: str, dtype: DType, shape: tuple[int, ...], role: str) -> str:
        """Declare a buffer."""
        self.buffers[name] = Buffer(name, dtype, shape, role)
        return name


class Block:
    """Collects the statements of a program, a loop body or an arm."""

    def __init__(self, names: Names, homes: dict[Node, str] | None = None) -> None:
        self.names = names
        self.homes = homes or {}  # buffers that certain values must be computed into
        self.body: list[Statement] = []

    def fresh_buffer(self, dtype: DType, shape: tuple[int, ...]) -> str:
        """A new temporary."""
        return self.names.buffer(self.names.fresh("t"), dtype, shape, "temporary")

    def buffer_for(self, value: Value) -> tuple[str, Target]:
        """The buffer a value is materialised in, and the target that fills it."""
        home = self.homes.get(value.node)
        name = home or self.fresh_buffer(value.dtype, value.shape)
        return name, whole(name)

    def store(
        self,
        value: Value,
        target: Target,
        make: StoreMaker | None = None,
        named: Value | None = None,
    ) -> None:
        """Append the nest that writes every element of `value` to `target`."""
        if value.elements == 0:
            return
        nest = NestInProgress()
        while True:
            try:
                index = tuple(nest.axis(f"i{d}", extent) for d, extent in enumerate(value.shape))
                at = target.place(index)
                store = make(nest, index, at) if make else Store(target.buffer, at)
                result = value.at(nest, index)
                break
            except Split as request:
                nest.split(request)
        self.body.append(self._finished(nest, result, store, value, named))

    def _finished(
        self, nest: NestInProgress, result: Expr, store: Store, value: Value, named: Value | None
    ) -> Nest:
        owner = nest.owner
        body, finish = result, None
        if isinstance(owner, Value):
            assert nest.body is not None
            body = nest.body
            finish = None if isinstance(result, Accumulator) else result
            value = owner
        is_copy = isinstance(body, Load) and not body.dynamic and nest.reduction is None
        name = self.names.fresh(named.stem if named else "copy" if is_copy else value.stem)
        built = Nest(name, nest.axes(), body, store, nest.reduction, finish, value.loc)
        return with_field_names(built)


def with_field_names(nest: Nest) -> Nest:
    """Call the axes of a contraction what the field does: batch b, rows m, columns n, depth k."""
    if nest.reduction is None or not isinstance(nest.body, Apply):
        return nest
    left, right = nest.body.args[0], nest.body.args[-1]
    plain = isinstance(left, Load) and isinstance(right, Load) and len(nest.body.args) == 2
    if not plain or any(name.startswith("w") for name in nest.reduction.axes):
        return nest
    in_left, in_right = _variables(left), _variables(right)
    groups: dict[str, list[str]] = {}
    for axis in nest.axes:
        name = axis.name
        both = name in in_left and name in in_right
        letter = "b" if both else "n" if name in in_right else "m"
        letter = "k" if name in nest.reduction.axes else letter
        groups.setdefault(letter, []).append(name)
    names = {}
    for letter, members in groups.items():
        for count, member in enumerate(members):
            names[member] = letter if len(members) == 1 else f"{letter}{count}"
    return rename_axes(nest, names)


def _variables(load: Expr) -> set[str]:
    assert isinstance(load, Load)
    return {variable for part in load.index for variable in part.variables}

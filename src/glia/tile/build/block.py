"""Builders of one block of statements, and of the program's buffers and names."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from glia.base.dtype import DType
from glia.graph.ir import Node
from glia.tile.build.nest import Index, NestBuilder, Split
from glia.tile.build.values import DeferredValue, StoreTarget
from glia.tile.ir import Accumulator, Apply, Buffer, Expr, Load, Nest, Statement, Store
from glia.tile.nest_rewriting import rename_axes
from glia.tile.text import KEYWORDS

StoreMaker = Callable[[NestBuilder, Index, Index], Store]


def whole_buffer(buffer: str) -> StoreTarget:
    """The target that is all of a buffer of the value's shape."""
    return StoreTarget(buffer, lambda index: index, is_whole=True)


class BufferNames:
    """The buffers and constants of the program, its unique names, and how it accumulates.

    `ranks` is how many run it, 0 where that is not known.
    """

    def __init__(self, *, accumulates_in_float32: bool = True, ranks: int = 0) -> None:
        self.accumulates_in_float32 = accumulates_in_float32
        self.has_narrow_reductions = False  # sums and products that accumulate in 16 bits
        self.has_wide_contractions = False  # of 16-bit floats, which accumulate in float32
        self.ranks = ranks
        self.buffers: dict[str, Buffer] = {}
        self.constants: dict[str, np.ndarray] = {}
        self._used_names: set[str] = set(KEYWORDS)
        self._counts: dict[str, int] = {}

    def unique_name(self, stem: str) -> str:
        """A new name: `stem` and a serial number."""
        while True:
            count = self._counts.get(stem, 0)
            self._counts[stem] = count + 1
            name = f"{stem}.{count}"
            if name not in self._used_names:
                self._used_names.add(name)
                return name

    def legal_name(self, wanted: str, otherwise: str) -> str:
        """A new name: `wanted` reduced to the characters of the text form, else `otherwise`."""
        name = re.sub(r"[^A-Za-z0-9_]+", "_", wanted).strip("_") or otherwise
        if not name[0].isalpha():
            name = f"{otherwise}_{name}"
        if name in self._used_names:
            return self.unique_name(name)
        self._used_names.add(name)
        return name

    def buffer(self, name: str, dtype: DType, shape: tuple[int, ...], role: str) -> str:
        """Declare a buffer."""
        self.buffers[name] = Buffer(name, dtype, shape, role)
        return name


class NestBlock:
    """Builds the statements of a program, a loop body or an arm."""

    def __init__(self, names: BufferNames, homes: dict[Node, str] | None = None) -> None:
        self.names = names
        self.homes = homes or {}  # the buffers into which some nodes must be computed
        self.body: list[Statement] = []

    def new_temporary(self, dtype: DType, shape: tuple[int, ...]) -> str:
        """Declare a temporary buffer with a new name."""
        return self.names.buffer(self.names.unique_name("t"), dtype, shape, "temporary")

    def buffer_for(self, value: DeferredValue) -> tuple[str, StoreTarget]:
        """The buffer a value is materialised in, and the target that fills it."""
        home = self.homes.get(value.node)
        name = home or self.new_temporary(value.dtype, value.shape)
        return name, whole_buffer(name)

    def store(
        self,
        value: DeferredValue,
        target: StoreTarget,
        make: StoreMaker | None = None,
        named: DeferredValue | None = None,
    ) -> None:
        """Append the nest that writes every element of `value` to `target`."""
        if value.elements == 0:
            return
        nest = NestBuilder()
        while True:
            try:
                index = tuple(nest.axis(f"i{d}", extent) for d, extent in enumerate(value.shape))
                at = target.place(index)
                store = make(nest, index, at) if make else Store(target.buffer, at)
                result = value.at(nest, index)
                break
            except Split as request:
                nest.split(request)
        self.body.append(self._build_nest(nest, result, store, value, named))

    def _build_nest(
        self,
        nest: NestBuilder,
        result: Expr,
        store: Store,
        value: DeferredValue,
        named: DeferredValue | None,
    ) -> Nest:
        owner = nest.owner
        body, finish = result, None
        if isinstance(owner, DeferredValue):
            assert nest.body is not None
            body = nest.body
            finish = None if isinstance(result, Accumulator) else result
            value = owner
        is_copy = isinstance(body, Load) and not body.dynamic and nest.reduction is None
        name = self.names.unique_name(named.stem if named else "copy" if is_copy else value.stem)
        is_named = named is not None and nest.reduction is None and bool(str(named.loc))
        loc = named.loc if named is not None and is_named else value.loc
        built = Nest(name, nest.axes(), body, store, nest.reduction, finish, loc)
        return rename_contraction_axes(built)


def rename_contraction_axes(nest: Nest) -> Nest:
    """Rename the axes of a contraction: batch b, rows m, columns n, depth k."""
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
        is_batch = name in in_left and name in in_right
        letter = "b" if is_batch else "n" if name in in_right else "m"
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

"""Whether a core's program is another's at other addresses, so that one of them is compiled.

Cores that have halves of the same rows, heads or columns run the same nests; what they share they
access a fixed distance apart. With that distance added to every address, the code of one is the
code of the other: it computes from the shifted inputs what the first one computes from its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from glia.base.affine import Affine
from glia.tile.dependences import is_barrier
from glia.tile.ir import (
    Apply,
    Expr,
    Literal,
    Load,
    Nest,
    Program,
    Scan,
    Statement,
    Store,
    While,
    accessed_buffers,
)
from glia.tile.nest_rewriting import fold

SHARED = ("input", "output", "shared")  # roles of buffers that all cores address


def shifts_between(first: Program, second: Program) -> Mapping[str, int] | None:
    """By shared buffer, how many elements behind the first program's accesses the second's lie.

    None where they differ in anything else, or where not all accesses of a buffer lie as far apart.
    """
    if not _have_same_tensors(first, second):
        return None
    body, other = list(_statements(first.body)), list(_statements(second.body))
    numbers: dict[Hashable, int] = {}
    if [_meaning(each, numbers) for each in body] != [_meaning(each, numbers) for each in other]:
        return None
    root = dict(first.aliases)
    found: dict[str, int] = {}
    for name, shift in _shifts(body, other, first):
        if found.setdefault(root.get(name, name), shift) != shift:
            return None
    if any(found.get(name) for name in first.constants):
        return None
    return {n: shift for n, shift in found.items() if shift and first.buffers[n].role in SHARED}


def _have_same_tensors(first: Program, second: Program) -> bool:
    return (
        first.buffers == second.buffers
        and first.aliases == second.aliases
        and first.constants.keys() == second.constants.keys()
        and all(_is_same(value, second.constants[n]) for n, value in first.constants.items())
    )


def _is_same(value: np.ndarray, other: np.ndarray) -> bool:
    """Whether two constants have the same bytes, which most have in the same place."""
    if (value.shape, value.dtype) != (other.shape, other.dtype):
        return False
    place, there = value.__array_interface__["data"], other.__array_interface__["data"]
    is_one = place == there and value.strides == other.strides
    return is_one or value.tobytes() == other.tobytes()


def _statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """The statements in order; a loop without its blocks, before each of them and at the end."""
    for each in body:
        if isinstance(each, While):
            alone = replace(each, condition=(), body=())
            yield alone
            for block in (each.condition, each.body):
                yield from _statements(block)
                yield alone
        else:
            yield each


def _meaning(statement: Statement, numbers: dict[Hashable, int]) -> Hashable:
    """Equal for statements that differ at most in the constants of indices.

    Equal expressions have one number, which is found once for shared parts.
    """
    if not isinstance(statement, Nest):
        return statement
    target = replace(statement.target, index=_from_zero(statement.target.index))
    body = _number(statement.body, numbers)
    finish = _number(statement.finish, numbers) if statement.finish else None
    return (
        statement.name, statement.axes, statement.reduction, target, body, finish, statement.loc,
        len(statement.accesses),
    )  # fmt: skip


def _number(expression: Expr, numbers: dict[Hashable, int]) -> int:
    def of_leaf(leaf: Expr) -> int:
        key: Hashable = leaf
        if isinstance(leaf, Load):
            key = (replace(leaf, index=_from_zero(leaf.index)), repr(leaf.fill))
        elif isinstance(leaf, Literal):
            key = (leaf, repr(leaf.value))
        return numbers.setdefault(key, len(numbers))

    def of_call(call: Apply, args: list[int]) -> int:
        axis = call.axis if isinstance(call, Scan) else None
        return numbers.setdefault((call.function, call.dtype, axis, *args), len(numbers))

    return fold(expression, of_leaf, of_call)


def _from_zero(index: tuple[Affine, ...]) -> tuple[Affine, ...]:
    return tuple(part - part.constant for part in index)


def _shifts(
    body: Iterable[Statement], other: Iterable[Statement], program: Program
) -> Iterator[tuple[str, int]]:
    """For each access of a program, its buffer and how far behind it the other's lies."""
    for each, counterpart in zip(body, other, strict=True):
        if isinstance(each, Nest) and isinstance(counterpart, Nest):
            for access, there in zip(each.accesses, counterpart.accesses, strict=True):
                yield access.buffer, _distance(access, there, program.buffers[access.buffer].shape)
        elif not is_barrier(each):
            yield from ((name, 0) for name in sorted(accessed_buffers(each)))


def _distance(access: Load | Store, other: Load | Store, shape: tuple[int, ...]) -> int:
    """Elements from the place of one access to that of another like it."""
    elements = 0
    for extent, here, there in zip(shape, access.index, other.index, strict=True):
        elements = elements * extent + there.constant - here.constant
    return elements

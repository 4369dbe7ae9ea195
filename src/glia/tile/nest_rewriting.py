"""Substitution of axes, and maps over the leaves, nests and calls of a program."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from glia.base.affine import ZERO, Affine
from glia.base.dtype import F32, TF32, DType
from glia.tile.boxes import Box
from glia.tile.ir import (
    Accumulator,
    Apply,
    Axis,
    Branch,
    Buffer,
    Call,
    Dynamic,
    Expr,
    Guard,
    Index,
    Literal,
    Load,
    Nest,
    Program,
    Scan,
    Statement,
    Store,
    While,
    WholeBuffers,
    loads,
)

T = TypeVar("T")
A = TypeVar("A", Load, Store)
Move = tuple[int, int]  # a dimension, and the place where it goes

NO_NAMES: Mapping[str, str] = {}


def rename_axes(nest: Nest, names: Mapping[str, str]) -> Nest:
    """The nest with its axes renamed."""
    return substitute_axes(nest, {old: Affine.of(new) for old, new in names.items()}, names)


def substitute_axes(nest: Nest, values: Mapping[str, Affine], names: Mapping[str, str]) -> Nest:
    """Replace axes by affine expressions in every access; `names` renames the axes themselves."""
    reduction = nest.reduction
    if reduction:
        axes = tuple(names.get(name, name) for name in reduction.axes)
        rank = names.get(reduction.rank, reduction.rank)
        reduction = replace(reduction, axes=axes, rank=rank)
    target = replace(
        nest.target,
        index=tuple(part.substitute(values) for part in nest.target.index),
        dynamic=tuple(_substitute_dynamic(offset, values) for offset in nest.target.dynamic),
    )
    return replace(
        nest,
        axes=tuple(replace(axis, name=names.get(axis.name, axis.name)) for axis in nest.axes),
        body=substitute(nest.body, values),
        finish=nest.finish and substitute(nest.finish, values),
        target=target,
        reduction=reduction,
    )


def within_values(nest: Nest, name: str, low: int, high: int) -> Nest:
    """A nest for the values low .. high-1 of an axis."""
    moved = substitute_axes(nest, {name: Affine.of(name) + low}, {}) if low else nest
    axes = tuple(Axis(name, high - low) if axis.name == name else axis for axis in moved.axes)
    return replace(moved, axes=axes)


def with_decided_guards(nest: Nest) -> Nest:
    """The nest without guards that always hold, and the fill in place of loads that never do."""
    extents = nest.extents

    def decided(leaf: Expr) -> Expr:
        if not isinstance(leaf, Load):
            return leaf
        open_guards = []
        for guard in leaf.guards:
            low, high = guard.expression.bounds(extents)
            if high < 0 or low >= guard.extent:
                return Literal(leaf.fill, F32 if leaf.dtype is TF32 else leaf.dtype)
            if low < 0 or high >= guard.extent:
                open_guards.append(guard)
        is_same = len(open_guards) == len(leaf.guards)
        return leaf if is_same else replace(leaf, guards=tuple(open_guards))

    finish = nest.finish and map_leaves(nest.finish, decided)
    return replace(nest, body=map_leaves(nest.body, decided), finish=finish)


def merge_axes(nest: Nest, pair: tuple[str, str]) -> Nest:
    """The nest with one axis, named as the outer one, for both."""
    outer, inner = pair
    rows = nest.extents[outer] * nest.extents[inner]
    nest = substitute_axes(nest, {outer: ZERO, inner: Affine.of(outer)}, {})
    kept = (axis for axis in nest.axes if axis.name != inner)
    axes = tuple(Axis(outer, rows) if axis.name == outer else axis for axis in kept)
    return replace(nest, axes=axes)


def are_as_one(part: Affine, pair: tuple[str, str], extents: Mapping[str, int]) -> bool:
    """Whether an expression depends on two axes only as outer * extent of inner + inner."""
    outer, inner = pair
    return part.coefficient(outer) == part.coefficient(inner) * extents[inner]


def substitute(expression: Expr, values: Mapping[str, Affine]) -> Expr:
    """The expression with axes replaced by affine expressions; shared parts stay shared."""
    names = {old: new.terms[0][0] for old, new in values.items() if len(new.terms) == 1}
    return map_leaves(expression, lambda leaf: _substitute_leaf(leaf, values), names)


def map_leaves(
    expression: Expr, change: Callable[[Expr], Expr], names: Mapping[str, str] = NO_NAMES
) -> Expr:
    """The expression with its leaves changed; shared subexpressions stay shared.

    Axes along which recurrences run are renamed by `names`.
    """

    def with_args(part: Apply, args: list[Expr]) -> Expr:
        same = all(new is old for new, old in zip(args, part.args, strict=True))
        found = part if same else replace(part, args=tuple(args))
        if isinstance(found, Scan) and found.axis in names:
            found = replace(found, axis=names[found.axis])
        return found

    return fold(expression, change, with_args)


def fold(
    expression: Expr, of_leaf: Callable[[Expr], T], of_call: Callable[[Apply, list[T]], T]
) -> T:
    """A value of an expression from those of its leaves and arguments, of shared parts once."""
    done: dict[int, T] = {}

    def visit(part: Expr) -> T:
        if id(part) not in done:
            if isinstance(part, Apply):
                done[id(part)] = of_call(part, [visit(each) for each in part.args])
            else:
                done[id(part)] = of_leaf(part)
        return done[id(part)]

    return visit(expression)


def distinct_parts(expression: Expr) -> Iterator[Expr]:
    """Every part of an expression, itself included; those that are one object once."""
    stack, seen = [expression], set[int]()
    while stack:
        part = stack.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            stack.extend(part.args if isinstance(part, Apply) else ())


def unused_name(name: str, used: set[str]) -> str:
    """The name, or one made of it, that is not used yet; now it is."""
    found, number = name, 0
    while found in used:
        number += 1
        found = f"{name}.{number}"
    used.add(found)
    return found


def reads(expression: Expr | None, name: str) -> bool:
    """Whether an expression reads a buffer."""
    return any(load.buffer == name for load in loads(expression))


def with_part(expression: Expr, old: Apply, new: Expr) -> Expr:
    """The expression with another part wherever one equals `old`."""
    done: dict[int, Expr] = {}

    def visit(part: Expr) -> Expr:
        if not isinstance(part, Apply):
            return part
        if id(part) not in done:
            if hash(part) == hash(old) and are_equal(part, old):
                done[id(part)] = new
            else:
                args = tuple(map(visit, part.args))
                same = all(a is b for a, b in zip(args, part.args, strict=True))
                done[id(part)] = part if same else replace(part, args=args)
        return done[id(part)]

    return visit(expression)


def axes_in(expression: Expr) -> set[str]:
    """The axes that the value of an expression depends on."""
    found: set[str] = set()
    for part in distinct_parts(expression):
        if isinstance(part, Load):
            found.update(v for each in part.index for v in each.variables)
            found.update(v for guard in part.guards for v in guard.expression.variables)
            found.update(v for offset in part.dynamic for v in axes_in(offset.load))
        elif isinstance(part, Index):
            found.update(part.expression.variables)
    return found


def axis_values(producer: Nest, load: Load) -> dict[str, Affine] | None:
    """By axis of a producer, what its value is where a reader reads; None where unknown."""
    values = {axis.name: ZERO for axis in producer.axes if axis.extent == 1}
    for written, read in zip(producer.target.index, load.index, strict=True):
        if written.is_constant and written == read:
            continue
        if len(written.terms) != 1 or written.terms[0][1] != 1 or written.constant:
            return None
        values[written.terms[0][0]] = read
    return values if set(values) >= {axis.name for axis in producer.axes} else None


def are_equal(a: Expr, b: Expr) -> bool:
    """Whether two expressions are the same, in time linear in their distinct parts."""
    equal: set[tuple[int, int]] = set()

    def compare(one: Expr, other: Expr) -> bool:
        if one is other or (id(one), id(other)) in equal:
            return True
        if not (isinstance(one, Apply) and isinstance(other, Apply)):
            return one == other
        pairs = zip(one.args, other.args, strict=False)
        if len(one.args) != len(other.args) or not all(compare(*pair) for pair in pairs):
            return False
        equal.add((id(one), id(other)))
        return replace(one, args=other.args) == other

    return compare(a, b)


def with_total(finish: Expr | None, total: Expr) -> Expr:
    """What is computed of another total than the accumulator."""
    if finish is None:
        return total
    return map_leaves(finish, lambda leaf: total if isinstance(leaf, Accumulator) else leaf)


def rounded_total(finish: Expr, dtype: DType) -> Expr | None:
    """What is computed of a total rounded to a dtype; None where the exact total is read too."""
    is_exact_read = False

    def visit(part: Expr) -> Expr:
        nonlocal is_exact_read
        if isinstance(part, Apply):
            is_rounded = part.function == "convert" and part.dtype is dtype
            if is_rounded and isinstance(part.args[0], Accumulator):
                return done.setdefault(id(part), Accumulator(dtype))
            if id(part) not in done:
                done[id(part)] = replace(part, args=tuple(visit(arg) for arg in part.args))
            return done[id(part)]
        is_exact_read |= isinstance(part, Accumulator)
        return part

    done: dict[int, Expr] = {}
    rounded = visit(finish)
    return None if is_exact_read else rounded


def _substitute_leaf(expression: Expr, values: Mapping[str, Affine]) -> Expr:
    if isinstance(expression, Load):
        return replace(
            expression,
            index=tuple(part.substitute(values) for part in expression.index),
            guards=tuple(
                Guard(guard.expression.substitute(values), guard.extent)
                for guard in expression.guards
            ),
            dynamic=tuple(_substitute_dynamic(offset, values) for offset in expression.dynamic),
        )
    if isinstance(expression, Index):
        return replace(expression, expression=expression.expression.substitute(values))
    return expression


def _substitute_dynamic(offset: Dynamic, values: Mapping[str, Affine]) -> Dynamic:
    load = substitute(offset.load, values)
    assert isinstance(load, Load)
    return replace(offset, load=load)


def map_loads(nest: Nest, change: Callable[[Load], Load]) -> Nest:
    """The nest with its loads changed, but for those of run-time offsets."""

    def leaf(each: Expr) -> Expr:
        return change(each) if isinstance(each, Load) else each

    return replace(
        nest,
        body=map_leaves(nest.body, leaf),
        finish=nest.finish and map_leaves(nest.finish, leaf),
    )


def moved(items: tuple[T, ...], move: Move) -> tuple[T, ...]:
    """The items with one of them at another place."""
    dim, place = move
    rest = (*items[:dim], *items[dim + 1 :])
    return (*rest[:place], items[dim], *rest[place:])


def with_moved_dimensions(program: Program, moves: Mapping[str, Move]) -> Program:
    """The program with a dimension of some temporaries at another place, in every access."""
    if not moves:
        return program

    def offsets(access: Load | Store) -> tuple[Dynamic, ...]:
        places = range(len(access.index))
        move = moves.get(access.buffer)
        order = moved(tuple(places), move) if move else tuple(places)
        return tuple(
            replace(each, dimension=order.index(each.dimension), load=reordered(each.load))
            for each in access.dynamic
        )

    def reordered(access: A) -> A:
        move = moves.get(access.buffer)
        index = moved(access.index, move) if move else access.index
        return replace(access, index=index, dynamic=offsets(access))

    def change(nest: Nest) -> Nest:
        return replace(map_loads(nest, reordered), target=reordered(nest.target))

    buffers = dict(program.buffers)
    for name, move in moves.items():
        buffers[name] = replace(buffers[name], shape=moved(buffers[name].shape, move))
    return replace(map_nests(program, change), buffers=buffers)


def copied_buffer(nest: Nest, buffers: Mapping[str, Buffer]) -> str:
    """The buffer whose elements a nest copies, all of them, to their places in one that is alike.

    "" of a nest that does anything else.
    """
    load, target = nest.body, nest.target
    if not isinstance(load, Load) or nest.reduction or nest.finish or target.dynamic:
        return ""
    old, new = buffers[load.buffer], buffers[target.buffer]
    is_plain = not (load.guards or load.dynamic or target.combine) and load.dtype is old.dtype
    is_alike = (old.dtype, old.shape) == (new.dtype, new.shape) and old is not new
    is_whole = math.prod(nest.extents.values()) == new.elements
    is_copy = is_plain and is_alike and is_whole and load.index == target.index
    return load.buffer if is_copy else ""


def rename_buffer(statement: Statement, old: str, new: str) -> Statement:
    """The statement, accessing `new` where it accessed `old`."""
    if isinstance(statement, Nest):
        leaf = functools.partial(_rename_leaf, old=old, new=new)
        target = statement.target
        offsets = tuple(_rename_offset(each, old, new) for each in target.dynamic)
        return replace(
            statement,
            body=map_leaves(statement.body, leaf),
            finish=statement.finish and map_leaves(statement.finish, leaf),
            target=replace(target, buffer=_renamed(target.buffer, old, new), dynamic=offsets),
        )
    if isinstance(statement, WholeBuffers):
        inputs = tuple(_renamed(name, old, new) for name in statement.inputs)
        outputs = tuple(_renamed(name, old, new) for name in statement.outputs)
        return replace(statement, inputs=inputs, outputs=outputs)
    if isinstance(statement, While):
        condition, body = (
            tuple(rename_buffer(each, old, new) for each in block)
            for block in (statement.condition, statement.body)
        )
        predicate = _renamed(statement.predicate, old, new)
        return replace(statement, condition=condition, predicate=predicate, body=body)
    arms = tuple(tuple(rename_buffer(each, old, new) for each in arm) for arm in statement.arms)
    return replace(statement, selector=_renamed(statement.selector, old, new), arms=arms)


def _renamed(name: str, old: str, new: str) -> str:
    return new if name == old else name


def _rename_leaf(expression: Expr, old: str, new: str) -> Expr:
    if not isinstance(expression, Load):
        return expression
    offsets = tuple(_rename_offset(each, old, new) for each in expression.dynamic)
    return replace(expression, buffer=_renamed(expression.buffer, old, new), dynamic=offsets)


def _rename_offset(offset: Dynamic, old: str, new: str) -> Dynamic:
    load = _rename_leaf(offset.load, old, new)
    assert isinstance(load, Load)
    return replace(offset, load=load)


def map_nests(program: Program, change: Callable[[Nest], Nest]) -> Program:
    """The program with every nest changed in place."""
    return _map(program, lambda each: change(each) if isinstance(each, Nest) else each)


def map_calls(program: Program, change: Callable[[Call], Call]) -> Program:
    """The program with every call changed in place."""
    return _map(program, lambda each: change(each) if isinstance(each, Call) else each)


def _map(program: Program, change: Callable[[Nest | WholeBuffers], Nest | WholeBuffers]) -> Program:
    """The program with every nest and statement over whole buffers changed in place."""
    return replace(program, body=with_replacements(program.body, lambda each: (change(each),)))


def with_blocks(
    statement: Statement, change: Callable[[Sequence[Statement]], tuple[Statement, ...]]
) -> Statement:
    """The statement with the blocks of statements inside of it changed, in program order."""
    if isinstance(statement, While):
        condition = change(statement.condition)
        return replace(statement, condition=condition, body=change(statement.body))
    if isinstance(statement, Branch):
        return replace(statement, arms=tuple(map(change, statement.arms)))
    return statement


def with_replacements(
    body: Sequence[Statement], change: Callable[[Nest | WholeBuffers], Iterable[Statement]]
) -> tuple[Statement, ...]:
    """The statements with others in place of every one that holds none."""
    found: list[Statement] = []
    for each in body:
        if isinstance(each, Nest | WholeBuffers):
            found += change(each)
        else:
            found.append(with_blocks(each, lambda block: with_replacements(block, change)))
    return tuple(found)


def in_boxes(access: A, kept: Mapping[str, Box]) -> A:
    """An access to the part of its buffer that is kept, if only a part is."""
    box = kept.get(access.buffer)
    if box is None:
        return access
    pairs = zip(access.index, box, strict=True)
    return replace(access, index=tuple(part + -low for part, (low, _) in pairs))


def load_in_boxes(load: Load, kept: Mapping[str, Box], buffers: Mapping[str, Buffer]) -> Load:
    """A load from the part of its buffer that is kept; what guards let through is in there."""
    if load.buffer not in kept:
        return load
    moved_load = in_boxes(load, kept)
    guards: dict[Guard, Guard] = {}
    sides = zip(load.index, moved_load.index, kept[load.buffer], strict=True)
    for extent, (old, new, (low, high)) in zip(buffers[load.buffer].shape, sides, strict=True):
        guards[Guard(old, extent)] = Guard(new, high - low)
    return replace(moved_load, guards=tuple(guards.get(each, each) for each in load.guards))

"""Dimensions of temporaries that all nests sweep row by row become two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glia.base.affine import Affine
from glia.tile.ir import Dynamic, Expr, Load, Nest, Program, control_buffers
from glia.tile.nest_rewriting import map_leaves, map_nests

Split = Mapping[int, int]  # by dimension: the length of the rows that it becomes


def split_dimensions(program: Program) -> Program:
    """The program whose temporaries have rows wherever all nests sweep a dimension by the same.

    An index `length * row + place` becomes the two indices `row` and `place`.
    """
    splits = _splits(program)
    if not splits:
        return program
    buffers = dict(program.buffers)
    for name, split in splits.items():
        pairs = [(n // split[d], split[d]) if d in split else (n,)
                 for d, n in enumerate(buffers[name].shape)]  # fmt: skip
        buffers[name] = replace(buffers[name], shape=tuple(n for pair in pairs for n in pair))
    program = map_nests(program, lambda nest: _in_rows(nest, splits))
    return replace(program, buffers=buffers)


def _splits(program: Program) -> Mapping[str, Split]:
    """By temporary: the dimensions that are swept in rows of one length, and only so."""
    found: dict[tuple[str, int], set[int]] = {}
    for nest in program.nests():
        for access in nest.accesses:
            for d, part in enumerate(access.index):
                length = row_length(part, nest) if _is_unguarded(access, part) else 0
                found.setdefault((access.buffer, d), set()).add(length)
    fixed = control_buffers(program.body)
    splits: dict[str, dict[int, int]] = {}
    for (name, d), lengths in found.items():
        buffer, (length, *others) = program.buffers[name], lengths
        is_free = buffer.role == "temporary" and name not in fixed
        if is_free and length and not others and buffer.shape[d] % length == 0:
            splits.setdefault(name, {})[d] = length
    return splits


def _is_unguarded(access: object, part: Affine) -> bool:
    """Whether no guard of an access bounds the expression, and no run-time offset is added."""
    if getattr(access, "dynamic", ()):
        return False
    return all(guard.expression != part for guard in getattr(access, "guards", ()))


def row_length(part: Affine, nest: Nest) -> int:
    """The length of the rows that `length * row + place` sweeps; 0 for any other expression."""
    if part.constant or len(part.terms) != 2:
        return 0
    (place, one), (_, length) = sorted(part.terms, key=lambda term: term[1])
    is_in_rows = one == 1 and length > 1 and nest.extents.get(place) == length
    return length if is_in_rows else 0


def _in_rows(nest: Nest, splits: Mapping[str, Split]) -> Nest:
    """The nest that accesses the rows of split dimensions."""

    def index_of(name: str, index: tuple[Affine, ...]) -> tuple[Affine, ...]:
        split = splits.get(name, {})
        parts = [_row_and_place(e) if d in split else (e,) for d, e in enumerate(index)]
        return tuple(each for part in parts for each in part)

    def leaf(each: Expr) -> Expr:
        if not isinstance(each, Load):
            return each
        dynamic = tuple(map(offset, each.dynamic))
        return replace(each, index=index_of(each.buffer, each.index), dynamic=dynamic)

    def offset(each: Dynamic) -> Dynamic:
        load = leaf(each.load)
        assert isinstance(load, Load)
        return replace(each, load=load)

    index = index_of(nest.target.buffer, nest.target.index)
    target = replace(nest.target, index=index, dynamic=tuple(map(offset, nest.target.dynamic)))
    finish = nest.finish and map_leaves(nest.finish, leaf)
    return replace(nest, body=map_leaves(nest.body, leaf), finish=finish, target=target)


def _row_and_place(part: Affine) -> tuple[Affine, Affine]:
    (place, _), (row, _) = sorted(part.terms, key=lambda term: term[1])
    return Affine.of(row), Affine.of(place)

"""Columns of a program that a pass changed in part: the unchanged columns are shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from glia.isa.operand import Signal, Tile, Wait
from glia.machine.columns.table import (
    AffineColumn,
    Columns,
    InstructionSpan,
    PatternTable,
    SignalTable,
    WaitTable,
    cache_columns,
)
from glia.machine.columns.value_numbering import (
    Array,
    DictionaryColumn,
    dictionary_encode,
    group_column,
    integer_column,
    object_column,
    ranks_within,
    row_offsets,
)
from glia.machine.ir import Block, Branch, Loop, Program, While, blocks


def share_columns(program: Program, other: Program) -> Program:
    """`program`, whose body is that of `other`, with the columns in the other's cache."""
    columns = other.cache.get(Columns)
    if columns is not None:
        cache_columns(program, columns)
    return program


def rearrange(
    program: Program, before: Columns, order: Array, tile: Array, tiles: Sequence[Tile]
) -> Program:
    """`program`, one block without waits, with its columns, taken from those of another.

    Its instructions are those of `before` with the numbers `order`, and may have other tiles: row r
    of the patterns of `before` is of tile `tiles[tile[r]]`.
    """
    patterns, nothing = before.patterns, np.zeros(0, np.int64)
    counts = np.diff(patterns.begin)[order]
    begin = row_offsets(counts)
    rows = np.repeat(patterns.begin[order], counts) + ranks_within(counts)
    used = group_column(tile[rows])

    def moved(column: DictionaryColumn) -> DictionaryColumn:
        return DictionaryColumn(column.number[rows], column.distinct)

    def moved_affine(column: AffineColumn) -> AffineColumn:
        return AffineColumn(column.constant[rows], moved(column.terms))

    table = PatternTable(
        begin=begin,
        owner=np.repeat(np.arange(order.size), counts),
        name=moved(patterns.name),
        access=patterns.access[rows],
        tile=DictionaryColumn(
            used.number, [tiles[number] for number in tile[rows][used.first].tolist()]
        ),
        dtype=moved(patterns.dtype),
        dims=moved(patterns.dims),
        offset=moved_affine(patterns.offset),
        partition=moved_affine(patterns.partition),
    )
    offsets, no_terms = np.zeros(order.size + 1, np.int64), DictionaryColumn(nothing, [])
    columns = replace(
        before,
        instructions=[*program.instructions()],
        body=(InstructionSpan(0, order.size),) if order.size else (),
        form=group_column(before.form.number[order]),
        family=group_column(before.family.number[order]),
        patterns=table,
        waits=WaitTable(offsets, nothing, AffineColumn(nothing, no_terms)),
        signals=SignalTable(offsets, nothing, nothing),
    )
    cache_columns(program, columns)
    return program


def update_semaphores(program: Program, before: Columns) -> Program:
    """`program` with its columns, which differ from `before` in waits and signals alone."""
    is_flat = all(span.statement is None for span in before.body)
    instructions = [*(program.body if is_flat else program.instructions())]
    waits: list[tuple[Wait, ...]] = [each.waits for each in instructions]
    signals: list[tuple[Signal, ...]] = [each.signals for each in instructions]
    awaited, given = [*chain.from_iterable(waits)], [*chain.from_iterable(signals)]
    semaphores = [each.semaphore for each in given] + [each.semaphore for each in awaited]
    names = dictionary_encode(object_column(semaphores))
    terms = dictionary_encode(object_column([each.value.terms for each in awaited]))
    constant = integer_column([each.value.constant for each in awaited], len(awaited))
    values = AffineColumn(constant, terms)
    amount = integer_column([each.amount for each in given], len(given))
    columns = replace(
        before,
        instructions=instructions,
        body=_replace_statements(before.body, program.body),
        waits=WaitTable(_list_offsets(waits), names.number[len(given) :], values),
        signals=SignalTable(_list_offsets(signals), names.number[: len(given)], amount),
        semaphores=names.distinct,
    )
    cache_columns(program, columns)
    return program


def _list_offsets(lists: list[Any]) -> Array:
    return row_offsets(integer_column(map(len, lists), len(lists)))


def _replace_statements(
    spans: tuple[InstructionSpan, ...], body: Block
) -> tuple[InstructionSpan, ...]:
    """The spans with the statements of `body` in place of theirs."""
    if all(span.statement is None for span in spans):
        return spans
    statements = iter([each for each in body if isinstance(each, Loop | While | Branch)])
    found = []
    for span in spans:
        if span.statement is not None:
            statement = next(statements)
            pairs = zip(span.blocks, blocks(statement), strict=True)
            inside = tuple([_replace_statements(*pair) for pair in pairs])
            span = InstructionSpan(span.begin, span.end, statement, inside)
        found.append(span)
    return tuple(found)

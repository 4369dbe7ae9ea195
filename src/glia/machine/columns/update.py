"""The columns of a program that a pass has changed, where most of them stay as they were."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from glia.isa.operand import Signal, Wait
from glia.machine.columns.table import (
    Columns,
    Expressions,
    Signals,
    Span,
    Waits,
    cache_columns,
)
from glia.machine.columns.value_numbering import Array, begins_of, column_of, integers, numbered
from glia.machine.ir import Block, Branch, Loop, Program, While, blocks


def with_body_of(program: Program, other: Program) -> Program:
    """`program`, whose body is that of `other`, with the other's cached columns."""
    columns = other.cache.get(Columns)
    if columns is not None:
        cache_columns(program, columns)
    return program


def with_other_semaphores(program: Program, before: Columns) -> Program:
    """`program` with columns; those before were the same but for the waits and signals."""
    is_flat = all(span.statement is None for span in before.body)
    instructions = [*(program.body if is_flat else program.instructions())]
    waits: list[tuple[Wait, ...]] = [each.waits for each in instructions]
    signals: list[tuple[Signal, ...]] = [each.signals for each in instructions]
    awaited, given = [*chain.from_iterable(waits)], [*chain.from_iterable(signals)]
    names = numbered(column_of([each.semaphore for each in (*given, *awaited)]))
    terms = numbered(column_of([each.value.terms for each in awaited]))
    constant = integers([each.value.constant for each in awaited], len(awaited))
    values = Expressions(constant, terms)
    amount = integers([each.amount for each in given], len(given))
    columns = replace(
        before,
        instructions=instructions,
        body=_renewed(before.body, program.body),
        waits=Waits(_begins(waits), names.number[len(given) :], values),
        signals=Signals(_begins(signals), names.number[: len(given)], amount),
        semaphores=names.distinct,
    )
    cache_columns(program, columns)
    return program


def _begins(lists: list[Any]) -> Array:
    return begins_of(integers(map(len, lists), len(lists)))


def _renewed(spans: tuple[Span, ...], body: Block) -> tuple[Span, ...]:
    """The same spans with the loops and branches that now stand in their places."""
    if all(span.statement is None for span in spans):
        return spans
    statements = iter([each for each in body if isinstance(each, Loop | While | Branch)])
    found = []
    for span in spans:
        if span.statement is not None:
            statement = next(statements)
            pairs = zip(span.blocks, blocks(statement), strict=True)
            inside = tuple([_renewed(*pair) for pair in pairs])
            span = Span(span.begin, span.end, statement, inside)
        found.append(span)
    return tuple(found)

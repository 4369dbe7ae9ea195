"""Exchanges with other ranks as instructions: one for all tensors that travel together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glia.base.affine import Affine
from glia.isa.instructions.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    ReduceScatter,
)
from glia.isa.instructions.multicore import CoreBarrier, RankId
from glia.isa.instructions.sync import RegisterStore
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Tile
from glia.tile.ir import Exchange


def exchange_instructions(
    exchange: Exchange,
    inputs: Sequence[Tile],
    outputs: Sequence[Tile],
    register: str,
    *,
    queue: str,
    on: str,
) -> list[Instr]:
    """The instructions of an exchange of whole tensors in HBM; `register` takes a rank.

    The engine `on` issues them to a queue.
    """
    if exchange.kind == "rank-id":
        return _stored_rank(exchange, outputs[0], register)
    if exchange.kind == "barrier":
        return [CoreBarrier(data=each, on=on) for each in _all_rows(outputs, 1)]
    common: dict[str, Any] = {"queue": queue, "on": on, "loc": exchange.loc}
    if exchange.kind == "collective-permute":
        pairs = tuple((source, target) for source, target in exchange.groups)
        return [
            CollectivePermute(
                srcs=_all_rows([source], 1),
                dsts=_all_rows([target], 1),
                source_target_pairs=pairs,
                **common,
            )
            for source, target in zip(inputs, outputs, strict=True)
        ]
    before, after = _row_counts(exchange)
    common |= {"srcs": _all_rows(inputs, before), "dsts": _all_rows(outputs, after)}
    common |= {"groups": exchange.groups}
    if exchange.kind == "all-reduce":
        return [AllReduce(op=exchange.function, **common)]
    if exchange.kind == "reduce-scatter":
        return [ReduceScatter(op=exchange.function, collective_dim=0, **common)]
    gathers = exchange.kind == "all-gather"
    return [(AllGather if gathers else AllToAll)(collective_dim=0, **common)]


def _row_counts(exchange: Exchange) -> tuple[int, int]:
    """In how many rows tensors are taken that go, and that come: pieces are rows."""
    count = len(exchange.groups[0])
    return {"all-gather": (1, count), "reduce-scatter": (count, 1), "all-reduce": (1, 1)}.get(
        exchange.kind, (count, count)
    )


def _stored_rank(exchange: Exchange, output: Tile, register: str) -> list[Instr]:
    cell = Pattern(output, output.dtype, ((1, 1), (1, 1)))
    value = Affine.of(register)
    return [
        RankId(register=register, on="sync", loc=exchange.loc),
        RegisterStore(dst=cell, value=value, on="sync", loc=exchange.loc),
    ]


def _all_rows(tiles: Sequence[Tile], rows: int) -> tuple[Pattern, ...]:
    return tuple(_rows(tile, rows) for tile in tiles)


def _rows(tile: Tile, rows: int) -> Pattern:
    """A whole tensor as so many rows."""
    columns = tile.elements // rows
    return Pattern(tile, tile.dtype, ((columns, rows), (1, columns)))

"""Splice a kernel written by hand into the program of a model.

Its tiles, loop variables and registers are renamed apart from the model's; its inputs and outputs
become the model's tensors. Its addresses are dropped, and `place` assigns new ones. Its order and
engines stay: the block is marked as fixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glia.isa.operand import Pattern, Tile
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.instruction_rewriting import control_variables, rename_block
from glia.machine.ir import Loop, Program


def splice(
    builder: BlockBuilder, kernel: Program, inputs: Sequence[Tile], outputs: Sequence[Tile]
) -> None:
    """Append the kernel, reading the tiles `inputs` and writing `outputs`, all in HBM.

    An output that aliases an input starts as a copy of it, so that the input stays unchanged.
    """
    tiles = {b.tile.name: tile for b, tile in zip(kernel.inputs, inputs, strict=True)}
    inputs_by_name = dict(tiles)
    duplicates: list[tuple[Tile, Tile]] = []
    homes: dict[str, Tile] = {}
    for binding, tile in zip(kernel.outputs, outputs, strict=True):
        name = binding.tile.name
        if name in homes:
            duplicates.append((tile, homes[name]))
            continue
        if name in inputs_by_name:
            _copy(builder, tile, inputs_by_name[name])
        homes[name] = tiles[name] = tile
    for name, tile in kernel.tiles.items():
        if name not in tiles:
            local = builder.tile(name, tile.memory, tile.dtype, tile.partitions, tile.elements)
            tiles[name] = local
            if name in kernel.constants:
                builder.constants[local.name] = np.asarray(kernel.constants[name])
    names = {name: builder.unique_name(name) for name in control_variables(kernel.body)}
    body = rename_block(kernel.body, tiles, names)
    builder.block.append(Loop(builder.unique_name("kernel"), 1, body, is_fixed=True))
    for tile, home in duplicates:
        _copy(builder, tile, home)


def _copy(builder: BlockBuilder, dst: Tile, src: Tile) -> None:
    whole = [Pattern(tile, tile.dtype, ((1, 1), (1, tile.elements))) for tile in (dst, src)]
    builder.dma(whole[0], whole[1], "load")

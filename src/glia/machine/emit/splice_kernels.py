"""Put a program written by hand into the program of a model.

Its tiles, loop variables and registers get names of their own, its inputs and outputs become the
model's tensors. Addresses are given up: `place` gives new ones, since the model needs SBUF and PSUM
before and after. Its order and its engines stay: it is marked as fixed.
"""

from __future__ import annotations

from collections.abc import Sequence

from glia.isa.operand import Pattern, Tile
from glia.machine.emit.block_builder import Builder
from glia.machine.instruction_rewriting import renamed, variables
from glia.machine.ir import Loop, Program


def splice(
    builder: Builder, kernel: Program, inputs: Sequence[Tile], outputs: Sequence[Tile]
) -> None:
    """Append the kernel, reading the tiles `inputs` and writing `outputs`, all in HBM.

    Where an output is an input that the kernel changes, the change is made on a copy.
    """
    tiles = {b.tile.name: tile for b, tile in zip(kernel.inputs, inputs, strict=True)}
    given = dict(tiles)
    repeated: list[tuple[Tile, Tile]] = []
    homes: dict[str, Tile] = {}
    for binding, tile in zip(kernel.outputs, outputs, strict=True):
        name = binding.tile.name
        if name in homes:
            repeated.append((tile, homes[name]))
            continue
        if name in given:
            _copy(builder, tile, given[name])
        homes[name] = tiles[name] = tile
    for name, tile in kernel.tiles.items():
        if name not in tiles:
            made = builder.tile(name, tile.memory, tile.dtype, tile.partitions, tile.elements)
            tiles[name] = made
            if name in kernel.constants:
                builder.constants[made.name] = kernel.constants[name]  # type: ignore[assignment]
    names = {name: builder.fresh(name) for name in variables(kernel.body)}
    body = renamed(kernel.body, tiles, names)
    builder.block.append(Loop(builder.fresh("kernel"), 1, body, is_fixed=True))
    for tile, home in repeated:
        _copy(builder, tile, home)


def _copy(builder: Builder, dst: Tile, src: Tile) -> None:
    whole = [Pattern(tile, tile.dtype, ((1, 1), (1, tile.elements))) for tile in (dst, src)]
    builder.dma(whole[0], whole[1], "load")

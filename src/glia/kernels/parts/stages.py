"""How kernels keep engines from waiting for each other: the stages of tiles that overlap.

Every engine works in the order in which the kernel was written. Written tile by tile, an engine
that appears twice in a tile stands still while another one works in between. Written in stages,
it works on the next tile meanwhile:

  in turn       max 0    (exp 0)  scale 0   max 1    (exp 1)  scale 1    Vector waits for Scalar
  overlapping   max 0    max 1   (exp 0)  scale 0   max 2   (exp 1)  scale 1 ...

A tile in flight has buffers of its own, so overlapping takes room for as many tiles as there are
stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from glia.nki import language as nl

Stage = Callable[[Any], Any]


def run_stages(
    items: Iterable[Any], *stages: Stage, overlap: bool = True, order: Sequence[int] = ()
) -> None:
    """Run every item through all stages, each of which gets what the one before returned.

    With `overlap` each step runs the first stage of one item, the second stage of the item before
    it, and so on; `order` gives the numbers of the stages in another order for each step. A stage
    that is `wait` lets what comes before it finish.
    """
    values = list(items)
    if not overlap:
        for value in values:
            for stage in stages:
                value = stage(value)
        return
    for step in range(len(values) + len(stages) - 1):
        for number in order or range(len(stages)):
            item = step - number
            if 0 <= item < len(values):
                values[item] = stages[number](values[item])


def wait(value: Any) -> Any:
    """A stage without instructions."""
    return value


def fits(bytes_per_partition: int) -> bool:
    """Whether SBUF has room for so many bytes in each partition, and some to spare."""
    return bytes_per_partition <= 0.8 * nl.tile_size.total_available_sbuf_size

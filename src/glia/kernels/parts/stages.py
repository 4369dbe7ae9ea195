"""Software pipelining of kernels: stages of consecutive tiles overlap.

Every engine executes in program order. In a kernel written tile by tile, an engine that is used
twice for a tile idles while another one works in between. With stages it works on the next tile
meanwhile:

  sequential    max 0    (exp 0)  scale 0   max 1    (exp 1)  scale 1    Vector waits for Scalar
  overlapping   max 0    max 1   (exp 0)  scale 0   max 2   (exp 1)  scale 1 ...

Every tile in flight has its own buffers, so overlap needs SBUF for one tile per stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from glia.nki import language as nl

Stage = Callable[[Any], Any]


def run_stages(
    items: Iterable[Any], *stages: Stage, overlap: bool = True, order: Sequence[int] = ()
) -> None:
    """Run every item through all stages; a stage takes the result of the stage before.

    With `overlap`, a step runs the first stage of one item, the second stage of the item before
    it, and so on, or the stages in the given `order`. An `idle_stage` delays the next stage by one
    step.
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


def idle_stage(value: Any) -> Any:
    """A stage without instructions: returns its argument."""
    return value


def fits_in_sbuf(bytes_per_partition: int) -> bool:
    """Whether so many bytes per partition fit in SBUF with a margin of 20 percent."""
    return bytes_per_partition <= 0.8 * nl.tile_size.total_available_sbuf_size

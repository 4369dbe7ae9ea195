"""What compiled code is measured on: workloads in plain JAX, each with what no program can beat.

Weights are arguments, not constants, unless a model is used with fixed weights (inference of
convolutional networks and encoders). Arrays are only described: times do not depend on values.
"""

from __future__ import annotations

from collections.abc import Iterator

import workload_models
import workload_parts
import workload_sequences
from workload import Workload


def workloads() -> Iterator[Workload]:
    """Every workload, in the order of CODE.md."""
    yield from workload_parts.products()
    yield from workload_parts.rows()
    yield from workload_parts.long_rows()
    yield from workload_parts.attentions()
    yield from workload_parts.products_with_neighbours()
    yield from workload_models.workloads()
    yield from workload_sequences.recurrences()
    yield from workload_sequences.selections()

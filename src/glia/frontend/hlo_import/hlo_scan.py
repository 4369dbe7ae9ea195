"""HLO scan: a computation applied along a dimension, its carries handed from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glia.base.dtype import S32
from glia.frontend.hlo_import.module_context import Importer, Site, unflatten
from glia.frontend.hlo_import.node_builder import Value, flatten
from glia.frontend.hlo_import.shapes import leaves
from glia.graph.ir import Node
from glia.graph.rules.constructors import (
    apply,
    constant,
    counted_loop,
    dynamic_slice,
    dynamic_update_slice,
    reshape,
    splat,
)


def _scan(site: Site) -> Value:
    """A loop whose state is (inputs, carries, outputs); operands are (inputs, carries)."""
    operands, carried = site.tensors(), int(site.proto.num_carries)
    if not 0 <= carried < len(operands) or len(site.proto.dimensions) != 1:
        raise site.malformed(f"scan of {len(operands)} operands with {carried} carries")
    inputs, carries = operands[: len(operands) - carried], operands[len(operands) - carried :]
    dimension, steps = _steps(site, inputs)
    declared = leaves(site.type)
    stacked = len(declared) - carried
    if stacked < 0 or [node.type for node in carries] != list(declared[stacked:]):
        raise site.reject(f"the carries do not have the types of the result {site.type}")
    if any(kind.shape[dimension : dimension + 1] != (steps,) for kind in declared[:stacked]):
        raise site.reject(f"the result {site.type} does not hold {steps} steps")
    outputs = [splat(np.zeros((), k.dtype.numpy), k.dtype, k.shape) for k in declared[:stacked]]
    (identifier,) = site.called_computations(1)

    def step(count: Node, *state: Node) -> tuple[Node, ...]:
        last = constant(steps - 1, S32)
        index = apply("subtract", last, count) if site.proto.is_reverse else count
        xs, kept, ys = _split(state, len(inputs), carried)
        slices = [_slice_at(x, dimension, index) for x in xs]
        found = flatten(site.inline(identifier, (*slices, *kept)))
        if len(found) != len(declared):
            raise site.reject(f"the computation returns {len(found)} of {len(declared)} values")
        new = (_put(y, dimension, index, value) for y, value in zip(ys, found, strict=False))
        return (*xs, *found[stacked:], *new)

    end = counted_loop("scan", steps, (*inputs, *carries, *outputs), step)
    _, last_carries, ys = _split(end, len(inputs), carried)
    return unflatten(site.type, iter((*ys, *last_carries)))


def _steps(site: Site, inputs: Sequence[Node]) -> tuple[int, int]:
    """The dimension that is scanned and its extent."""
    dimension = int(site.proto.dimensions[0])
    extents = {x.shape[dimension] for x in inputs if 0 <= dimension < len(x.shape)}
    if len(extents) != 1 or any(len(x.shape) <= dimension for x in inputs):
        raise site.reject(f"scan along dimension {dimension} of {[str(x.type) for x in inputs]}")
    return dimension, extents.pop()


def _split(
    state: Sequence[Node], inputs: int, carries: int
) -> tuple[Sequence[Node], Sequence[Node], Sequence[Node]]:
    return state[:inputs], state[inputs : inputs + carries], state[inputs + carries :]


def _starts(x: Node, dimension: int, index: Node) -> list[Node]:
    zero = constant(0, S32)
    return [index if d == dimension else zero for d in range(len(x.shape))]


def _slice_at(x: Node, dimension: int, index: Node) -> Node:
    """One slice of x, without the dimension."""
    extents = [1 if d == dimension else extent for d, extent in enumerate(x.shape)]
    slice_ = dynamic_slice(x, _starts(x, dimension, index), extents)
    return reshape(slice_, (*x.shape[:dimension], *x.shape[dimension + 1 :]))


def _put(x: Node, dimension: int, index: Node, value: Node) -> Node:
    """x with one slice replaced."""
    update = reshape(value, (*x.shape[:dimension], 1, *x.shape[dimension + 1 :]))
    return dynamic_update_slice(x, update, _starts(x, dimension, index))


SCAN: dict[str, Importer] = {"scan": _scan}

"""Random collectives: graphs of one each, with the devices they run on and inputs for each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.base.dtype import (
    BF16,
    C64,
    DTYPES,
    F16,
    F32,
    PRED,
    S4,
    S8,
    S16,
    S32,
    S64,
    U8,
    U16,
    U32,
    U64,
    DType,
)  # fmt: skip
from glia.graph import ops
from glia.graph.evaluate import random_inputs
from glia.graph.ir import Graph, Parameter, TensorType, TupleType

Array = np.ndarray[Any, Any]

DATA = ("all-gather", "all-to-all", "collective-broadcast", "collective-permute")
REDUCTIONS = ("all-reduce", "reduce-scatter")
MOVED = (F32, BF16, F16, PRED, S4, S8, U8, S16, U16, S32, U32, S64, U64, C64, DTYPES["f8e4m3fn"])
COMBINED = (F32, BF16, PRED, S8, U16, S32, U32, S64, C64)
FUNCTIONS = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
BITWISE = ("and", "or", "xor")


@dataclass(frozen=True)
class RankedGraph:
    """A graph of one collective, and what each rank gives it."""

    graph: Graph
    inputs: tuple[list[Array], ...]

    def __repr__(self) -> str:
        return f"{self.graph.replicas}x{self.graph.partitions} {self.graph.name}"


def draw(seed: int) -> RankedGraph:
    """A collective drawn by a seed."""
    generator = np.random.default_rng(seed)
    kind = str(generator.choice((*DATA, *REDUCTIONS)))
    replicas, partitions = (int(generator.integers(1, 4)) for _ in range(2))
    if replicas * partitions == 1:
        partitions = 2
    numbers, groups, pairs = _members(generator, kind, replicas, partitions)
    count = _group_size(groups, numbers, replicas, partitions)
    dtypes = MOVED if kind in DATA else COMBINED
    dtype = dtypes[int(generator.integers(len(dtypes)))]
    shape = [int(generator.integers(1, 6)) for _ in range(int(generator.integers(1, 4)))]
    along = int(generator.integers(len(shape))) if kind in ("all-gather", "all-to-all",
                                                            "reduce-scatter") else -1  # fmt: skip
    result = list(shape)
    if kind in ("all-to-all", "reduce-scatter"):
        shape[along] = result[along] = shape[along] * count
    if kind == "reduce-scatter":
        result[along] //= count
    if kind == "all-gather":
        result[along] *= count
    body = (ops.combiner(_function(generator, dtype), dtype),) if kind in REDUCTIONS else ()
    several = int(generator.integers(1, 3)) if kind != "all-to-all" else 1
    given = tuple(Parameter(i, TensorType(dtype, tuple(shape))) for i in range(several))
    made = (TensorType(dtype, tuple(result)),) * several
    node = ops.Collective(
        given, kind, made[0] if several == 1 else TupleType(made), along, groups, pairs, body,
        numbers,
    )  # fmt: skip
    name = f"{kind} of {dtype}{shape} along {along} among {numbers} {groups or pairs}"
    graph = Graph(name, given, ops.results_of(node), (), (), replicas, partitions)
    inputs = tuple(random_inputs(graph, seed + rank) for rank in range(replicas * partitions))
    return RankedGraph(graph, inputs)


def _function(generator: np.random.Generator, dtype: DType) -> str:
    if dtype.is_complex:
        known: tuple[str, ...] = ("add", "multiply")
    elif dtype.is_float:
        known = tuple(f for f in FUNCTIONS if f not in BITWISE)
    else:
        known = BITWISE if dtype is PRED else FUNCTIONS
    return str(generator.choice(known))


def _members(
    generator: np.random.Generator, kind: str, replicas: int, partitions: int
) -> tuple[str, Any, Any]:
    """What is counted, groups and pairs."""
    if kind in ("all-gather", *REDUCTIONS):
        numbers = str(generator.choice(["ranks", "replicas", "replicas with partitions"]))
    else:
        numbers = str(generator.choice(["replicas", "partitions"]))
    counts = {"ranks": replicas * partitions, "partitions": partitions}
    count = counts.get(numbers, replicas)
    order = generator.permutation(count).tolist()
    if kind == "collective-permute":
        targets = generator.permutation(count).tolist()[: int(generator.integers(0, count + 1))]
        return numbers, (), tuple(zip(order, targets, strict=False))
    if kind in ("all-reduce", "collective-broadcast") and generator.random() < 0.3:
        cut = int(generator.integers(0, count))
        return numbers, tuple(g for g in (tuple(order[:cut]), tuple(order[cut:])) if g), ()
    if generator.random() < 0.2:
        return numbers, (), ()
    sizes = [size for size in range(1, count + 1) if count % size == 0]
    size = int(generator.choice(sizes))
    return numbers, tuple(tuple(order[i : i + size]) for i in range(0, count, size)), ()


def _group_size(groups: Any, numbers: str, replicas: int, partitions: int) -> int:
    if not groups:
        return {"replicas": replicas, "partitions": partitions}.get(numbers, replicas * partitions)
    return max(map(len, groups)) * (partitions if numbers == "replicas with partitions" else 1)

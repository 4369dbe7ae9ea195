"""Exchanges between replicas or partitions."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from glia.base.dtype import U32
from glia.graph import participants
from glia.graph.ir import Graph, Node, TensorType, TupleType, Type, op
from glia.graph.ops.scalar_regions import apply
from glia.graph.type_rules import require, require_combiner, require_length, tensor

Array = np.ndarray[Any, Any]

COLLECTIVE_KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "partition-id",
    "reduce-scatter",
    "replica-id",
)
_IDS = ("partition-id", "replica-id")
_SAME_TYPE = ("all-reduce", "collective-broadcast", "collective-permute")
_WITH_BODY = ("all-reduce", "reduce-scatter")


@op
class Collective(Node):
    """An exchange between replicas or partitions, named by `kind` (one of `COLLECTIVE_KINDS`).

    `dimension` is -1 where a kind has none. No `replica_groups` means one group of all
    participants. An ordinary evaluation has one participant, number 0;
    `participants.evaluate_participants` runs several.
    """

    args: tuple[Node, ...]
    kind: str
    result: Type
    dimension: int
    replica_groups: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    body: tuple[Graph, ...]
    opcode: ClassVar[str] = "collective"

    def infer(self) -> Type:
        require(self.kind in COLLECTIVE_KINDS, f"no collective is named {self.kind!r}")
        if self.kind in _IDS:
            fits = self.result == TensorType(U32) and not self.args
            require(fits, f"{self.kind} gives u32[], not {self.result}")
            return self.result
        results = self.result.elements if isinstance(self.result, TupleType) else (self.result,)
        require_length(results, len(self.args), f"the results of {self.kind}")
        require_length(self.body, self.kind in _WITH_BODY, f"the bodies of {self.kind}")
        for arg, result in zip(self.args, results, strict=True):
            given = tensor(arg)
            fits = isinstance(result, TensorType) and self._fits(given, result)
            require(fits, f"{self.kind} of {given} cannot give {result}")
            for body in self.body:
                require_combiner(body, [given.dtype], f"the body of {self.kind}")
        return self.result

    def _fits(self, given: TensorType, result: TensorType) -> bool:
        """Whether this kind can make `result` of `given`: extents differ along `dimension` only."""
        if result.dtype is not given.dtype:
            return False
        if self.kind in _SAME_TYPE:
            return result == given
        rank, along = len(given.shape), self.dimension
        return along < 0 or (
            along < rank == len(result.shape)
            and all(given.shape[d] == result.shape[d] for d in range(rank) if d != along)
        )

    def compute(self, *arrays: Array) -> Any:
        me = participants.current()
        if self.kind in _IDS:
            counted = me.is_partition == (self.kind == "partition-id")
            return np.array(me.number if counted else 0, np.uint32)
        everyone = me.exchange(self, arrays)
        group = self._group(me)
        if self.kind == "all-to-all" and self.dimension < 0:
            given = [everyone[member][group.index(me.number)] for member in group]
        else:
            parts = [[everyone[member][i] for member in group] for i in range(len(arrays))]
            given = [self._combine(part, group.index(me.number)) for part in parts]
        if self.kind == "collective-permute":
            given = self._permute(me.number, everyone)
        if [array.shape for array in given] != self._result_shapes():
            size = len(group)
            raise TypeError(f"{self.kind} to {self.result}: a group of {size} does not fit")
        return tuple(given) if isinstance(self.result, TupleType) else given[0]

    def _result_shapes(self) -> list[tuple[int, ...]]:
        results = self.result.elements if isinstance(self.result, TupleType) else (self.result,)
        return [result.shape for result in results if isinstance(result, TensorType)]

    def _group(self, me: participants.Participant) -> list[int]:
        """The participants, in order, that this one exchanges with."""
        if me.count == 1:
            return [0]
        for group in self.replica_groups:
            if me.number in group:
                return list(group)
        return [me.number] if any(self.replica_groups) else list(range(me.count))

    def _combine(self, parts: list[Array], place: int) -> Array:
        """The result of the member at `place` of the group, from one array per member."""
        if self.kind == "collective-broadcast":
            return parts[0]
        if self.kind == "all-gather":
            return np.concatenate(parts, self.dimension)
        if self.kind == "all-to-all":
            pieces = [np.array_split(part, len(parts), self.dimension)[place] for part in parts]
            return np.concatenate(pieces, self.dimension)
        total = parts[0]
        for part in parts[1:] if self.body else ():
            total = apply(self.body[0], [total, part])[0]
        if self.kind == "reduce-scatter":
            return np.array_split(total, len(parts), self.dimension)[place]
        return total

    def _permute(self, number: int, everyone: list[tuple[Array, ...]]) -> list[Array]:
        """The arrays of the participant paired as this one's source; zeros without a source."""
        source = next((pair[0] for pair in self.pairs if pair[1] == number), None)
        if source is None or source >= len(everyone):
            return [np.zeros_like(array) for array in everyone[number]]
        return list(everyone[source])

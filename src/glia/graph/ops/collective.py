"""Exchanges between ranks: the replicas and partitions that run one program."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from glia.base.dtype import U32
from glia.graph import participants
from glia.graph.ir import Graph, Node, TensorType, TupleType, Type, op
from glia.graph.ops.scalar_regions import apply
from glia.graph.rank_groups import NUMBERS, groups_of_ranks
from glia.graph.type_rules import require, require_combiner, require_length, tensor

Array = np.ndarray[Any, Any]

COLLECTIVE_KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "partition-id",
    "rank-id",
    "reduce-scatter",
    "replica-id",
)
ID_KINDS = ("partition-id", "rank-id", "replica-id")
_SAME_TYPE = ("all-reduce", "collective-broadcast", "collective-permute")
_WITH_BODY = ("all-reduce", "reduce-scatter")


@op
class Collective(Node):
    """An exchange between ranks, named by `kind` (one of `COLLECTIVE_KINDS`).

    `dimension` is -1 where a kind has none. `numbers` says what groups and pairs count (one of
    `NUMBERS`); no `replica_groups` means one group of all of them. An ordinary evaluation has one
    rank, number 0; `participants.evaluate_participants` runs several.
    """

    args: tuple[Node, ...]
    kind: str
    result: Type
    dimension: int
    replica_groups: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    body: tuple[Graph, ...]
    numbers: str = "ranks"
    opcode: ClassVar[str] = "collective"

    def infer(self) -> Type:
        require(self.kind in COLLECTIVE_KINDS, f"no collective is named {self.kind!r}")
        require(self.numbers in NUMBERS, f"groups cannot count {self.numbers!r}")
        if self.kind in ID_KINDS:
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
        if self.kind in ID_KINDS:
            ids = {"partition-id": me.partition, "replica-id": me.replica, "rank-id": me.number}
            return np.array(ids[self.kind], np.uint32)
        everyone = me.exchange(self, arrays)
        group = self._group(me)
        if self.kind == "collective-permute":
            given = self._permute(me, everyone)
        elif not group:
            given = [np.zeros_like(array) for array in arrays]
        elif self.kind == "all-to-all" and self.dimension < 0:
            given = [everyone[member][group.index(me.number)] for member in group]
        else:
            parts = [[everyone[member][i] for member in group] for i in range(len(arrays))]
            given = [self._combine(part, group.index(me.number)) for part in parts]
        if [array.shape for array in given] != self._result_shapes():
            size = len(group)
            raise TypeError(f"{self.kind} to {self.result}: a group of {size} does not fit")
        return tuple(given) if isinstance(self.result, TupleType) else given[0]

    def _result_shapes(self) -> list[tuple[int, ...]]:
        results = self.result.elements if isinstance(self.result, TupleType) else (self.result,)
        return [result.shape for result in results if isinstance(result, TensorType)]

    def _group(self, me: participants.Participant) -> tuple[int, ...]:
        """The ranks, in order, that this one exchanges with; none where it is in no group."""
        if me.count == 1:
            return (0,)
        groups = groups_of_ranks(self.replica_groups, self.numbers, me.replicas, me.partitions)
        return next((group for group in groups if me.number in group), ())

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

    def _permute(
        self, me: participants.Participant, everyone: list[tuple[Array, ...]]
    ) -> list[Array]:
        """The arrays of the rank paired as this one's source; zeros without a source."""
        pairs = self.pairs and groups_of_ranks(self.pairs, self.numbers, me.replicas, me.partitions)
        source = next((pair[0] for pair in pairs if pair[1] == me.number), None)
        if source is None or source >= len(everyone):
            return [np.zeros_like(array) for array in everyone[me.number]]
        return list(everyone[source])

"""Ranks: how many there are, and collectives whose groups count nothing else.

See docs/decisions/ranks.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from glia.base.dtype import U32
from glia.graph.ir import Graph, Node
from glia.graph.ops import ID_KINDS, Collective, results_of
from glia.graph.passes.errors import BadReplicaGroups, TooManyRanks
from glia.graph.rank_groups import Groups, groups_of_ranks, highest_member
from glia.graph.rules.constructors import apply, constant, select, splat_like
from glia.graph.rules.driver import RewriteRule, apply_rules, results_as_node
from glia.graph.rules.ranks import is_one_of
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import CompileOptions

MOST_RANKS = 1 << 12
_OF_EQUAL_GROUPS = ("all-gather", "all-to-all", "reduce-scatter")


def number_ranks(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with the number of its ranks, where there are several, and collectives among them.

    Raises BadReplicaGroups for groups that do not fit those ranks, and TooManyRanks.
    """
    found = [node for node in all_nodes(graph) if isinstance(node, Collective)]
    replicas, partitions = _counts(graph, options, found)
    if replicas * partitions > MOST_RANKS:
        raise TooManyRanks(replicas=replicas, partitions=partitions, most=MOST_RANKS)
    ranks = _Ranks(replicas, partitions)
    for node in found:
        ranks.check(node)
    rule = RewriteRule("number_ranks", (Collective,), ranks.numbered)
    numbered = apply_rules(graph, (rule,)) if found else graph
    if ranks.count == 1:
        return numbered
    return replace(numbered, replicas=replicas, partitions=partitions)


def _counts(
    graph: Graph, options: CompileOptions, collectives: Sequence[Collective]
) -> tuple[int, int]:
    """Replicas and partitions: as asked for, as the module says, or what its groups name."""

    def named(*kinds: str) -> int:
        groups = (
            group
            for node in collectives
            if node.numbers in kinds
            for group in (*node.replica_groups, *node.pairs)
        )
        return 1 + highest_member(groups)

    replicas = options.replicas or graph.replicas
    partitions = options.partitions or graph.partitions
    is_said = bool(replicas or partitions)
    replicas = replicas or (1 if is_said else max(1, named("replicas", "replicas with partitions")))
    if not partitions:
        flat = 1 if is_said else -(-named("ranks") // replicas)
        partitions = max(1, flat, 1 if is_said else named("partitions"))
    return replicas, partitions


@dataclass(frozen=True)
class _Ranks:
    """The ranks of a program."""

    replicas: int
    partitions: int

    @property
    def count(self) -> int:
        return self.replicas * self.partitions

    def numbered(self, node: Collective) -> Node | None:
        """The collective among ranks; None for one that is, and stays."""
        if node.kind in ID_KINDS:
            return self._identifier(node)
        if node.kind == "collective-permute" and self.count == 1:
            given = (arg if node.pairs else splat_like(0, arg) for arg in node.args)
            return results_as_node(given)
        groups, pairs = self._groups(node), self._pairs(node)
        if (groups, pairs, "ranks") == (node.replica_groups, node.pairs, node.numbers):
            return None
        named = tuple((source, target) for source, target in pairs)
        found = replace(node, replica_groups=groups, pairs=named, numbers="ranks")
        left_out = sorted({*range(self.count)} - {rank for group in groups for rank in group})
        if node.kind != "collective-broadcast" or not left_out:
            return found
        return _zero_at(left_out, found)

    def check(self, node: Collective) -> None:
        """Raise BadReplicaGroups where groups or pairs are not of these ranks."""
        if node.kind in ID_KINDS:
            return
        if problem := self._problem(node):
            raise BadReplicaGroups(
                kind=node.kind,
                problem=problem,
                replicas=self.replicas,
                partitions=self.partitions,
                loc=node.loc,
            )

    def _problem(self, node: Collective) -> str:
        """What is wrong with the groups or pairs; "" for nothing."""
        most = {"partitions": self.partitions, "ranks": self.count}.get(node.numbers, self.replicas)
        counted = "replicas" if node.numbers.startswith("replicas") else node.numbers
        given = node.pairs if node.kind == "collective-permute" else node.replica_groups
        wrong = [m for group in given for m in group if not 0 <= m < most]
        if wrong:
            return f"{counted[:-1]} {wrong[0]} does not exist, there are {most} {counted}"
        if node.kind == "collective-permute":
            for place, what in enumerate(("the source", "the target")):
                if twice := _duplicates(pair[place] for pair in given):
                    return f"{counted[:-1]} {twice[0]} is {what} of two pairs"
            return ""
        groups = self._groups(node)
        members = [rank for group in groups for rank in group]
        if twice := _duplicates(members):
            return f"rank {twice[0]} is in two groups"
        missing = sorted({*range(self.count)} - {*members})
        if missing and node.kind != "collective-broadcast":
            return f"rank {missing[0]} is in none of the groups"
        sizes = sorted({len(group) for group in groups})
        if len(sizes) > 1 and node.kind in _OF_EQUAL_GROUPS:
            return f"its groups have {sizes[0]} and {sizes[-1]} members"
        return _misfit(node, sizes[-1])

    def _groups(self, node: Collective) -> Groups:
        if node.kind == "collective-permute":
            return ()
        return groups_of_ranks(node.replica_groups, node.numbers, self.replicas, self.partitions)

    def _pairs(self, node: Collective) -> Groups:
        if not node.pairs:
            return ()
        return groups_of_ranks(node.pairs, node.numbers, self.replicas, self.partitions)

    def _identifier(self, node: Collective) -> Node | None:
        """What a rank's number is, of all or of its kind."""
        if self.count == 1:
            return constant(0, U32)
        if node.kind == "rank-id":
            return None
        rank = Collective((), "rank-id", node.result, -1, (), (), (), loc=node.loc)
        is_partition = node.kind == "partition-id"
        if (self.partitions if is_partition else self.replicas) == 1:
            return constant(0, U32)
        if (self.replicas if is_partition else self.partitions) == 1:
            return rank
        function = "remainder" if is_partition else "divide"
        return apply(function, rank, constant(self.partitions, U32))


def _zero_at(ranks: Sequence[int], node: Collective) -> Node:
    """The collective, in which other ranks are by themselves and get 0."""
    groups = (*node.replica_groups, *((rank,) for rank in ranks))
    found = results_of(replace(node, replica_groups=groups))
    return results_as_node(
        select(is_one_of(ranks, each), splat_like(0, each), each) for each in found
    )


def _duplicates(members: Iterable[int]) -> list[int]:
    return [member for member, times in Counter(members).items() if times > 1]


def _misfit(node: Collective, size: int) -> str:
    """Why tensors do not fall into pieces for groups of a size; "" where they do."""
    along = node.dimension
    results = tensor_types(node.result)
    if node.kind == "all-to-all" and along < 0:
        return "" if len(node.args) == size else f"{len(node.args)} tensors for groups of {size}"
    if along < 0 or node.kind not in _OF_EQUAL_GROUPS:
        return ""
    for arg, result in zip(node.args, results, strict=True):
        given, made = arg.shape[along], result.shape[along]
        wanted = {"all-gather": given * size, "reduce-scatter": given / size}
        if made != wanted.get(node.kind, given) or (node.kind == "all-to-all" and given % size):
            return f"{arg.type} to {result} along dimension {along} in groups of {size}"
    return ""

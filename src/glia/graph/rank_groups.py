"""How HLO counts the members of a group of devices, and the ranks that it means.

A rank is a device: replica r, partition p of P is rank r * P + p.
"""

from __future__ import annotations

from collections.abc import Iterable

Groups = tuple[tuple[int, ...], ...]

NUMBERS = ("ranks", "replicas", "partitions", "replicas with partitions")
"""What the members of a group count; the last: each stands for all partitions of a replica."""


def groups_of_ranks(groups: Groups, numbers: str, replicas: int, partitions: int) -> Groups:
    """The groups as ranks; no groups are one of all that `numbers` counts.

    Groups of replicas are formed in each partition, groups of partitions in each replica. (Source,
    target) pairs are groups of two.
    """
    counted = {"ranks": replicas * partitions, "partitions": partitions}.get(numbers, replicas)
    groups = tuple(group for group in groups if group) or (tuple(range(counted)),)
    if numbers == "ranks":
        return groups
    if numbers == "replicas":
        return tuple(
            tuple(replica * partitions + partition for replica in group)
            for partition in range(partitions)
            for group in groups
        )
    if numbers == "partitions":
        return tuple(
            tuple(replica * partitions + partition for partition in group)
            for replica in range(replicas)
            for group in groups
        )
    return tuple(
        tuple(r * partitions + partition for partition in range(partitions) for r in group)
        for group in groups
    )


def highest_member(groups: Iterable[tuple[int, ...]]) -> int:
    """The greatest number in groups or pairs, -1 when there is none."""
    return max((member for group in groups for member in group), default=-1)

"""Which tile owns each byte of a memory, along a program."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class ByteOwners:
    """The tile that owns each byte of a memory: disjoint intervals in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._parts: list[tuple[int, int, str]] = []  # (start, end, tile)
        self.sole_owners: set[str] = set()  # tiles that own all of their bytes

    def clear(self) -> None:
        """Free every byte."""
        self._starts.clear()
        self._parts.clear()
        self.sole_owners.clear()

    def claim(self, start: int, end: int, name: str) -> tuple[list[str], list[str]]:
        """Assign bytes to a tile; (previous owners of any, previous sole owners that lost all)."""
        first = bisect_right(self._starts, start)
        if first and self._parts[first - 1][1] > start:
            first -= 1
        last = bisect_left(self._starts, end, first)
        overlapping = self._parts[first:last]
        if len(overlapping) == 1 and overlapping[0][:2] == (
            start,
            end,
        ):  # the common case: rotating buffers
            self._parts[first] = (start, end, name)
            other = overlapping[0][2]
            evicted = [other] if other in self.sole_owners else []
            self.sole_owners.discard(other)
            self.sole_owners.add(name)
            return [other], evicted
        remaining = [(start, end, name)]
        if overlapping:
            if overlapping[0][0] < start:
                remaining.insert(0, (overlapping[0][0], start, overlapping[0][2]))
            if overlapping[-1][1] > end:
                remaining.append((end, overlapping[-1][1], overlapping[-1][2]))
        self._parts[first:last] = remaining
        self._starts[first:last] = [part[0] for part in remaining]
        previous = [part[2] for part in overlapping]
        evicted = [part[2] for part in overlapping if start <= part[0] and part[1] <= end]
        evicted = [other for other in evicted if other in self.sole_owners]
        self.sole_owners.difference_update(previous)
        self.sole_owners.add(name)
        return previous, evicted

    def owners(self, start: int, end: int) -> list[str]:
        """The owner of each part of some bytes."""
        at = max(bisect_right(self._starts, start) - 1, 0)
        found = []
        while at < len(self._parts) and self._parts[at][0] < end:
            if self._parts[at][1] > start:
                found.append(self._parts[at][2])
            at += 1
        return found

    def is_owner(self, start: int, end: int, name: str) -> bool:
        """Whether a tile owns all of some bytes."""
        at = max(bisect_right(self._starts, start) - 1, 0)
        while start < end:
            if at == len(self._parts):
                return False
            first, last, owner = self._parts[at]
            if owner != name or not first <= start < last:
                return False
            start, at = last, at + 1
        return True

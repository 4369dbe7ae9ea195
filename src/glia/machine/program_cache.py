"""What has been computed about a program and is kept with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

Derived = TypeVar("Derived")


@dataclass(frozen=True)
class ProgramDigest:
    """Hexadecimal digits that are equal for programs that differ in their constants' values only.

    It is known of programs that were read from a NEFF.
    """

    digest: str


class ProgramCache:
    """Objects derived from one program, at most one of each class.

    A program is immutable, so what is derived from it stays true; a program made from it by
    `dataclasses.replace` starts with an empty cache. Nothing is evicted: who stores a large object
    decides whether it is worth the memory.
    """

    def __init__(self) -> None:
        self._objects: dict[type[object], object] = {}

    def get(self, kind: type[Derived]) -> Derived | None:
        """The object of this class, or None."""
        found = self._objects.get(kind)
        return found if isinstance(found, kind) else None

    def put(self, derived: object) -> None:
        """Keep an object, in place of the one of its class."""
        self._objects[type(derived)] = derived

    def get_or_create(self, kind: type[Derived]) -> Derived:
        """The object of this class; on the first call a new one, made without arguments."""
        found = self.get(kind)
        if found is None:
            found = kind()
            self.put(found)
        return found

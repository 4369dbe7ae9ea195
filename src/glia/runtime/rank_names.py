"""Names of the tensors of several ranks: NAME for all of them, NAME@RANK for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from glia.machine.ir import Binding
from glia.runtime.errors import WrongInputs

Value = TypeVar("Value")


def by_rank(
    given: Mapping[str, Value], inputs: Sequence[Binding], ranks: int
) -> list[dict[str, Value]]:
    """For each rank what is given by input name; what is given for one rank comes before all's.

    WrongInputs for a rank that does not exist. Other names are left for the model to refuse.
    """
    known = {binding.name for binding in inputs}
    common = {name: value for name, value in given.items() if name in known or "@" not in name}
    found = [dict(common) for _ in range(ranks)]
    for text, value in given.items():
        if text in common:
            continue
        name, _, rank = text.rpartition("@")
        if not (rank.isascii() and rank.isdecimal() and int(rank) < ranks):
            expected = f"inputs of the ranks 0 to {ranks - 1}, such as {name or 'x'}@0"
            raise WrongInputs(problem=f"{text!r} names no rank", expected=expected)
        found[int(rank)][name] = value
    return found


def named_by_rank(found: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """What ranks have by name, under one name each: NAME@RANK where there are several."""
    if len(found) == 1:
        return dict(found[0])
    return {
        f"{name}@{rank}": value for rank, each in enumerate(found) for name, value in each.items()
    }

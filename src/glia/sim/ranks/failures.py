"""Failures of a rank in another process or host: as JSON, and raised again."""

from __future__ import annotations

from typing import Any

from glia.base.errors import ERRORS, InternalError, Unspecified
from glia.base.loc import Loc
from glia.sim.policy import ExecutionFault

_PLAIN = (str, int, float, bool, type(None))


class RankFault(ExecutionFault):
    """A rule of the machine was violated in the process of a rank, which says by its name which."""


def described_failure(failure: BaseException) -> dict[str, Any]:
    """A failure in JSON's types."""
    found: dict[str, Any] = {"text": str(failure), "kind": type(failure).__name__}
    code = getattr(failure, "code", "")
    if code in ERRORS:
        facts = failure.facts  # type: ignore[attr-defined]
        found |= {
            "code": code,
            "facts": {name: _json_value(value) for name, value in facts.items()},
        }
    if isinstance(failure, ExecutionFault):
        found["text"] = failure.message
        found["is_fault"] = True
    if isinstance(loc := getattr(failure, "loc", None), Loc):
        found["loc"] = vars(loc)
        found["instruction"] = getattr(failure, "instruction", "")
    return found


def _json_value(value: object) -> object:
    return value if isinstance(value, _PLAIN) else str(value)


def failure_of(found: dict[str, Any]) -> BaseException:
    """The failure that was described: of the same code, or of the same kind."""
    where: dict[str, Any] = {}
    if "loc" in found:
        where = {"loc": loc_of(found["loc"]), "instruction": found["instruction"]}
    if found.get("code") in ERRORS:
        return ERRORS[found["code"]](**where, **found["facts"])
    if found.get("is_fault"):
        return RankFault(found["text"], **where)
    same = {"MemoryError": MemoryError, "Unspecified": Unspecified}
    kind = same.get(found["kind"])
    return kind(found["text"]) if kind else InternalError(f"{found['kind']}: {found['text']}")


def loc_of(found: dict[str, Any]) -> Loc:
    """The place in a source that `vars` of it describes."""
    return Loc(str(found["file"]), int(found["line"]), str(found["name"]))

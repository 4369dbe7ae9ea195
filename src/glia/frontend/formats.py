"""`Format`: the declaration of an input format by a front end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glia.graph.ir import Graph


@dataclass(frozen=True)
class Format:
    """One form in which a model is given.

    `name` completes "give ..." in errors; `accepts` decides, without importing a framework or
    parsing, whether a value is of this form; `read` makes its graph and raises the
    errors of the front ends. `serialize` gives its HLO module as bytes, with the same errors; None
    for a form that has none.
    """

    name: str
    accepts: Callable[[object], bool]
    read: Callable[[Any], Graph]
    serialize: Callable[[Any], bytes] | None = None

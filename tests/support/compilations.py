"""Which graphs were really compiled, and not taken from a cache."""

from __future__ import annotations

from typing import Any

import pytest

from glia import compiler


def watched_compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are compiled from now on, in order."""
    seen: list[Any] = []
    real = compiler.compile_graph

    def counted(graph: Any, *rest: Any) -> Any:
        seen.append(graph)
        return real(graph, *rest)

    monkeypatch.setattr(compiler, "compile_graph", counted)
    return seen

"""Errors of graphs that cannot be lowered to nests."""

from __future__ import annotations

from glia.graph.passes.errors import UnsupportedDtype

__all__ = ["UnsupportedDtype"]

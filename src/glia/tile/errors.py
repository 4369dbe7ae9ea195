"""What a user can do about a graph that cannot be lowered to nests."""

from __future__ import annotations

from glia.graph.passes.errors import UnsupportedDtype

__all__ = ["UnsupportedDtype"]

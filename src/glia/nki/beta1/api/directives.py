"""Compiler directives of kernels: loop buffering and instruction order."""

from __future__ import annotations

from typing import Any

from glia.nki.session.session import current


class MultiBuffer:
    """How many iterations of a loop get separate buffers; a hint that changes no result."""

    def __init__(self, factor: int = 2) -> None:
        self.factor = factor


class no_reorder:  # noqa: N801, the name that kernels write
    """`with no_reorder():` runs in program order, and so does the kernel around it.

    As a directive of a loop it is the same for the loop.
    """

    def __enter__(self) -> None:
        current("ncc.no_reorder").keeps_order = True

    def __exit__(self, *_: Any) -> None:
        pass

"""`neuronxcc.nki.compiler`: direct allocation, and hints to the compiler, as `ncc`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from glia.nki.beta1.api.directives import MultiBuffer, no_reorder
from glia.nki.beta1.tensors.buffers import psum, sbuf


def _decorator(func: Callable[..., Any] | None) -> Any:
    """`func` itself, or what decorates a function with itself."""
    return func if func is not None else lambda function: function


def enable_stack_allocator(func: Callable[..., Any] | None = None, log_level: int = 50) -> Any:
    """Decorate a kernel: tensors are allocated as its scopes nest, which changes no result."""
    return _decorator(func)


def force_auto_alloc(func: Callable[..., Any] | None = None) -> Any:
    """Decorate a kernel: direct allocations in it are ignored."""
    if func is None:
        return force_auto_alloc
    function: Any = getattr(func, "function", func)
    function.ignores_allocation = True
    return func


def skip_middle_end_transformations(func: Callable[..., Any] | None = None) -> Any:
    """Decorate a kernel: the compiler takes it as it is written, as it does here."""
    return _decorator(func)


def multi_buffer(factor: int = 2) -> MultiBuffer:
    """A directive of a loop: nl.sequential_range(n, directives=ncc.multi_buffer(2))."""
    return MultiBuffer(factor)


@contextmanager
def allocation_scope() -> Iterator[None]:
    """A scope of the stack allocator; it changes no result."""
    yield


__all__ = [
    "allocation_scope", "enable_stack_allocator", "force_auto_alloc", "multi_buffer",
    "no_reorder", "psum", "sbuf", "skip_middle_end_transformations",
]  # fmt: skip

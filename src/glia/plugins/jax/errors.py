"""Errors of functions of JAX on a device."""

from __future__ import annotations

from glia.base.errors import CompileError


class NotAFunction(CompileError, TypeError):
    """on_device was given something that cannot be called.

    Cause: The value is no function; a result of calling it, perhaps.
    Fix: Pass the function itself, and call what on_device returns.
    Example: on_device(3)
    """

    code = "GLIA112"
    message = "on_device takes a function of JAX, not a value of type {given}"
    help = "pass the function itself, as in on_device(f)(x); glia.compile takes lowered models"

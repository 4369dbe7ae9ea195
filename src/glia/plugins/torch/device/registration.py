"""How functions become operators of the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo import eval_frame

_NEVER = eval_frame._FrameExecStrategy(
    eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
)  # for a function, and for what it calls


def never_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that Dynamo passes by, which would compile what runs between two graphs."""
    plain = function.func if isinstance(function, functools.partial) else function
    eval_frame.set_code_exec_strategy(plain.__code__, _NEVER)
    return function


def enter(
    library: torch.library.Library,
    operator: Any,
    function: Callable[..., Any],
    key: str = "PrivateUse1",
) -> None:
    """Make a function the operator of a dispatch key."""
    library.impl(operator, never_compiled(function), key)

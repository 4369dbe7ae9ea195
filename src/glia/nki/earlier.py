"""Names that earlier releases of the current generation gave to parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def earlier_names(**names: str) -> Callable[[Function], Function]:
    """Let a function take keywords of earlier releases, given as earlier=present."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def renaming(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                kwargs = {names.get(name, name): value for name, value in kwargs.items()}
            return function(*args, **kwargs)

        return renaming  # type: ignore[return-value]

    return decorate

"""Functions whose wrong arguments are errors of NKI, which name the parameter that was meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from glia.base.spelling import nearest
from glia.nki.errors import MaskNotSupported, WrongArguments
from glia.nki.operators import names_operator, operator_name
from glia.nki.session import caller


def checked(
    function: Callable[..., Any], name: str, *, ignored: Iterable[str] = (), has_masks: bool = False
) -> Callable[..., Any]:
    """The function, with WrongArguments where Python would raise its own TypeError.

    It also takes the keywords `ignored`, which change nothing, and stands for the same operator.
    MaskNotSupported says what to write for a mask, unless other functions beside it have masks.
    """
    known = inspect.signature(function)
    hints = frozenset(ignored) - known.parameters.keys()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if hints and kwargs:
            kwargs = {each: value for each, value in kwargs.items() if each not in hints}
        try:
            return function(*args, **kwargs)
        except TypeError:
            if "mask" in kwargs and "mask" not in known.parameters and not has_masks:
                if kwargs.pop("mask") is not None:
                    raise MaskNotSupported(function=name, loc=caller()) from None
                return call(*args, **kwargs)  # what kernels of earlier releases pass for nothing
            require_fit(name, known, args, kwargs)
            raise

    if hints:
        call.__signature__ = _with_keywords(known, sorted(hints))  # type: ignore[attr-defined]
    operator = operator_name(function)
    return names_operator(operator)(call) if operator else call


def require_fit(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """WrongArguments where arguments do not fit a signature."""
    try:
        signature.bind(*args, **kwargs)
        return
    except TypeError as problem:
        reason = str(problem)
    names = signature.parameters
    unknown = next((each for each in kwargs if each not in names), None)
    if unknown is not None:
        reason = f"there is no parameter {unknown!r}{nearest(unknown, names)}"
    listed = ", ".join(map(_shown, names.values()))
    raise WrongArguments(function=name, problem=reason, parameters=listed, loc=caller())


def _shown(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.default is parameter.empty:
        return parameter.name
    default = parameter.default
    return f"{parameter.name}={getattr(default, 'name', repr(default))}"


def _with_keywords(signature: inspect.Signature, names: list[str]) -> inspect.Signature:
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(each, kind, default=None) for each in names]
    return signature.replace(parameters=[*signature.parameters.values(), *added])

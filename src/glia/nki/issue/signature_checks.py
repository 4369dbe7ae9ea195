"""NKI errors for arguments that do not fit a function, naming the parameter that was meant."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from glia.base.errors import CompileError
from glia.base.suggestions import nearest
from glia.nki.issue.former_signatures import SIGNATURE_CHANGES, upgrade_call
from glia.nki.names.errors import MaskNotSupported, NotInNki, WrongArguments
from glia.nki.names.operators import names_operator, operator_name
from glia.nki.session.session import caller, value_text

NUMBERS = {"int", "float", "integer", "floating"}
# Names in the annotations of functions of nl, and those of the classes that they stand for.
KINDS: dict[str, set[str]] = {
    "None": {"NoneType"}, "bool": {"bool", "bool_", "int"}, "int": {"int", "integer"},
    "float": NUMBERS, "str": {"str", "type", "dtype", "DType"}, "tuple": {"tuple", "list"},
    "list": {"tuple", "list"}, "Callable": set(), "NkiTensor": {"NkiTensor"},
    "MemoryRegion": {"MemoryRegion"}, "VirtualRegister": {"VirtualRegister"},
    "Shape": {"tuple", "list"}, "Axis": {"int", "integer", "tuple", "list"},
    "Bound": {"int", "integer", "VirtualRegister"}, "Operand": {*NUMBERS, "NkiTensor"},
}  # fmt: skip


def check_arguments(
    function: Callable[..., Any],
    name: str,
    *,
    ignored: Iterable[str] = (),
    has_masks: bool = False,
    upgrades_calls: bool = False,
) -> Callable[..., Any]:
    """The function, with WrongArguments where Python would raise its own TypeError.

    It also takes the keywords `ignored`, which have no effect; with `upgrades_calls` also calls of
    its earlier signatures. It names the same operator. Without `has_masks` a mask raises
    MaskNotSupported.
    """
    known = inspect.signature(function)
    hints = frozenset(ignored) - known.parameters.keys()
    upgrades_calls = upgrades_calls and name in SIGNATURE_CHANGES

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if hints and kwargs:
            kwargs = {each: value for each, value in kwargs.items() if each not in hints}
        if upgrades_calls:
            args, kwargs = upgrade_call(name, args, kwargs) or (args, kwargs)
        try:
            return function(*args, **kwargs)
        except TypeError:
            if "mask" in kwargs and "mask" not in known.parameters and not has_masks:
                if kwargs.pop("mask") is not None:
                    raise MaskNotSupported(function=name, loc=caller()) from None
                return call(*args, **kwargs)  # mask=None of earlier releases has no effect
            require_binding(name, known, args, kwargs)
            _require_types(name, known, args, kwargs)
            raise
        except (ValueError, AttributeError, LookupError):
            _require_types(name, known, args, kwargs)
            raise

    if hints:
        call.__signature__ = _add_keywords(known, sorted(hints))  # type: ignore[attr-defined]
    operator = operator_name(function)
    return names_operator(operator)(call) if operator else call


def require_binding(
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
    listed = ", ".join(map(_parameter_text, names.values()))
    raise WrongArguments(function=name, problem=reason, parameters=listed, loc=caller())


def _require_types(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """NotInNki, while an exception is handled, for an argument not of its parameter's type."""
    failure = sys.exception()
    if isinstance(failure, CompileError):
        return
    for each, value in signature.bind(*args, **kwargs).arguments.items():
        declared = str(signature.parameters[each].annotation)
        kinds = [part.split("[")[0].strip() for part in _union_members(declared)]
        is_known = all(kind in KINDS for kind in kinds)
        if is_known and not any(_has_kind(value, kind) for kind in kinds):
            raise NotInNki(
                feature=f"{name} with {each}={value_text(value)}", loc=caller()
            ) from failure


def _union_members(declared: str) -> list[str]:
    """The members of a union type; those in brackets are not split."""
    return re.split(r"\|(?![^\[]*\])", declared)


def _has_kind(value: Any, kind: str) -> bool:
    return any(each.__name__ in KINDS[kind] for each in type(value).__mro__) or (
        kind == "Callable" and callable(value)
    )


def _parameter_text(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.default is parameter.empty:
        return parameter.name
    default = parameter.default
    return f"{parameter.name}={getattr(default, 'name', repr(default))}"


def _add_keywords(signature: inspect.Signature, names: list[str]) -> inspect.Signature:
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(each, kind, default=None) for each in names]
    return signature.replace(parameters=[*signature.parameters.values(), *added])

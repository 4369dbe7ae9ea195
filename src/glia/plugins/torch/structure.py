"""Nested arguments and results as TorchScript source: their types, and where their tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from glia.plugins.torch.errors import UntraceableStructure


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [each for item in value.values() for each in tensors_of(item)]
    if isinstance(value, tuple | list):
        return [each for item in value for each in tensors_of(item)]
    return []


def skeleton(value: Any) -> Any:
    """A value of the same form: plain dicts, tuples and lists, and tensors without elements."""
    if isinstance(value, torch.Tensor):
        return torch.empty(0, device="meta")
    if isinstance(value, Mapping):
        return {key: skeleton(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(skeleton(each) for each in value)
    return [skeleton(each) for each in value] if isinstance(value, list) else value


def type_source(value: Any, where: str) -> str:
    """The type of a value in TorchScript; UntraceableStructure where that has none."""
    if isinstance(value, torch.Tensor):
        return "Tensor"
    if isinstance(value, Mapping):
        return f"Dict[str, {_common_type(list(value.values()), where)}]"
    if isinstance(value, tuple):
        parts = [type_source(each, where) for each in value]
        return f"Tuple[{', '.join(parts)}]" if parts else "Tuple[()]"
    if isinstance(value, list):
        return f"List[{_common_type(value, where)}]"
    raise UntraceableStructure(where=where, problem=f"holds a value of type {type(value).__name__}")


def _common_type(values: list[Any], where: str) -> str:
    kinds = sorted({type_source(each, where) for each in values})
    if len(kinds) > 1:
        problem = f"has {' and '.join(kinds)} in one list or dict"
        raise UntraceableStructure(where=where, problem=problem)
    return kinds[0] if kinds else "Tensor"


def paths(value: Any, source: str) -> list[str]:
    """The source of every tensor in a value that has this source, in order."""
    if isinstance(value, torch.Tensor):
        return [source]
    if isinstance(value, Mapping):
        return [p for key, each in value.items() for p in paths(each, f"{source}[{key!r}]")]
    return [p for place, each in enumerate(value) for p in paths(each, f"{source}[{place}]")]


def result_source(value: Any, tensors: list[str]) -> str:
    """The source of a value whose tensors have these sources, which are taken from the front.

    A dict leaves out what is None, as TorchScript's have values of one type.
    """
    if isinstance(value, torch.Tensor):
        return tensors.pop(0)
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Mapping):
        present = {key: each for key, each in value.items() if each is not None}
        type_source(present, "a result")
        parts = [f"{key!r}: {result_source(each, tensors)}" for key, each in present.items()]
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, tuple):
        parts = [result_source(each, tensors) for each in value]
        return f"({', '.join(parts)},)" if parts else "()"
    if isinstance(value, list):
        type_source(value, "a result")
        return f"[{', '.join(result_source(each, tensors) for each in value)}]"
    problem = f"holds a value of type {type(value).__name__}"
    raise UntraceableStructure(where="a result", problem=problem)

"""Operators that public code applies by name, as operations of PyTorch on tensors of any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glia.nki.names.errors import NotInGlia


class Argmax:
    """Where the largest element of a dimension is."""

    @staticmethod
    def apply(tensor: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        """The positions of the largest elements, of all dimensions where `dim` is None."""
        return tensor.argmax(dim, keepdim)


class TopK:
    """The largest elements of a dimension, and where they are."""

    @staticmethod
    def apply(tensor: Any, k: int, dim: int = -1) -> tuple[Any, Any]:
        """The k largest elements in falling order, and their positions."""
        values, positions = tensor.topk(k, dim)
        return values, positions


class Softmax:
    """Exponentials of a dimension, divided by their sum."""

    @staticmethod
    def apply(tensor: Any, dim: int = -1) -> Any:
        """The softmax of a dimension."""
        return tensor.softmax(dim)


class RmsNorm:
    """A dimension divided by the root of its mean square, scaled by weights."""

    @staticmethod
    def apply(tensor: Any, weight: Any, eps: float, dim: int) -> Any:
        """The norm of a dimension, computed in float32; `weight` has an element for each of it."""
        wide = tensor.float()
        scale = (wide.square().mean(dim, keepdim=True) + eps).rsqrt()
        extents = [1] * tensor.dim()
        extents[dim] = -1
        return (wide * scale * weight.reshape(extents)).to(tensor.dtype)


def xla_hlo_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that refuses its call: `function` is written with a builder that is not public."""
    return _refused("xla_hlo_call", function)


def xla_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that refuses its call: `function` is written with operations of torch_xla."""
    return _refused("xla_call", function)


def _refused(decorator: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotInGlia(
            name=f"{decorator} of {function.__name__}",
            problem="operators written with AWS's builders of HLO are not compiled",
            cure="write it with operations of PyTorch, or as an NKI kernel",
        )

    return refuse

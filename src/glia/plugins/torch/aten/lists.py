"""Operators on lists of tensors, which PyTorch itself makes of those on their elements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from glia.plugins.torch.aten.derived import DERIVED, derives

aten = torch.ops.aten


def _on_lists() -> Iterator[Any]:
    """The overloads that write nothing."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::_foreach_"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            operator = getattr(getattr(aten, packet), overload or "default")
            if not operator._schema.is_mutable:
                yield operator


@derives(aten._foreach_copy.default)
def _copies(
    tensors: Sequence[Tensor], sources: Sequence[Tensor], non_blocking: bool = False
) -> list[Tensor]:
    pairs = zip(tensors, sources, strict=True)
    return [source.to(x.dtype).expand(x.shape) for x, source in pairs]


@derives(aten._foreach_zero.default)
def _zeros(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(each) for each in tensors]


def _loop(operator: Any) -> Callable[..., list[Tensor]]:
    """PyTorch's own loop over lists."""
    return functools.partial(operator._op_dk, DispatchKey.CompositeExplicitAutograd)


for _operator in _on_lists():
    if _operator not in DERIVED:
        derives(_operator)(_loop(_operator))

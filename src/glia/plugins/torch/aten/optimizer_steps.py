"""Steps of optimizers on lists of tensors, and scales of gradients that may overflow.

Sources are PyTorch's documentation of `Adam`, `AdamW`, `SGD`, `Adagrad` and `GradScaler`. A step
divides gradients by their scale, and changes nothing where one of them was found to be infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from glia.plugins.torch.aten.derived import derives

aten = torch.ops.aten

Step = Callable[..., tuple[Tensor, ...]]


def _on_lists(count: int, step: Step) -> Callable[..., tuple[list[Tensor], ...]]:
    """A step of one parameter, in float32, as one of lists, of which it writes `count`.

    The first two lists are parameters and gradients.
    """

    def apply(
        *lists: Sequence[Tensor],
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
        maximize: bool,
        **options: Any,
    ) -> tuple[list[Tensor], ...]:
        written: list[list[Tensor]] = [[] for _ in range(count)]
        for tensors in _tensors_by_parameter(lists):
            wide: list[Any] = [None if t is None else t.float() for t in tensors]
            x, grad, *states = wide
            given = grad if grad_scale is None else grad / grad_scale
            new = step(x, -given if maximize else given, *states, **options)
            found = (new[0], given, *new[1:])
            for group, after, before in zip(written, found, tensors, strict=False):
                if before is not None:
                    after = after.to(before.dtype)
                    stays = found_inf is not None
                    group.append(torch.where(found_inf == 1, before, after) if stays else after)
        return tuple(written)

    return apply


def _tensors_by_parameter(lists: Sequence[Sequence[Tensor]]) -> Iterator[tuple[Any, ...]]:
    """The tensors of each parameter; None of lists that are empty."""
    for place in range(len(lists[0])):
        yield tuple(each[place] if each else None for each in lists)


def _adam(is_decoupled: bool) -> Step:
    def step(
        x: Tensor,
        grad: Tensor,
        mean: Tensor,
        square: Tensor,
        greatest: Tensor | None,
        count: Tensor,
        *,
        lr: float | Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
    ) -> tuple[Tensor, ...]:
        """The parameter, and what is kept of its gradients."""
        if is_decoupled:
            x = x - lr * weight_decay * x
        else:
            grad = grad + weight_decay * x
        mean = beta1 * mean + (1 - beta1) * grad
        square = beta2 * square + (1 - beta2) * grad * grad
        greatest = square if greatest is None else torch.maximum(greatest, square)
        size = (greatest / _share_seen(beta2, count)).sqrt() + eps
        return x - lr * (mean / _share_seen(beta1, count)) / size, mean, square, greatest

    return step


def _share_seen(beta: float, count: Tensor) -> Tensor:
    """1 - beta ** count, also where that is small."""
    return -torch.expm1(count * math.log(beta)) if beta else torch.ones_like(count)


def _sgd(
    x: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor | None,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    is_first_step: bool,
) -> tuple[Tensor, ...]:
    """The parameter, and its momentum."""
    grad = grad + weight_decay * x
    if momentum_buffer is None:
        return (x - lr * grad,)
    kept = grad
    if not is_first_step:
        kept = momentum * momentum_buffer + (1 - dampening) * grad
    return x - lr * (grad + momentum * kept if nesterov else kept), kept


def _adagrad(
    x: Tensor,
    grad: Tensor,
    total: Tensor,
    count: Tensor,
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """The parameter, the sum of squares, and the number of steps as it was."""
    grad = grad + weight_decay * x
    total = total + grad * grad
    rate = lr / (1 + (count - 1) * lr_decay)
    return x - rate * grad / (total.sqrt() + eps), total, count


_STEPS: dict[Any, Step] = {
    aten._fused_adam: _adam(is_decoupled=False), aten._fused_adamw: _adam(is_decoupled=True),
    aten._fused_sgd: _sgd, aten._fused_adagrad: _adagrad,
}  # fmt: skip


def _register() -> None:
    """Enter the overloads of steps that write nothing, of which versions of PyTorch have others."""
    for packet, step in _STEPS.items():
        for each in (getattr(packet, name) for name in packet.overloads()):
            if not each._schema.is_mutable:
                derives(each)(_on_lists(len(each._schema.returns), step))


@derives(aten._amp_foreach_non_finite_check_and_unscale.default)
def _unscaled(
    grads: Sequence[Tensor], found: Tensor, inverse_scale: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Gradients times the inverse of their scale, and whether any was infinite or NaN."""
    for grad in grads:
        found = torch.where(grad.isfinite().all(), found, 1.0)
    return [(grad * inverse_scale).to(grad.dtype) for grad in grads], found


@derives(aten._amp_update_scale.default)
def _next_scale(
    scale: Tensor, steps: Tensor, found: Tensor, growth: float, backoff: float, interval: int
) -> tuple[Tensor, Tensor]:
    """The scale, and how many steps were without infinity since it was changed."""
    after = steps + 1
    grown = scale * growth
    is_grown = (after == interval) & grown.isfinite()
    fine = torch.where(is_grown, grown, scale)
    failed = found != 0
    after = torch.where(failed | (after == interval), 0, after)
    return torch.where(failed, scale * backoff, fine), after


_register()

"""The loss and gradients of compiled models, against those on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from glia.plugins.torch.structure import tensors_of


def assert_gradients(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """Raise AssertionError unless compiled, a model has its own loss and gradients."""
    torch._dynamo.reset()
    losses, gradients = [], []
    for run in (model, torch.compile(model, backend="neuron")):
        model.zero_grad()
        loss = tensors_of(run(*inputs))[0].square().mean()
        loss.backward()
        losses.append(loss.detach())
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    expected, found = gradients
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    assert expected and expected.keys() <= found.keys()
    for each, gradient in found.items():  # zero where the loss does not depend on it
        wanted = expected.get(each, torch.zeros_like(gradient))
        torch.testing.assert_close(gradient, wanted, rtol=1e-2, atol=1e-4)

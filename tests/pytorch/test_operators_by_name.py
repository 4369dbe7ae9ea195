"""Operators that public code applies by name, and those that it writes with AWS's builders."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_neuronx
from glia.nki.names.errors import NotInGlia
from torch_neuronx.utils.utils import SUPPORTED_TYPES, get_platform_target
from torch_neuronx.xla_impl import custom_call_targets
from torch_neuronx.xla_impl.base import xla_call
from torch_neuronx.xla_impl.ops import Argmax, RmsNorm, Softmax, TopK, xla_hlo_call

X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
W = torch.linspace(0.5, 2, 8)
APPLIED = {
    "argmax": (lambda x: Argmax.apply(x, 1, True), X.argmax(1, keepdim=True)),
    "argmax by keyword": (lambda x: Argmax.apply(x, dim=-1, keepdim=False), X.argmax(-1)),
    "top values": (lambda x: TopK.apply(x, 3, dim=2)[0], X.topk(3).values),
    "top positions": (lambda x: TopK.apply(x, 3, 2)[1], X.topk(3).indices),
    "softmax": (lambda x: Softmax.apply(x, 1), X.softmax(1)),
    "norm": (
        lambda x: RmsNorm.apply(x, W.to(x.device), 1e-6, 2),
        torch.nn.functional.rms_norm(X, (8,), W, 1e-6),
    ),
    "norm of another dimension": (
        lambda x: RmsNorm.apply(x, torch.ones(4, device=x.device), 1e-6, 1),
        torch.nn.functional.rms_norm(X.mT, (4,), None, 1e-6).mT,
    ),
}


@pytest.mark.parametrize("name", APPLIED)
def test_operators_compute_the_same_on_the_host_and_on_the_device(name: str) -> None:
    apply, expected = APPLIED[name]
    torch.testing.assert_close(apply(X), expected)
    torch.testing.assert_close(apply(X.to("neuron")).cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_norm_keeps_its_dtype_and_has_a_gradient() -> None:
    weight = W.clone().requires_grad_()
    found = RmsNorm.apply(X.bfloat16(), weight, 1e-6, 2)
    found.float().sum().backward()
    assert found.dtype is torch.bfloat16 and weight.grad is not None


@pytest.mark.parametrize("decorator", [xla_hlo_call, xla_call])
def test_operators_of_other_builders_are_refused_when_they_are_called(decorator: Any) -> None:
    @decorator
    def fill(tensor: Any) -> Any:
        return tensor.scribe

    with pytest.raises(NotInGlia, match=r"GLIA644.*of fill"):
        fill(X)


def test_the_target_is_that_of_flags_or_of_the_environment(monkeypatch: Any) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    assert get_platform_target() == torch_neuronx.utils.get_platform_target() == "trn1"
    assert get_platform_target("--auto-cast none --target=trn2") == "trn2"
    assert {"trn1", "trn2"} <= set(SUPPORTED_TYPES)


def test_targets_of_custom_calls_are_those_that_compile() -> None:
    from glia.frontend.hlo_import.custom_calls import TARGETS

    assert {getattr(custom_call_targets, name) for name in custom_call_targets.__all__} <= {
        *TARGETS
    }

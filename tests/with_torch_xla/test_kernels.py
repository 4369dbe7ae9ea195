"""Kernels are called with tensors of torch_xla, inside the program that it collects."""

from __future__ import annotations

import pytest
import torch
import torch_xla

from glia import nki
from glia.nki import language as nl
from glia.nki.names.errors import NoDerivative, NotInNki
from glia.plugins.torch.errors import MixedDevices


@nki.jit
def added(x, y):  # type: ignore[no-untyped-def]
    """x + y"""
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(result, nl.add(nl.load(x), nl.load(y)))
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_is_part_of_a_program(dtype: torch.dtype) -> None:
    x = torch.arange(12, dtype=dtype).reshape(3, 4)
    on_device = x.to(torch_xla.device())
    result = added(on_device + 1, on_device) * 3
    assert result.device.type == "xla" and result.dtype is dtype
    assert torch.equal(result.cpu(), (x + 1 + x) * 3)


def test_a_gradient_through_a_kernel_is_refused() -> None:
    x = torch.ones(3, 4, device=torch_xla.device(), requires_grad=True)
    with pytest.raises(NoDerivative, match="added"):
        added(x, x).sum().backward()


def test_a_kernel_takes_tensors_of_one_device() -> None:
    x = torch.ones(3, 4)
    with pytest.raises(MixedDevices, match="added"):
        added(x.to(torch_xla.device()), x)


def test_a_kernel_is_simulated_with_tensors_of_the_host() -> None:
    x = torch.ones(3, 4).to(torch_xla.device())
    with pytest.raises(NotInNki, match="a tensor on the device xla:0"):
        nki.simulate(added)(x, x)

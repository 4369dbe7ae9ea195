"""Programs of torch.export compile, and say where in the user's code an error is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glia
from glia.base.errors import CompileError
from glia.frontend.errors import DynamicShape, NotAModel, UnsupportedOperator


class Counting(torch.nn.Module):
    """A linear layer that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> dict[str, Any]:
        self.calls.add_(1)
        return {"y": self.linear(x) * scale, "rest": (x.sum(), None)}


def exported(module: torch.nn.Module, *args: Any, **options: Any) -> Any:
    return torch.export.export(module, args, **options)


def test_an_exported_program_runs_with_its_weights_inside() -> None:
    module, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    model = glia.load(glia.compile(exported(module, x)))
    assert len(model.inputs) == 1
    np.testing.assert_allclose(model(x.numpy())[0], module(x).detach().numpy(), rtol=1e-5)


def test_a_buffer_that_is_written_is_an_input_in_whose_place_an_output_is() -> None:
    module, x = Counting(), torch.randn(3, 8)
    model = glia.load(glia.compile(exported(module, x)))
    assert list(model.aliases.values()) == ["output0"]
    results = model.run({model.inputs[0].name: np.float32(6), "x": x.numpy()})
    assert results["output0"] == 7
    np.testing.assert_allclose(results["output1"], (module.linear(x) * 2).detach(), rtol=1e-5)


def test_a_program_with_weights_on_the_device_has_them_inside() -> None:
    module, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    expected = module(x).detach().numpy()
    model = glia.load(glia.compile(exported(module.to("neuron"), x.to("neuron"))))
    np.testing.assert_allclose(model(x.numpy())[0], expected, rtol=1e-5, atol=1e-6)


class Decomposing(torch.nn.Module):
    """A function with an operator that no device has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x)


def test_an_operator_that_is_missing_is_shown_at_the_users_line() -> None:
    with pytest.raises(UnsupportedOperator) as raised:
        glia.compile(exported(Decomposing(), torch.randn(3, 3)))
    line = Path(__file__).read_text().splitlines()[raised.value.loc.line - 1]
    assert "torch.linalg.svdvals" in line and raised.value.loc.file == __file__


def test_sizes_that_are_not_fixed_are_refused() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    program = exported(torch.nn.Linear(8, 4), torch.randn(3, 8), dynamic_shapes=({0: batch},))
    with pytest.raises(DynamicShape):
        glia.compile(program)


def test_a_module_is_to_be_exported_first() -> None:
    with pytest.raises(NotAModel, match=r"torch\.export\.export"):
        glia.compile(torch.nn.Linear(2, 2))


def test_floats_of_64_bits_are_refused() -> None:
    with pytest.raises(CompileError, match="NCC_ESPP004"):
        glia.compile(exported(torch.nn.Linear(2, 2).double(), torch.randn(2, 2).double()))


@pytest.mark.parametrize("target", ["trn1", "trn1n", "inf2", "trn2", "trn3"])
def test_every_target_runs_it(target: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    x = torch.randn(3, 8)
    model = glia.load(glia.compile(exported(module, x), target=target))
    np.testing.assert_allclose(model(x.numpy())[0], module(x).detach().numpy(), atol=1e-4)

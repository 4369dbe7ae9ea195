"""Images of another size, and images sampled at coordinates, with all their options."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from pytorch.samples import Sample, assert_close, evaluated, lowered

SIZES = (
    {"size": (3, 7)}, {"size": (9, 4)}, {"size": (1, 1)}, {"scale_factor": 1.7},
    {"scale_factor": (0.4, 2.3)}, {"scale_factor": 0.6, "recompute_scale_factor": True},
)  # fmt: skip
IMAGE = torch.linspace(-9, 11, 2 * 3 * 6 * 5).sin().reshape(2, 3, 6, 5)


def assert_as_pytorch(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> None:
    """Raise AssertionError unless a function and its gradient are what PyTorch computes."""
    leaves = tuple(n for n, each in enumerate(tensors) if each.is_floating_point())
    sample = Sample(lambda *given: (function(*given),), tensors, leaves)
    gradient = sample.gradient()
    assert gradient is not None
    for each in (sample, gradient):
        expected = each.expected()
        assert expected is not None
        assert_close(evaluated(lowered(each.function, tensors), tensors), expected)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("antialias", [False, True])
def test_a_mixing_resize_is_what_pytorch_computes(
    mode: str, align_corners: bool, antialias: bool
) -> None:
    for size in SIZES:
        options: dict[str, Any] = {"align_corners": align_corners, "antialias": antialias, **size}
        assert_as_pytorch(lambda x, o=options: functional.interpolate(x, mode=mode, **o), IMAGE)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_picking_resize_is_what_pytorch_computes(mode: str, rank: int) -> None:
    image = torch.linspace(-9, 11, 720).sin().reshape(2, 3, 6, 5, 4)[(..., 0, 0, 0)[: 4 - rank]]
    for size in ({"size": (3, 7, 4)[:rank]}, {"scale_factor": (0.4, 2.3, 1.5)[:rank]}):
        assert_as_pytorch(lambda x, s=size: functional.interpolate(x, mode=mode, **s), image)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_a_resize_of_bytes_differs_by_one_at_most(mode: str, antialias: bool) -> None:
    image = torch.randint(0, 256, (1, 1, 20, 20), generator=torch.Generator().manual_seed(0))

    def resize(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, (13, 31), mode=mode, antialias=antialias)

    given = image.to(torch.uint8)
    (found,) = evaluated(lowered(lambda x: (resize(x),), [given]), [given])
    assert abs(found.astype(int) - resize(given).numpy().astype(int)).max() <= 1


MODES = [
    (mode, rank)
    for mode, rank in itertools.product(("bilinear", "nearest", "bicubic"), (2, 3))
    if (mode, rank) != ("bicubic", 3)
]


@pytest.mark.parametrize(("mode", "rank"), MODES)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_a_sampled_image_is_what_pytorch_computes(
    mode: str, rank: int, padding: str, align_corners: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn((2, 3, 4, 5, 3)[: rank + 2], generator=generator)
    grid = torch.randn((2, *(3, 4, 2)[:rank], rank), generator=generator)
    options = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
    assert_as_pytorch(lambda x, g: functional.grid_sample(x, g, **options), image, grid)


@pytest.mark.parametrize("places", [(True, False), (False, True)])
def test_a_sampled_image_trains_what_asks_for_it(places: tuple[bool, bool]) -> None:
    grid = torch.linspace(-1.2, 1.1, 24).reshape(2, 2, 3, 2)

    def loss(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return functional.grid_sample(x, g, mode="bicubic", align_corners=False).square().sum()

    gradients = []
    for run in (loss, torch.compile(loss, backend="neuron")):
        given = [t.clone().requires_grad_(p) for t, p in zip((IMAGE, grid), places, strict=True)]
        run(*given).backward()
        gradients.append([each.grad for each in given if each.grad is not None])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)

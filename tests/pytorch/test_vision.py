"""Families of vision models, as torchvision and timm have them, compute what they do on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from glia.plugins.torch.export import lower_exported
from glia.plugins.torch.script_module import export_flat
from pytorch.gradients import assert_gradients
from pytorch.samples import assert_close, evaluated

X = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16).sin()


class Combined(nn.Module):
    """Branches of one input, whose results a function combines."""

    def __init__(self, combine: Callable[..., torch.Tensor], *branches: nn.Module) -> None:
        super().__init__()
        self.combine = combine
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.combine(*(branch(x) for branch in self.branches))


class Function(nn.Module):
    """A function without parameters."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Attention(nn.Module):
    """Attention of all places to all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Standardized(nn.Conv2d):
    """A convolution whose weights are standardized first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        weight = (self.weight - mean) * torch.rsqrt(variance + 1e-5)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


def added(*layers: nn.Module) -> Combined:
    return Combined(torch.add, nn.Identity(), nn.Sequential(*layers))


def joined(*branches: nn.Module) -> Combined:
    return Combined(lambda *found: torch.cat(found, 1), *branches)


def scaled(*layers: nn.Module) -> Combined:
    return Combined(torch.mul, nn.Identity(), nn.Sequential(*layers))


def conv(inputs: int, outputs: int, extent: int = 3, act: Any = nn.ReLU, **options: Any) -> Any:
    padding = options.pop("padding", extent // 2 * options.get("dilation", 1))
    made = nn.Conv2d(inputs, outputs, extent, padding=padding, bias=False, **options)
    return nn.Sequential(made, nn.BatchNorm2d(outputs), act())


def head(width: int) -> Any:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))


def squeeze(width: int, gate: Any = nn.Sigmoid) -> Any:
    return scaled(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 4, 1), nn.ReLU(),
                  nn.Conv2d(4, width, 1), gate())  # fmt: skip


def shuffled(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def patches(width: int) -> Any:
    return nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.Flatten(2), turned())


def turned() -> Function:
    return Function(lambda x: x.transpose(1, 2))


def mixed(width: int, act: Any = nn.GELU) -> Any:
    return nn.Sequential(nn.Linear(width, 2 * width), act(), nn.Linear(2 * width, width))


def sequence(*blocks: nn.Module, width: int = 16) -> Any:
    mean = Function(lambda x: x.mean(1))
    return nn.Sequential(patches(width), *blocks, nn.LayerNorm(width), mean, nn.Linear(width, 5))


def grown(factor: int = 2, mode: str = "bilinear") -> nn.Upsample:
    return nn.Upsample(scale_factor=factor, mode=mode)


def gated(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return first * second


def windows(x: torch.Tensor) -> torch.Tensor:
    rolled = x.roll((-1, -1), (2, 3)).unfold(2, 4, 4).unfold(3, 4, 4)
    return rolled.flatten(4).mean(-1)


FAMILIES: dict[str, Callable[[], Any]] = {
    "AlexNet": lambda: [nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
                        nn.Dropout(), nn.Linear(72, 5)],
    "VGG": lambda: [conv(3, 8), conv(8, 8), nn.MaxPool2d(2), conv(8, 16), head(16)],
    "ResNet": lambda: [conv(3, 8, 7, stride=2), nn.MaxPool2d(3, 2, 1),
                       added(conv(8, 8), conv(8, 8, act=nn.Identity)), nn.ReLU(), head(8)],
    "ResNeXt": lambda: [conv(3, 8), added(conv(8, 8, 1), conv(8, 8, groups=4)), head(8)],
    "WideResNet with anti-aliasing": lambda: [conv(3, 8), nn.AvgPool2d(3, 2, 1), head(8)],
    "DenseNet": lambda: [conv(3, 8), joined(nn.Identity(), conv(8, 4)),
                         joined(nn.Identity(), conv(12, 4)), nn.AvgPool2d(2), head(16)],
    "SqueezeNet": lambda: [conv(3, 8), conv(8, 4, 1), joined(conv(4, 8, 1), conv(4, 8)),
                           nn.MaxPool2d(3, 2, ceil_mode=True), head(16)],
    "Inception": lambda: [joined(conv(3, 4, 1), conv(3, 4, 5), nn.Sequential(
                              nn.MaxPool2d(3, 1, 1), conv(3, 4, 1))), head(12)],
    "Inception V3": lambda: [nn.Conv2d(3, 8, (1, 7), padding=(0, 3)),
                             nn.Conv2d(8, 8, (7, 1), padding=(3, 0)), nn.AvgPool2d(3, 1, 1),
                             head(8)],
    "MobileNetV2": lambda: [conv(3, 8, act=nn.ReLU6), added(
                                conv(8, 16, 1, nn.ReLU6), conv(16, 16, 3, nn.ReLU6, groups=16),
                                conv(16, 8, 1, nn.Identity)), head(8)],
    "MobileNetV3": lambda: [conv(3, 8, act=nn.Hardswish), squeeze(8, nn.Hardsigmoid), head(8)],
    "MNASNet": lambda: [conv(3, 8), conv(8, 8, 5, groups=8), conv(8, 16, 1, nn.Identity),
                        head(16)],
    "EfficientNet": lambda: [conv(3, 8, act=nn.SiLU), conv(8, 8, 5, nn.SiLU, groups=8, stride=2),
                             squeeze(8), head(8)],
    "RegNet": lambda: [conv(3, 8), added(conv(8, 8, groups=2), squeeze(8)), head(8)],
    "ShuffleNet": lambda: [conv(3, 8), Function(shuffled), conv(8, 8, groups=2), head(8)],
    "GhostNet": lambda: [conv(3, 4, 1), joined(nn.Identity(), conv(4, 4, groups=4)), head(8)],
    "RepVGG": lambda: [conv(3, 8), Combined(lambda a, b, c: a + b + c, nn.BatchNorm2d(8),
                           conv(8, 8, 1, nn.Identity), conv(8, 8, 3, nn.Identity)), head(8)],
    "NFNet": lambda: [Standardized(3, 8, 3, padding=1), nn.GELU(),
                      Standardized(8, 8, 3, padding=1), head(8)],
    "BiT": lambda: [Standardized(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), head(8)],
    "ConvNeXt": lambda: [nn.Conv2d(3, 8, 4, 4), added(
                             nn.Conv2d(8, 8, 7, padding=3, groups=8),
                             Function(lambda x: x.permute(0, 2, 3, 1)), nn.LayerNorm(8), mixed(8),
                             Function(lambda x: x.permute(0, 3, 1, 2))), head(8)],
    "Dilated networks": lambda: [conv(3, 8), joined(conv(8, 4, dilation=2), conv(8, 4, dilation=4)),
                                 grown(), head(8)],
    "U-Net": lambda: [conv(3, 8), joined(nn.Identity(), nn.Sequential(
                          nn.MaxPool2d(2), conv(8, 8), nn.ConvTranspose2d(8, 8, 2, 2))),
                      nn.Conv2d(16, 2, 1)],
    "HRNet": lambda: [Combined(torch.add, conv(3, 8), nn.Sequential(
                          conv(3, 8, stride=2), grown(2, "nearest"))), head(8)],
    "Feature pyramids": lambda: [conv(3, 8), Combined(torch.add, nn.Identity(), nn.Sequential(
                                     nn.AvgPool2d(4), conv(8, 8, 1), grown(4, "bicubic"))),
                                 head(8)],
    "ViT": lambda: [sequence(added(nn.LayerNorm(16), Attention(16)),
                             added(nn.LayerNorm(16), mixed(16)))],
    "Swin": lambda: [conv(3, 8), Function(windows), head(8)],
    "MLP-Mixer": lambda: [sequence(added(nn.LayerNorm(16), turned(), mixed(16), turned()),
                                   added(nn.LayerNorm(16), mixed(16)))],
    "gMLP": lambda: [sequence(added(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(),
                                    Function(gated)))],
    "PoolFormer": lambda: [conv(3, 8), added(nn.GroupNorm(1, 8),
                               nn.AvgPool2d(3, 1, 1, count_include_pad=False)), head(8)],
    "CoAtNet": lambda: [conv(3, 3, act=nn.GELU, groups=3),
                        sequence(added(nn.LayerNorm(16), Attention(16)))],
}  # fmt: skip


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*FAMILIES[name]()).eval()
    for each in model.modules():
        if isinstance(each, nn.BatchNorm2d):  # statistics that are not those of no training
            nn.init.uniform_(each.running_mean, -0.5, 0.5)
            nn.init.uniform_(each.running_var, 0.5, 2)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_computes_what_it_does_on_the_cpu(name: str) -> None:
    model = made(name)
    program, _ = lower_exported(export_flat(model, X).program)
    with torch.no_grad():
        assert_close(evaluated(program, [X]), [model(X)])


TRAINED = (
    "ResNet", "ViT", "VGG", "ResNeXt", "DenseNet", "SqueezeNet", "Inception", "MobileNetV2",
    "MobileNetV3", "EfficientNet", "ShuffleNet", "NFNet", "ConvNeXt", "U-Net", "Swin",
    "PoolFormer", "CoAtNet",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [each if each in TRAINED[:2] else pytest.param(each, marks=pytest.mark.nightly)
     for each in TRAINED],
)  # fmt: skip
def test_a_compiled_model_has_the_gradients_that_it_has_on_the_cpu(name: str) -> None:
    assert_gradients(made(name), [X])

"""The models of `host.py` in PyTorch, as its users write them for inference on a CPU.

Weights are laid out as PyTorch's own layers keep them, batch norm is folded into convolutions,
images are channels last, attention is scaled_dot_product_attention. `model(torch)` takes NumPy
arrays once and gives a function without arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networks
import numpy as np
from workload_parts import EPSILON

Tensor = Any
Call = Callable[[], Tensor]


def _tensors(torch: Any, weights: dict[str, Any]) -> dict[str, Tensor]:
    """Matrices turned, as torch.nn.Linear has them; the others as they are."""
    return {
        name: torch.from_numpy(np.ascontiguousarray(each.T if each.ndim == 2 else each))
        for name, each in weights.items()
    }


def _heads(y: Tensor, heads: int) -> Tensor:
    batch, tokens, width = y.shape
    return y.reshape(batch, tokens, heads, width // heads).transpose(1, 2)


def _attention(torch: Any, x: Tensor, w: dict[str, Tensor], heads: int) -> Tensor:
    """Before its last product; biases where there are some."""
    functional = torch.nn.functional
    q, k, v = (
        _heads(functional.linear(x, w[name], w.get(f"{name}_bias")), heads) for name in "qkv"
    )
    mixed = functional.scaled_dot_product_attention(q, k, v)
    return mixed.transpose(1, 2).reshape(x.shape)


def bert(torch: Any, x: np.ndarray, *, layers: int = 12, width: int = 768, heads: int = 12) -> Call:
    """`networks.bert`."""
    functional, x = torch.nn.functional, torch.from_numpy(x)
    stack = [_tensors(torch, each) for each in networks.bert_stack(layers, width)]

    def norm(y: Tensor, w: dict[str, Tensor], number: int) -> Tensor:
        return functional.layer_norm(y, (width,), w[f"gain{number}"], w[f"shift{number}"], 1e-12)

    def forward(y: Tensor) -> Tensor:
        for w in stack:
            mixed = _attention(torch, y, w, heads)
            y = norm(y + functional.linear(mixed, w["o"], w["o_bias"]), w, 1)
            hidden = functional.gelu(functional.linear(y, w["up"], w["up_bias"]))
            y = norm(y + functional.linear(hidden, w["down"], w["down_bias"]), w, 2)
        return y

    return lambda: forward(x)


def resnet50(torch: Any, x: np.ndarray) -> Call:
    """`networks.resnet50`."""
    functional = torch.nn.functional
    weights = networks.resnet_weights()
    near = {"memory_format": torch.channels_last}

    def folded(w: dict[str, np.ndarray]) -> tuple[Tensor, Tensor]:
        kernel = torch.from_numpy(w["kernel"] * w["scale"].reshape(-1, 1, 1, 1)).to(**near)
        return kernel, torch.from_numpy(w["shift"].reshape(-1).copy())

    stem = folded(weights["stem"])
    names = ("reduce", "middle", "expand", "skip")
    blocks = [
        (each["stride"], {name: folded(each[name]) for name in names if name in each})
        for each in weights["blocks"]
    ]
    classes = torch.from_numpy(np.ascontiguousarray(weights["classes"].T))

    def conv(y: Tensor, w: tuple[Tensor, Tensor], stride: int) -> Tensor:
        return functional.conv2d(y, *w, stride=stride, padding=w[0].shape[-1] // 2)

    def forward(y: Tensor) -> Tensor:
        y = functional.max_pool2d(functional.relu(conv(y, stem, 2)), 3, 2, 1)
        for stride, block in blocks:
            z = functional.relu(conv(y, block["reduce"], 1))
            z = conv(functional.relu(conv(z, block["middle"], stride)), block["expand"], 1)
            y = functional.relu(z + (conv(y, block["skip"], stride) if "skip" in block else y))
        return functional.linear(y.mean((2, 3)), classes)

    images = torch.from_numpy(x).to(**near)
    return lambda: forward(images)


def vit(torch: Any, x: np.ndarray, weights: dict[str, Any], heads: int = 12) -> Call:
    """`workload_models.vit`."""
    functional, x = torch.nn.functional, torch.from_numpy(x)
    layers = [_tensors(torch, each) for each in weights["layers"]]
    own = {n: torch.from_numpy(np.asarray(each)) for n, each in weights.items() if n != "layers"}
    last = own["last"].T.contiguous()
    width = own["gain"].shape[0]

    def norm(y: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        return functional.layer_norm(y, (width,), gain, shift, EPSILON)

    def forward(images: Tensor) -> Tensor:
        y = functional.conv2d(images, own["embed"], stride=own["embed"].shape[-1])
        y = y.flatten(2).transpose(1, 2)
        y = torch.cat([own["token"].expand(len(y), 1, width), y], 1) + own["places"]
        for w in layers:
            mixed = _attention(torch, norm(y, w["gain1"], w["shift1"]), w, heads)
            y = y + functional.linear(mixed, w["o"])
            hidden = functional.linear(norm(y, w["gain2"], w["shift2"]), w["up"])
            y = y + functional.linear(functional.gelu(hidden, approximate="tanh"), w["down"])
        return functional.linear(norm(y[:, 0], own["gain"], own["shift"]), last)

    return lambda: forward(x)

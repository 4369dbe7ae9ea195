"""Automatic mixed precision: which operators take the narrower dtype, and which float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from glia.plugins.torch.device.device_memory import NAME, is_on_device
from glia.plugins.torch.device.registration import enter

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

# As PyTorch has them for other accelerators
NARROW = (
    "mm", "matmul", "linear", "bmm", "addmm", "addmv", "addr", "addbmm", "baddbmm", "mv",
    "chain_matmul", "prelu", "scaled_dot_product_attention", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution",
    "conv_tbc", "linalg_multi_dot", "linalg_vecdot", "einsum",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell",
    "rnn_relu_cell",
)  # fmt: skip
WIDE = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "native_layer_norm", "group_norm", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss",
    "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "softmax.int", "log_softmax.int", "prod", "prod.dim_int", "cumprod", "cumsum", "sum",
    "sum.dim_IntList", "norm.Scalar", "norm.ScalarOpt_dim",
)  # fmt: skip


def register(library: torch.library.Library, fallthrough: torch.library.Library) -> None:
    """Enter what operators do under torch.autocast("neuron"); others do what they always do."""
    fallthrough.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in NARROW:
        enter(library, name, _cast(name, torch.get_autocast_dtype), "AutocastPrivateUse1")
    for name in WIDE:
        enter(library, name, _cast(name, lambda _: torch.float32), "AutocastPrivateUse1")


def _cast(name: str, chosen: Callable[[str], torch.dtype]) -> Callable[..., Any]:
    """An operator on arguments in the dtype that autocast has for it."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = chosen(NAME)
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            args, kwargs = tree_map(lambda value: _as_dtype(value, dtype), (args, kwargs))
            return operator(*args, **kwargs)

    return call


def _as_dtype(value: Any, dtype: torch.dtype) -> Any:
    """A tensor of the device in a dtype, if it has another that autocast may change."""
    if is_on_device(value) and value.is_floating_point() and value.dtype is not torch.float64:
        return value.to(dtype)
    return value

"""Feed-forward layers and projections under the private names that public models import.

What they compute and the order of their parameters are those of the calls in public models; the
kernels are those of this folder. The programs of a grid share the tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.kernels.mlp import project, swiglu
from glia.kernels.rmsnorm import rmsnorm
from glia.nki import isa as nisa
from glia.nki import language as current
from glia.nki.beta1 import jit
from glia.nki.beta1 import language as nl
from glia.nki.beta1.tensors.tensor import Tensor
from glia.nki.language import NkiTensor
from glia_dropin.kernels.grid import Range, refuse, share_of
from glia_dropin.neuronxcc.shipping import from_current

INSTEAD = "the NKI Library"


def mlp_isa_kernel(
    hidden: Any, ln_w: Any, gate_w: Any, up_w: Any, down_w: Any, out: Any, kernel_name: str = "MLP",
    fused_rmsnorm: bool | None = False, skip_gamma: bool = False, eps: float = 1e-6, **kwargs: Any,
) -> None:  # fmt: skip
    """out = (silu(x @ gate_w) * (x @ up_w)) @ down_w for x [B, S, H], hidden or its RMS norm.

    ln_w is [1, H], gate_w and up_w [H, I], down_w [I, H].
    """
    refuse("mlp_isa_kernel", kwargs, INSTEAD)
    gain = _gain(hidden, ln_w, skip_gamma) if fused_rmsnorm else None
    own = _own(hidden)
    if own[1]:
        _feed_forward(hidden, gain, gate_w, up_w, down_w, out, own, eps)


def rmsnorm_qkv_isa_kernel(
    hidden: Any, qkv_w: Any, ln_w: Any, out: Any, kernel_name: str = "QKV", eps: float = 1e-6,
    fused_rmsnorm: bool = True, bias: Any = None, skip_gamma: bool = False, **kwargs: Any,
) -> None:  # fmt: skip
    """out = x @ qkv_w for x [B, S, H], hidden or its RMS norm; ln_w is [1, H], qkv_w [H, I]."""
    refuse("rmsnorm_qkv_isa_kernel", {"bias": bias, **kwargs}, INSTEAD)
    gain = _gain(hidden, ln_w, skip_gamma) if fused_rmsnorm else None
    own = _own(hidden)
    if own[1]:
        _project(hidden, gain, qkv_w, out, own, eps)


@jit
def allocated_fused_rms_norm_qkv(
    hidden: Any, weights: Any, norm_dtype: Any = nl.float32, eps: float = 1e-6
) -> Tensor:
    """The RMS norm of hidden [B, S, H] @ weights [H, I], which hold its gain; [B, S, I].

    The norm is float32, whatever `norm_dtype` allows. The programs of a grid share the tokens.
    """
    shape = *hidden.shape[:2], weights.shape[1]
    out = nl.ndarray(shape, dtype=hidden.dtype, buffer=nl.shared_hbm)
    own = _own(hidden)
    if own[1]:
        _project(hidden, _gain(hidden, None, skip_gamma=True), weights, out, own, eps)
    return out


@from_current
def _feed_forward(
    hidden: NkiTensor, gain: NkiTensor | None, gate: NkiTensor, up: NkiTensor, down: NkiTensor,
    out: NkiTensor, own: Range, eps: float,
) -> None:  # fmt: skip
    made = swiglu(_tokens(hidden, own, gain, eps), gate, up, down)
    nisa.dma_copy(_tokens(out, own), made)


@from_current
def _project(
    hidden: NkiTensor, gain: NkiTensor | None, weight: NkiTensor, out: NkiTensor, own: Range,
    eps: float,
) -> None:  # fmt: skip
    project(_tokens(hidden, own, gain, eps), weight, _tokens(out, own))


def _tokens(
    tensor: NkiTensor, own: Range, gain: NkiTensor | None = None, eps: float = 0.0
) -> NkiTensor:
    """The rows [T, H] of [B, S, H] that a program has, normalised when there is a gain."""
    batch, length, width = tensor.shape
    rows = tensor.reshape((batch * length, width))[current.ds(*own)]
    return rows if gain is None else rmsnorm(rows, gain.reshape((width,)), eps)


def _gain(hidden: Any, ln_w: Any, skip_gamma: bool) -> Any:
    if not skip_gamma:
        return ln_w
    return nl.shared_constant(np.ones((1, hidden.shape[-1]), np.float32), dtype=hidden.dtype)


def _own(hidden: Any) -> Range:
    """The tokens that a program of the grid has."""
    return share_of(hidden.shape[0] * hidden.shape[1])

"""Feed-forward layers and projections under the private names that public models import.

Results and the order of parameters follow the calls in public models; the computation is that of
glia.kernels. The programs of a grid split the tokens.
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
from glia_dropin.kernels.grid import Range, program_share, refuse_options
from glia_dropin.neuronxcc.shipping import adapt_to_beta1

ALTERNATIVE = "the NKI Library"


def mlp_isa_kernel(
    hidden: Any, ln_w: Any, gate_w: Any, up_w: Any, down_w: Any, out: Any, kernel_name: str = "MLP",
    fused_rmsnorm: bool | None = False, skip_gamma: bool = False, eps: float = 1e-6, **kwargs: Any,
) -> None:  # fmt: skip
    """out = (silu(x @ gate_w) * (x @ up_w)) @ down_w for x [B, S, H], hidden or its RMS norm.

    ln_w is [1, H], gate_w and up_w [H, I], down_w [I, H].
    """
    refuse_options("mlp_isa_kernel", kwargs, ALTERNATIVE)
    gain = _gain(hidden, ln_w, skip_gamma) if fused_rmsnorm else None
    own = _program_tokens(hidden)
    if own[1]:
        _feed_forward(hidden, gain, gate_w, up_w, down_w, out, own, eps)


def rmsnorm_qkv_isa_kernel(
    hidden: Any, qkv_w: Any, ln_w: Any, out: Any, kernel_name: str = "QKV", eps: float = 1e-6,
    fused_rmsnorm: bool = True, bias: Any = None, skip_gamma: bool = False, **kwargs: Any,
) -> None:  # fmt: skip
    """out = x @ qkv_w for x [B, S, H], hidden or its RMS norm; ln_w is [1, H], qkv_w [H, I]."""
    refuse_options("rmsnorm_qkv_isa_kernel", {"bias": bias, **kwargs}, ALTERNATIVE)
    gain = _gain(hidden, ln_w, skip_gamma) if fused_rmsnorm else None
    own = _program_tokens(hidden)
    if own[1]:
        _project(hidden, gain, qkv_w, out, own, eps)


@jit
def allocated_fused_rms_norm_qkv(
    hidden: Any, weights: Any, norm_dtype: Any = nl.float32, eps: float = 1e-6
) -> Tensor:
    """The RMS norm of hidden [B, S, H] @ weights [H, I], which hold its gain; [B, S, I].

    The norm is float32, whatever `norm_dtype` allows. The programs of a grid split the tokens.
    """
    shape = *hidden.shape[:2], weights.shape[1]
    out = nl.ndarray(shape, dtype=hidden.dtype, buffer=nl.shared_hbm)
    own = _program_tokens(hidden)
    if own[1]:
        _project(hidden, _gain(hidden, None, skip_gamma=True), weights, out, own, eps)
    return out


@adapt_to_beta1
def _feed_forward(
    hidden: NkiTensor, gain: NkiTensor | None, gate: NkiTensor, up: NkiTensor, down: NkiTensor,
    out: NkiTensor, own: Range, eps: float,
) -> None:  # fmt: skip
    made = swiglu(_token_rows(hidden, own, gain, eps), gate, up, down)
    nisa.dma_copy(_token_rows(out, own), made)


@adapt_to_beta1
def _project(
    hidden: NkiTensor, gain: NkiTensor | None, weight: NkiTensor, out: NkiTensor, own: Range,
    eps: float,
) -> None:  # fmt: skip
    project(_token_rows(hidden, own, gain, eps), weight, _token_rows(out, own))


def _token_rows(
    tensor: NkiTensor, own: Range, gain: NkiTensor | None = None, eps: float = 0.0
) -> NkiTensor:
    """The program's rows [T, H] of [B, S, H], RMS-normalised if there is a gain."""
    batch, length, width = tensor.shape
    rows = tensor.reshape((batch * length, width))[current.ds(*own)]
    return rows if gain is None else rmsnorm(rows, gain.reshape((width,)), eps)


def _gain(hidden: Any, ln_w: Any, skip_gamma: bool) -> Any:
    if not skip_gamma:
        return ln_w
    return nl.shared_constant(np.ones((1, hidden.shape[-1]), np.float32), dtype=hidden.dtype)


def _program_tokens(hidden: Any) -> Range:
    """The tokens that a program of the grid has."""
    return program_share(hidden.shape[0] * hidden.shape[1])

"""The attention kernels of `neuronxcc.nki`, computed by glia.kernels.flash_attention.

Products are computed in the dtype of the tensors and accumulated in float32. `mixed_precision`, for
which AWS's kernels round float32 to bfloat16 first, is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glia.kernels.flash_attention import attend
from glia.kernels.flash_attention_backward import attend_backward
from glia.nki import isa as nisa
from glia.nki import language as current
from glia.nki.beta1 import jit
from glia.nki.beta1 import language as nl
from glia.nki.beta1.tensors.tensor import Tensor
from glia.nki.language import NkiTensor
from glia_dropin.kernels.grid import Range, program_share, refuse_options
from glia_dropin.neuronxcc.shipping import adapt_to_beta1

ROWS = 128
WITHOUT_SWAP = "AttentionMMSoftmaxMMWithoutSwap"
ALTERNATIVE = "the attention of nki-samples and of the NKI Library"


@dataclass(frozen=True)
class FlashConfig:
    """Options of flash_fwd; tile sizes are accepted and ignored."""

    seq_tile_size: int = 2048
    attn_core_tile_size: int = 256
    training: bool = True
    should_transpose_v: bool = False
    lse_dtype: str = ""


@jit
def flash_fwd(
    q: Any, k: Any, v: Any, seed: Any, logit_bias: Any = None, softmax_scale: float | None = None,
    use_causal_mask: bool = True, sliding_window: int = -1, mixed_precision: bool = True,
    dropout_p: float = 0.0, config: FlashConfig | None = None,
) -> Any:  # fmt: skip
    """Attention of q [B, H, D, S] to k [B, G, D, T] and v [B, G, T, D]; [B, H, S, D] and lse.

    On a grid [B, G] each program has the heads that share keys. lse, [B, H, 128, S / 128] with the
    logarithms of the sums of exponentials, is returned when training; v is [B, G, D, T] with
    should_transpose_v.
    """
    refuse_options("flash_fwd", {"logit_bias": logit_bias, "dropout": dropout_p > 0}, ALTERNATIVE)
    config = config or FlashConfig()
    batch, heads, width, rows = q.shape
    out = nl.ndarray((batch, heads, rows, width), dtype=q.dtype, buffer=nl.shared_hbm)
    dtype = getattr(nl, config.lse_dtype) if config.lse_dtype else nl.float32
    lse = nl.ndarray((batch, heads, ROWS, rows // ROWS), dtype=dtype, buffer=nl.shared_hbm)
    _forward(
        q, k, v, out, lse, _program_ranges(batch, k.shape[1]), softmax_scale or width**-0.5,
        use_causal_mask, max(sliding_window, 0), config,
    )  # fmt: skip
    return (out, lse) if config.training else out


@jit
def flash_attn_bwd(
    q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any, dy_ref: Any, lse_ref: Any, seed_ref: Any,
    logit_bias_ref: Any = None, use_causal_mask: bool = False, mixed_precision: bool = False,
    dropout_p: float = 0.0, softmax_scale: float | None = None, sliding_window: int = -1,
    sinks: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, all of them [B, H or G, D, S] as the result and its gradient.

    On a grid [B, G] each program has the heads that share keys.
    """
    options = {"logit_bias": logit_bias_ref, "dropout": dropout_p > 0, "a sink": sinks}
    refuse_options("flash_attn_bwd", options, ALTERNATIVE)
    dq, dk, dv = (
        nl.ndarray(each.shape, dtype=each.dtype, buffer=nl.shared_hbm)
        for each in (q_ref, k_ref, v_ref)
    )
    batch, groups, width, _ = k_ref.shape
    _backward(
        [q_ref, o_ref, dy_ref, lse_ref, dq], [k_ref, v_ref, dk, dv], _program_ranges(batch, groups),
        softmax_scale or width**-0.5, use_causal_mask, max(sliding_window, 0),
    )  # fmt: skip
    return dq, dk, dv


@jit
def fused_self_attn_for_SD_small_head_size(  # noqa: N802, the documented name
    q_ref: Any, k_ref: Any, v_ref: Any, use_causal_mask: bool = False, mixed_precision: bool = True
) -> Tensor:
    """Attention of q [B, D, S] to k and v [B, T, D], scores times 0.125; [B, S, D].

    On a grid [B] each program has one of the batch.
    """
    batch, width, rows = q_ref.shape
    out = nl.ndarray((batch, rows, width), dtype=q_ref.dtype, buffer=nl.shared_hbm)
    _attend_single_heads(
        q_ref, k_ref, v_ref, out, _program_ranges(batch)[0], 0.125, use_causal_mask, is_small=True
    )
    return out


@jit
def allocated_fused_self_attn_for_SD_small_head_size(  # noqa: N802, the documented name
    q_ref: Any, k_ref: Any, v_ref: Any, use_causal_mask: bool = False, mixed_precision: bool = True
) -> Tensor:
    """Attention of q [B, D, S] to k [B, D, T] and v [B, T, D], scores times 0.125; [B, D, S].

    On a grid [B] each program has one of the batch.
    """
    out = nl.ndarray(q_ref.shape, dtype=q_ref.dtype, buffer=nl.shared_hbm)
    own = _program_ranges(q_ref.shape[0])[0]
    _attend_single_heads(q_ref, k_ref, v_ref, out, own, 0.125, use_causal_mask, is_small=False)
    return out


def attention_isa_kernel(
    q: Any, k: Any, v: Any, scale: float, out: Any,
    kernel_name: str = "AttentionMMSoftmaxMMWithoutSwap", **kwargs: Any,
) -> None:  # fmt: skip
    """Attention of q [N, D, S] to k [N, D, T] and v [N, T, D] into out [N, D, S].

    It is causal where the kernel's name begins with Causal. The programs of a grid share N.
    """
    refuse_options("attention_isa_kernel", kwargs, ALTERNATIVE)
    own = program_share(q.shape[0])
    if own[1]:
        is_causal = kernel_name.startswith("Causal")
        _attend_single_heads(q, k, v, out, own, scale, is_causal, is_small=False)


def attention_kernel(
    kernel_name: str, q: Any, k: Any, v: Any, scale: float, out: Any
) -> None:  # fmt: skip
    """Attention as release 2.20 had it in nki.isa, to v [N, T, D] into out, [N, S, D] or [N, D, S].

    AttentionMMSoftmaxMM takes q [N, D, S] and k [N, T, D]; the names that end in WithoutSwap k
    [N, D, T] and q either way, and Causal ones begin so. UnsupportedHere where S is D, so that a
    shape does not tell the two layouts apart.
    """
    takes_rows = kernel_name == "AttentionMMSoftmaxMM"
    if not takes_rows and kernel_name.removeprefix("Causal") != WITHOUT_SWAP:
        refuse_options(
            "nki.isa.attention_kernel", {f"kernel_name={kernel_name!r}": True}, ALTERNATIVE
        )
    width, rows = v.shape[2], q.shape[1] * q.shape[2] // v.shape[2]
    is_ambiguous = rows == width
    refuse_options(
        "nki.isa.attention_kernel",
        {"a square q, whose layout is ambiguous,": is_ambiguous},
        ALTERNATIVE,
    )
    _attend_any_layout(q, k, v, out, scale, kernel_name.startswith("Causal"), takes_rows=takes_rows)


# --- in the current NKI --------------------------------------------------------------------------


@adapt_to_beta1
def _forward(
    q: NkiTensor, k: NkiTensor, v: NkiTensor, out: NkiTensor, lse: NkiTensor,
    own: tuple[Range, Range], scale: float, causal: bool, window: int, config: FlashConfig,
) -> None:  # fmt: skip
    shared = q.shape[1] // k.shape[1]
    q, out, lse = (_program_heads(each, own, shared) for each in (q, out, lse))
    k, v = (_program_heads(each, own) for each in (k, v))
    if config.should_transpose_v:
        v = v.permute((0, 1, 3, 2))
    sums = current.ndarray(out.shape[:3], current.float32, buffer=current.private_hbm)
    attend(q, k, v, out, sums, scale, causal, window, with_lse=config.training)
    if config.training:
        nisa.dma_copy(lse, _lse_layout(sums))


@adapt_to_beta1
def _backward(
    per_head: list[NkiTensor], per_group: list[NkiTensor], own: tuple[Range, Range],
    scale: float, causal: bool, window: int,
) -> None:  # fmt: skip
    shared = per_head[0].shape[1] // per_group[0].shape[1]
    q, out, grad, lse, dq = (_program_heads(each, own, shared) for each in per_head)
    k, v, dk, dv = (_program_heads(each, own) for each in per_group)
    batch, heads, _, rows = q.shape
    sums = current.ndarray((batch, heads, rows), current.float32, buffer=current.private_hbm)
    nisa.dma_copy(_lse_layout(sums), lse)
    v, out, grad = (each.permute((0, 1, 3, 2)) for each in (v, out, grad))
    dq, dk, dv = (each.permute((0, 1, 3, 2)) for each in (dq, dk, dv))
    attend_backward(q, k, v, out, grad, sums, dq, dk, dv, scale, causal, window)


@adapt_to_beta1
def _attend_single_heads(
    q: NkiTensor, k: NkiTensor, v: NkiTensor, out: NkiTensor, own: Range, scale: float,
    causal: bool, *, is_small: bool,
) -> None:  # fmt: skip
    """Attention of N single heads; k is [N, T, D] and out [N, S, D] if `is_small`, else swapped."""
    q, k, v, out = (each[current.ds(*own)] for each in (q, k, v, out))
    if is_small:
        k = k.permute((0, 2, 1))
    else:
        out = out.permute((0, 2, 1))
    q, k, v, out = (each.reshape((each.shape[0], 1, *each.shape[1:])) for each in (q, k, v, out))
    sums = current.ndarray(out.shape[:3], current.float32, buffer=current.private_hbm)
    attend(q, k, v, out, sums, scale, causal, 0, with_lse=False)


@adapt_to_beta1
def _attend_any_layout(
    q: NkiTensor, k: NkiTensor, v: NkiTensor, out: NkiTensor, scale: float, causal: bool, *,
    takes_rows: bool,
) -> None:  # fmt: skip
    """Attention of N single heads; q and out are [N, S, D] or [N, D, S], as is k with T."""
    width = v.shape[2]
    q = q if q.shape[1] == width else q.permute((0, 2, 1))
    k = k.permute((0, 2, 1)) if takes_rows else k
    out = out if out.shape[2] == width else out.permute((0, 2, 1))
    q, k, v, out = (each.reshape((each.shape[0], 1, *each.shape[1:])) for each in (q, k, v, out))
    sums = current.ndarray(out.shape[:3], current.float32, buffer=current.private_hbm)
    attend(q, k, v, out, sums, scale, causal, 0, with_lse=False)


def _program_heads(tensor: NkiTensor, own: tuple[Range, Range], shared: int = 1) -> NkiTensor:
    """The program's part of [B, H, ...], where `shared` heads belong to each key head."""
    (batch, batches), (group, groups) = own
    part = tensor[current.ds(batch, batches)]
    return part[:, current.ds(group * shared, groups * shared)]


def _lse_layout(sums: NkiTensor) -> NkiTensor:
    """[B, H, S] seen as [B, H, 128, S / 128]."""
    batch, heads, rows = sums.shape
    return sums.reshape((batch, heads, rows // ROWS, ROWS)).permute((0, 1, 3, 2))


def _program_ranges(*sizes: int) -> tuple[Range, ...]:
    """This program's range of each grid axis; the whole axis without a grid."""
    if not nl.program_ndim():
        return tuple((0, size) for size in sizes)
    return tuple((int(nl.program_id(axis)), 1) for axis in range(len(sizes)))

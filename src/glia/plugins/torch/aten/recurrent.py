"""Cells of recurrent layers, as PyTorch calls them for accelerators: two products are given.

Sources are PyTorch's documentation of `LSTMCell` and `GRUCell`, and calculus. What a forward
operator leaves for its gradient, beside its results, is as CUDA has it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glia.plugins.torch.aten.derived import derives

aten = torch.ops.aten


def _with_bias(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


@derives(aten._thnn_fused_lstm_cell.default)
def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The hidden state, the cell, and the gates, which the gradient takes."""
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    admit, keep, new, show = gates.chunk(4, 1)
    admit, keep, new, show = admit.sigmoid(), keep.sigmoid(), new.tanh(), show.sigmoid()
    after = keep * cell + admit * new
    return show * after.tanh(), after, torch.cat([admit, keep, new, show], 1)


@derives(aten._thnn_fused_lstm_cell_backward_impl.default)
def _lstm_cell_backward(
    grad_hidden: Tensor | None,
    grad_cell: Tensor | None,
    cell: Tensor,
    after: Tensor,
    gates: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of the sum of products, of the cell, and of either bias."""
    admit, keep, new, show = gates.chunk(4, 1)
    shown = after.tanh()
    into_show = torch.zeros_like(cell) if grad_hidden is None else grad_hidden * shown
    into_cell = torch.zeros_like(cell) if grad_cell is None else grad_cell
    if grad_hidden is not None:
        into_cell = into_cell + grad_hidden * show * (1 - shown * shown)
    parts = [
        into_cell * new * admit * (1 - admit),
        into_cell * cell * keep * (1 - keep),
        into_cell * admit * (1 - new * new),
        into_show * show * (1 - show),
    ]
    found = torch.cat(parts, 1)
    return found, into_cell * keep, found.sum(0) if has_bias else None


@derives(aten._thnn_fused_gru_cell.default)
def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The hidden state, and what the gradient takes."""
    of_input = _with_bias(input_gates, input_bias).chunk(3, 1)
    of_hidden = _with_bias(hidden_gates, hidden_bias).chunk(3, 1)
    reset, keep = ((x + y).sigmoid() for x, y in zip(of_input[:2], of_hidden[:2], strict=True))
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    left = torch.cat([reset, keep, new, hidden, of_hidden[2]], 1)
    return new + keep * (hidden - new), left


@derives(aten._thnn_fused_gru_cell_backward.default)
def _gru_cell_backward(
    grad: Tensor, left: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of both products, of the hidden state, and of both biases."""
    reset, keep, new, hidden, of_hidden = left.chunk(5, 1)
    into_new = grad * (1 - keep) * (1 - new * new)
    into_keep = grad * (hidden - new) * keep * (1 - keep)
    into_reset = into_new * of_hidden * reset * (1 - reset)
    of_inputs = torch.cat([into_reset, into_keep, into_new], 1)
    of_hiddens = torch.cat([into_reset, into_keep, into_new * reset], 1)
    biases = (of_inputs.sum(0), of_hiddens.sum(0)) if has_bias else (None, None)
    return of_inputs, of_hiddens, grad * keep, *biases

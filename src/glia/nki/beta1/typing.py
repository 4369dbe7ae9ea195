"""`neuronxcc.nki.typing`: annotations of parameters, as `nt`, and run-time scalars.

`x: nt.tensor[128, 512]` is checked against the array that is passed; `nt.mutable_tensor` lets the
kernel write the parameter, which it must return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glia.nki.beta1.tensors.scalars import scalar
from glia.nki.beta1.tensors.tensor import Tensor

if TYPE_CHECKING:
    immutable = Tensor
    mutable = Tensor
    mutable_tensor = Tensor
    tensor = Tensor
else:
    from glia.nki.typing import immutable, mutable, mutable_tensor, tensor


__all__ = ["immutable", "mutable", "mutable_tensor", "scalar", "tensor"]

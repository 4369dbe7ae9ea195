"""Arguments that do not belong together are refused before a kernel does anything with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.cross_entropy import cross_entropy_backward, cross_entropy_forward
from glia.kernels.depthwise_conv1d import depthwise_conv1d
from glia.kernels.images.average_pool2d import average_pool2d
from glia.kernels.images.conv2d import conv2d, conv2d_image_gradient
from glia.kernels.images.conv2d_weights import conv2d_weight_gradient
from glia.kernels.mamba import mamba
from glia.kernels.moe_blocks import moe_blocks
from glia.kernels.tensor_add import tensor_add
from glia.nki.run.testing import profile_kernel


def _zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def _whole(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


LOGITS = _zeros(3, 40)
SCAN = (_zeros(1, 4, 8), _zeros(1, 4, 8), _zeros(4, 2), _zeros(1, 2, 8), _zeros(1, 2, 8))
EXPERTS = (_zeros(9, 128), _zeros(18, 1), _zeros(2, 128, 2, 128), _zeros(2, 128, 128))
MISFITS = [
    (tensor_add, (_zeros(3, 4), _zeros(3, 4, dtype=bfloat16)), {}, "dtypes float32 and bfloat16"),
    (average_pool2d, (_zeros(3, 4, 4),), {"pool": 0}, "no windows of 0"),
    (conv2d, (_zeros(1, 3, 9, 9), _zeros(8, 4, 3, 3)), {}, "differ in channels"),
    (conv2d, (_zeros(1, 3, 2, 9), _zeros(8, 3, 3, 3)), {}, "are larger than images"),
    (conv2d_image_gradient, (_zeros(1, 8, 5, 5), _zeros(8, 3, 3, 3)), {"shape": (1, 3, 9, 9)},
     r"is not \(1, 8, 7, 7\)"),
    (conv2d_weight_gradient, (_zeros(1, 3, 9, 9), _zeros(1, 8, 5, 5)), {"taps": (3, 3)},
     r"is not \(1, 8, 7, 7\)"),
    (cross_entropy_forward, (LOGITS, _whole(4)), {}, "for 3 positions"),
    (cross_entropy_backward, (LOGITS, _whole(3), _zeros(4)), {"scale": 1.0}, "targets and lse"),
    (cross_entropy_backward, (LOGITS, _whole(3), _zeros(3)), {"scale": 0.0}, "scale is 0.0"),
    (depthwise_conv1d, (_zeros(1, 3, 9), _zeros(4, 3)), {}, "4 filters for 3 channels"),
    (depthwise_conv1d, (_zeros(1, 3, 4), _zeros(3, 5)), {}, "longer than 4 elements"),
    (mamba, (*SCAN[:2], _zeros(5, 2), *SCAN[3:]), {}, "is not for 4 channels"),
    (mamba, (*SCAN[:3], _zeros(1, 3, 8), SCAN[4]), {}, r"are not \(1, 2, 8\)"),
    (mamba, (SCAN[0], _zeros(1, 4, 7), *SCAN[2:]), {}, "differ"),
    (moe_blocks, (*EXPERTS, _whole(128), _whole(2, 1)), {"block": 128}, "are not 2 blocks of 128"),
    (moe_blocks, (EXPERTS[0], _zeros(9, 1), *EXPERTS[2:], _whole(128), _whole(1, 1)),
     {"block": 128}, r"affinities \(9, 1\)"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "arguments", "constants", "said"), MISFITS)
def test_what_does_not_fit_is_said(
    kernel: Any, arguments: tuple[np.ndarray, ...], constants: dict[str, Any], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        profile_kernel(kernel, *arguments, target="trn2", **constants)

"""No kernel of the library races, reads what nothing wrote, or differs between the ways to run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.kernels.flash_attention import flash_attention
from glia.kernels.layernorm import layernorm
from glia.kernels.softmax import softmax
from glia.kernels.transpose2d import transpose2d
from glia.nki.run.check_kernel import assert_sound
from kernels.test_generations import CASES, bf16
from support.kernel_checks import normal

MORE = (
    (softmax, (normal(130, 64),), {}),
    (layernorm, (normal(130, 64), normal(64), normal(64)), {}),
    (flash_attention, (bf16(1, 1, 128, 256), bf16(1, 1, 128, 256), bf16(1, 1, 256, 128)), {}),
    (transpose2d, (normal(64, 12),), {"shape": (3, 4)}),
)


@pytest.mark.parametrize(
    ("kernel", "arguments", "constants"),
    CASES + MORE,
    ids=[case[0].__name__ for case in CASES + MORE],
)
def test_kernel_is_sound(
    kernel: Any, arguments: tuple[np.ndarray, ...], constants: dict[str, Any]
) -> None:
    report = assert_sound(kernel, *arguments, target="trn2", **constants)
    assert len(report.checks) >= 5

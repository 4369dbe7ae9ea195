"""What the emitter begins a reduction with changes no element, of any dtype and in any monoid."""

from __future__ import annotations

import numpy as np
import pytest

from glia.base.dtype import DTYPES
from glia.graph.ops.scalar_regions import MONOIDS
from glia.isa.alu import ALU_OPS
from glia.machine.emit.monoids import identity, reduce_op

BITWISE = ("and", "or", "xor")
INTEGERS = [name for name, dtype in DTYPES.items() if dtype.is_integer and dtype.bits >= 8]
FLOATS = ["f32", "f16", "bf16"]


@pytest.mark.parametrize("function", ["add", "multiply", "maximum", "minimum", *BITWISE])
def test_an_identity_changes_nothing(function: str) -> None:
    for name in [*INTEGERS, "pred", *([] if function in BITWISE else FLOATS)]:
        dtype = DTYPES[name]
        bits = np.random.default_rng(5).integers(0, 256, 64 * dtype.numpy.itemsize, np.uint8)
        values = bits % 2 == 0 if name == "pred" else bits.view(dtype.numpy)
        values = values if not dtype.is_float else np.nan_to_num(values.astype(np.float32))
        start = np.asarray(identity(function, dtype)).astype(values.dtype)
        if function != "add" or name != "pred":
            np.testing.assert_array_equal(MONOIDS[function](start, values), values, name)


@pytest.mark.parametrize("function", BITWISE)
@pytest.mark.parametrize("name", ["s8", "s16", "s32", "u8", "u16", "u32"])
def test_an_identity_changes_nothing_on_the_engines(function: str, name: str) -> None:
    dtype = DTYPES[name]
    values = np.arange(-8, 8).astype(dtype.numpy)
    start = np.full(values.shape, identity(function, dtype)).astype(dtype.numpy)
    compute = ALU_OPS[reduce_op(function, dtype)].compute
    np.testing.assert_array_equal(compute(start, values), values)

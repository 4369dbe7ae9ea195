"""Programs of which executions are captured: one with a state, one with a matrix product."""

from __future__ import annotations

import numpy as np

from glia import nki
from glia.arch import get_target
from glia.base.dtype import BF16, F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.vector import TensorScalar
from glia.machine.ir import Binding, Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.neff.package import Neff
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.run.launch import bind
from glia.nki.tensors.nki_tensor import NkiTensor
from support.machine_programs import tile, whole


def counter() -> Neff:
    """n = n + 1, where the output lies where the input lies."""
    n, a = tile("n", "HBM", 1, 128), tile("a", "SBUF", 1, 128)
    body = (
        DmaCopy(dst=whole(a), src=whole(n), queue="in"),
        TensorScalar(dst=whole(a), data=whole(a), op0="add", operand0=1.0),
        DmaCopy(dst=whole(n), src=whole(a), queue="out"),
    )
    state = Binding("n", n, (128,), F32)
    tiles = {"n": n, "a": a}
    program = Program("counter", "trn2", tiles, (state,), (state,), {}, body)
    return Neff((insert_semaphores(place(program)),))


@nki.jit
def product_of_turned(a: NkiTensor, b: NkiTensor) -> NkiTensor:
    """a @ b, where the Tensor Engine turns a first."""
    rows = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=a)
    nisa.dma_copy(dst=right, src=b)
    turned = nl.ndarray(a.shape[::-1], a.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=rows)
    left = nl.ndarray(turned.shape, a.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=left, src=turned)
    sums = nl.ndarray((a.shape[0], b.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=sums, stationary=left, moving=right)
    total = nl.ndarray(sums.shape, nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=total, data=sums, op=nl.copy)
    result = nl.ndarray(sums.shape, nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=total)
    return result


def product(target: str) -> Neff:
    """The kernel above on small bfloat16 matrices."""
    arrays = np.ones((128, 64), BF16.numpy), np.ones((64, 256), BF16.numpy)
    launch = bind(product_of_turned.function, arrays, {})
    return Neff(product_of_turned.traced_launch(launch, get_target(target)).programs)

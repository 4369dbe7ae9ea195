"""Orders that a kernel asks for: depends_on, and edges between named instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import Reciprocal, TensorScalar
from glia.isa.kit import Instr
from glia.machine.ir import Program, walk
from glia.machine.passes.insert_semaphores import stream_of
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.errors import BadSchedule
from glia.nki.run.trace import trace
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored


def _kernel(t: NkiTensor) -> NkiTensor:
    """The reciprocal on the Vector Engine, the exponential on the Scalar Engine: independent."""
    x = nl.load(t)
    a, b, c = (nl.ndarray(t.shape, t.dtype) for _ in range(3))
    nisa.reciprocal(dst=a, data=x, name="recip")
    nisa.activation(dst=b, op=nl.exp, data=x, name="power")
    nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add, name="sum")
    return stored(c)


def _program(kernel: Callable[..., Any], *arrays: Any) -> Program:
    return trace(kernel, *arrays)


def _found(program: Program, kind: type[Instr]) -> tuple[int, Instr]:
    """(place in program order, instruction) of the only one of a kind."""
    found = [(n, i) for n, i in enumerate(walk(program.body)) if isinstance(i, kind)]
    assert len(found) == 1
    return found[0]


def _waits_for(program: Program, consumer: type[Instr], producer: type[Instr]) -> bool:
    """Whether the consumer waits for a count that the producer brings its stream to."""
    own, awaited = _found(program, consumer)[1], _found(program, producer)[1]
    stream, count = stream_of(awaited), 0
    for each in walk(program.body):
        count += stream_of(each) == stream
        if each is awaited:
            break
    return any(w.semaphore == stream and w.value.constant >= count for w in own.waits)


EDGES = [[("power", "recip")], [("power", ["recip"])], [("recip", ["power"]), ("sum", "recip")]]


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_an_edge_is_a_wait_and_changes_no_value(edges: Any) -> None:
    x = np.abs(normal(8, 16)) + 1
    result = both(nki.jit(_kernel).with_schedule(edges), x)
    np.testing.assert_array_equal(result, both(_kernel, x))
    program = _program(nki.jit(_kernel).with_schedule(edges).function, x)
    pair = (Activation, Reciprocal) if edges[0][0] == "power" else (Reciprocal, Activation)
    assert _waits_for(program, *pair)
    assert _found(program, pair[1])[0] < _found(program, pair[0])[0]
    assert not _waits_for(_program(_kernel, x), *pair)


def test_a_handle_makes_an_instruction_wait() -> None:
    def kernel(t: NkiTensor, is_late: bool) -> NkiTensor:
        x = nl.load(t)
        a, b = (nl.ndarray(t.shape, t.dtype) for _ in range(2))
        power = nisa.activation(dst=b, op=nl.exp, data=x)
        inverse = nisa.reciprocal(dst=a, data=x)
        scaled = nisa.tensor_scalar(dst=b, data=b, op0=nl.multiply, operand0=2.0)
        if is_late:
            assert power.depends_on(inverse) is power
        else:
            inverse.depends_on(power).depends_on(power)
        scaled.depends_on(power, inverse)
        nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
        return stored(a)

    x = np.abs(normal(8, 16)) + 1
    both(kernel, x, is_late=True)
    both(kernel, x, is_late=False)
    late = trace(kernel, x, is_late=True)
    order = [_found(late, kind)[0] for kind in (Reciprocal, Activation, TensorScalar)]
    assert order == sorted(order)
    assert _waits_for(late, Activation, Reciprocal)
    assert _waits_for(trace(kernel, x, is_late=False), Reciprocal, Activation)


def test_edges_hold_in_every_iteration_of_a_loop_and_from_outside_it() -> None:
    def kernel(t: NkiTensor) -> NkiTensor:
        x = nl.load(t)
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        first = nisa.memset(nl.ndarray((1, 4), nl.float32), 0.0, engine=nisa.engine.gpsimd)
        for i in nl.dynamic_range(4):
            a, b = (nl.ndarray((8, 4), t.dtype) for _ in range(2))
            power = nisa.activation(dst=b, op=nl.exp, data=x[:, nl.ds(i, 4)])
            inverse = nisa.reciprocal(dst=a, data=x[:, nl.ds(i, 4)])
            power.depends_on(inverse, first)
            nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
            nisa.dma_copy(out[:, nl.ds(i, 4)], a)
        return out[:, 0:7]

    def whole(t: NkiTensor) -> NkiTensor:
        return stored(nl.load(kernel(t)))

    x = np.abs(normal(8, 8)) + 1
    both(whole, x)
    program = trace(whole, x)
    body = list(walk(program.body))
    power = next(i for i in body if isinstance(i, Activation))
    inverse = next(i for i in body if isinstance(i, Reciprocal))
    assert body.index(inverse) < body.index(power)
    assert {"vector", "gpsimd"} <= {wait.semaphore for wait in power.waits}


def test_transfers_have_names_too() -> None:
    def kernel(t: NkiTensor) -> NkiTensor:
        x, y = (nl.ndarray(t.shape, t.dtype) for _ in range(2))
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(x, t, name="load")
        nisa.dma_compute(y, [t, t], nl.add, name="twice")
        nisa.tensor_tensor(x, x, y, nl.add)
        nisa.dma_copy(out, x, name="store")
        return out

    x = normal(8, 4)
    result = both(nki.jit(kernel).with_schedule([("load", "twice"), ("store", "load")]), x)
    np.testing.assert_allclose(result, 3 * x, rtol=1e-6)
    program = trace(nki.jit(kernel).with_schedule([("load", "twice")]).function, x)
    copies = [i for i in walk(program.body) if isinstance(i, DmaCopy)]
    assert stream_of(next(iter(walk(program.body)))) in {w.semaphore for w in copies[0].waits}


# --- what is refused -----------------------------------------------------------------------------

WRONG = {
    "unknown": ([("power", "nobody")], "0 instructions have that name"),
    "no pair": ([("power",)], "a pair is"),
    "no name": ([("power", [3])], "a pair is"),
    "itself": ([("power", "power")], "cannot wait for itself"),
    "against data": ([("recip", "sum")], "the producer depends on the consumer"),
    "a cycle": ([("recip", "power"), ("power", "recip")], "the producer depends on the consumer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_impossible_orders_are_refused(name: str) -> None:
    edges, text = WRONG[name]
    with pytest.raises(BadSchedule, match=text):
        nki.jit(_kernel).with_schedule(edges)(np.ones((4, 4), np.float32))


def test_a_name_is_that_of_one_instruction() -> None:
    def kernel(t: NkiTensor) -> NkiTensor:
        x = nl.load(t)
        for _ in range(2):
            nisa.reciprocal(x, x, name="twice")
        return stored(x)

    for run in (nki.simulate, lambda k: k):
        with pytest.raises(BadSchedule, match="2 instructions have that name"):
            run(nki.jit(kernel).with_schedule([("twice", "twice")]))(np.ones((4, 4), np.float32))


def test_no_instruction_waits_for_one_in_a_loop_that_it_is_not_in() -> None:
    def kernel(t: NkiTensor) -> NkiTensor:
        x = nl.load(t)
        for _ in nl.dynamic_range(3):
            inside = nisa.reciprocal(x, x)
        nisa.activation(x, nl.exp, x).depends_on(inside)
        return stored(x)

    with pytest.raises(BadSchedule, match="in a loop or branch that the consumer is not in"):
        nki.jit(kernel)(np.ones((4, 4), np.float32))

"""The host beside the reference: the first difference is named, and what is allowed is no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir

import glia
import glia.sim.host.functions as functions
import glia.sim.host.table as table
from glia.base.affine import Affine
from glia.base.dtype import BF16, F32, S32
from glia.base.machine_code.object_cache import ObjectCache
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.sync import RegisterMove
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import TensorReduce, TensorTensor
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Loop, Program
from glia.runtime.errors import ProgramFault, UnknownDevice
from glia.sim.host.check.checked_run import HostDifference, run_checked
from glia.sim.host.check.error_bounds import BoundEvaluator
from glia.sim.host.classes import class_calls
from glia.sim.host.library import CodeLibrary
from glia.sim.host.traced import LoadTerm, TracedArray
from glia.sim.policy import AccessOutOfBounds
from glia.sim.run import run
from support import machine_programs
from support.clean_programs import Clean, clean
from support.isa_bench import Bench

CLEAN = clean()


@pytest.mark.parametrize("given", CLEAN.values(), ids=CLEAN.keys())
def test_a_checked_run_gives_the_bits_of_the_reference(given: Clean) -> None:
    found, wanted = run_checked([given.program], given.inputs), run(given.program, given.inputs)
    for name, array in wanted.items():
        assert found[name].tobytes() == array.tobytes()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Changes the machine code of a function, in a library and with classes of its own."""

    def plant(name: str, change: Any) -> None:
        made = CodeLibrary(ObjectCache(None))
        for module in (
            "check.checked_run", "host_plan", "host_program", "instruction_classes", "support",
            "table", "threads.pool", "classes.single_steps",
        ):  # fmt: skip
            path = f"glia.sim.host.{module}.host_library"
            monkeypatch.setattr(path, lambda: made, raising=False)
        monkeypatch.setattr(class_calls, "_CLASSES", {})
        real = functions.FLOATS[name]

        def changed(lanes: Any, dtype: str, arguments: Any) -> Any:
            return change(lanes, real(lanes, dtype, arguments))

        monkeypatch.setitem(functions.FLOATS, name, changed)

    return plant


def raised_by_bits(count: int) -> Any:
    """The next float of positive ones, `count` times."""

    def change(lanes: Any, value: Any) -> Any:
        word = lanes.of(ir.IntType(32))
        bits = lanes.builder.add(lanes.builder.bitcast(value, word), lanes.i32(count))
        return lanes.builder.bitcast(bits, value.type)

    return change


def test_a_fault_in_a_lowering_is_named_with_instruction_and_element(planted: Any) -> None:
    planted("add", raised_by_bits(3))
    bench = Bench(1, starts=(0,), is_on_host=False)
    a = bench.pattern((4, 5), plain=True, values=np.full((4, 5), 1.5))
    b = bench.pattern((4, 5), plain=True, values=np.ones((4, 5)))
    dst = bench.pattern((4, 5), plain=True)
    multiply, add = (TensorTensor(dst=dst, data1=a, data2=b, op=op) for op in ("multiply", "add"))
    model = glia.load(bench.program((multiply, add)), check=True)
    with pytest.raises(HostDifference) as caught:
        model.run(bench.contents)
    assert caught.value.instruction.op == "add"  # type: ignore[attr-defined]
    assert (caught.value.operand, caught.value.index) == ("dst", (0, 0))
    facts = caught.value.facts
    assert (facts.wanted, facts.ulps, facts.allowed, facts.count) == (2.5, 3, 0, 20)
    assert "tensor_tensor" in str(caught.value)


def test_a_wrong_address_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the table computes is compared too: an offset that forgets its loop reads elsewhere."""
    x = Tile("x", Memory.HBM, F32, 1, 64)
    y = Tile("y", Memory.HBM, F32, 1, 64)
    at = Affine.build({"i": 8}, 0)
    copy = DmaCopy(
        dst=Pattern(y, F32, ((1, 8),), at), src=Pattern(x, F32, ((1, 8),), at), queue="q"
    )
    program = Program(
        "p", "trn2", {"x": x, "y": y}, (Binding("x", x, (64,), F32),),
        (Binding("y", y, (64,), F32),), {}, (Loop("i", 8, (copy,)),),
    )  # fmt: skip
    inputs = {"x": np.arange(64, dtype=np.float32)}
    np.testing.assert_array_equal(run_checked([program], inputs)["y"], inputs["x"])
    terms = table.TableBuilder._terms

    def forgetting(self: Any, expression: Affine) -> list[int]:
        return terms(self, replace(expression, terms=()))

    monkeypatch.setattr(table.TableBuilder, "_terms", forgetting)
    with pytest.raises(HostDifference):
        run_checked([program], inputs)


def test_sums_and_functions_are_allowed_what_is_stated_and_no_more(planted: Any) -> None:
    bench = Bench(2, starts=(0,), is_on_host=False)
    data = bench.pattern((128, 700))
    reduce = TensorReduce(dst=bench.pattern((128, 1)), data=data, op="add")
    exponent = Activation(dst=bench.pattern((128, 700)), data=data, function="gelu")
    left, right = bench.pattern((128, 64), BF16), bench.pattern((128, 40), BF16)
    product = NcMatmul(dst=bench.pattern((64, 40), F32, "PSUM"), stationary=left, moving=right)
    program = bench.program((reduce, exponent, product))
    run_checked([program], bench.contents)
    planted("add", raised_by_bits(4000))
    with pytest.raises(HostDifference) as caught:
        run_checked([program], bench.contents)
    assert 0 < caught.value.facts.allowed < caught.value.facts.ulps


def test_what_was_never_written_and_accesses_outside_are_found() -> None:
    x, t = Tile("x", Memory.HBM, F32, 1, 64), Tile("t", Memory.SBUF, F32, 128, 8)
    here, there = Pattern(t, F32, ((1, 1), (1, 4))), Pattern(x, F32, ((1, 4),))
    bound = Binding("x", x, (64,), F32)
    unread = Program("p", "trn2", {"x": x, "t": t}, (), (bound,), {},
                     (DmaCopy(dst=there, src=here, queue="q"),))  # fmt: skip
    assert glia.load(unread).run({})["x"].shape == (64,)
    with pytest.raises(ProgramFault, match="never written"):
        glia.load(unread, check=True).run({})
    outside = replace(here, offset=Affine.of("$r"))
    body = (RegisterMove(register="r", value=7), DmaCopy(dst=outside, src=there, queue="q"))
    program = replace(unread, inputs=(bound,), outputs=(), body=body)
    with pytest.raises(AccessOutOfBounds, match="elements"):
        run_checked([program], {"x": np.zeros(64, np.float32)})


def test_checking_is_of_the_host_and_cores_that_are_not_joined_are_run_strictly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = machine_programs.matmul(8, 8, 8)
    for device in ("reference", "adversarial"):
        with pytest.raises(UnknownDevice, match="beside the reference"):
            glia.load(program, device=device, check=True)
    strict: list[Any] = []
    monkeypatch.setattr("glia.sim.host.check.checked_run.joined_program", lambda _: None)
    monkeypatch.setattr(
        "glia.sim.host.check.checked_run.run_logical_core",
        lambda *_, policy: strict.append(policy.check_initialized),
    )
    run_checked([program, program], {})
    assert strict == [True]


def test_a_bound_model_is_checked_as_well(planted: Any) -> None:
    planted("add", raised_by_bits(1))
    bench = Bench(1, starts=(0,), is_on_host=False)
    patterns = [bench.pattern((4, 5)) for _ in range(3)]
    add = TensorTensor(dst=patterns[0], data1=patterns[1], data2=patterns[2], op="add")
    model = glia.load(bench.program(add), check=True)
    with pytest.raises(HostDifference):
        model.bind()(*(bench.contents[b.name] for b in model.inputs))


def terms_of(*arrays: np.ndarray) -> tuple[list[TracedArray], BoundEvaluator]:
    """Traced arrays that stand for these, and what evaluates terms of them."""
    loads = [LoadTerm(a.shape, a.dtype, i, ()) for i, a in enumerate(arrays)]
    return [TracedArray(load) for load in loads], BoundEvaluator(lambda t: arrays[t.operand])  # type: ignore[index]


def perturbed(array: np.ndarray, error: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return (array + random.uniform(-1, 1, array.shape) * error).astype(array.dtype)


EXPRESSIONS: dict[str, Any] = {
    "divide": lambda s, x: s / x,
    "multiply": lambda s, x: s * x * s,
    "square": lambda s, x: np.square(s) - x,
    "sqrt": lambda s, x: np.sqrt(np.absolute(s)) + x,
    "exp": lambda s, x: np.exp(s * np.float32(0.1)) * x,
    "log": lambda s, x: np.log(np.absolute(s) + np.float32(0.1)) * x,
    "tanh": lambda s, x: np.tanh(s) - x,
    "compare": lambda s, x: (s > x).astype(np.float32),
    "select": lambda s, x: np.where(s > x, s, -x),
    "round": lambda s, x: np.rint(s) + np.floor(x * s),
    "narrow": lambda s, x: (s * x).astype(ml_dtypes.bfloat16).astype(np.float32),
    "sign": lambda s, x: np.sign(s - x),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_bound_holds_for_sums_in_any_order(name: str) -> None:
    """Values computed from a sum that is as far off as its own bound says stay within theirs."""
    random = np.random.default_rng(4)
    many = random.standard_normal((200, 96)).astype(np.float32)
    x = random.standard_normal(200).astype(np.float32)
    (traced, other), evaluator = terms_of(many, x)
    total = np.add.reduce(traced, axis=1)  # type: ignore[call-overload]
    inside = evaluator.bound(total.term)
    assert (inside.error > 0).all()
    result = evaluator.bound(EXPRESSIONS[name](total, other).term)
    for _ in range(20):
        shifted = perturbed(inside.value, inside.error / 2, random)
        with np.errstate(all="ignore"):
            found = np.asarray(EXPRESSIONS[name](shifted, x), np.float64)
        assert (np.abs(found - result.value) <= result.error).all()


def test_what_is_exact_has_no_bound() -> None:
    a = np.arange(6, dtype=np.float32)
    (x, y), evaluator = terms_of(a, a)
    assert not evaluator.bound((x * y + x / y).term).error.any()
    assert not evaluator.bound(np.maximum.reduce(x, axis=0).term).error.any()  # type: ignore[call-overload]
    integers, of_integers = terms_of(np.arange(6, dtype=np.int32))
    assert S32.numpy == integers[0].dtype
    assert not of_integers.bound((integers[0] * integers[0]).term).error.any()

"""The host executor: machine code made of declared meanings gives what the reference gives."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glia
import glia.sim.host.library as library
import glia.sim.host.packing as packing
import glia.sim.host.product_code as product_code
import glia.sim.watchdog as watchdog
from glia.arch import get_target
from glia.arch.instances import COMPILED_TARGETS
from glia.base.affine import Affine
from glia.base.dtype import BF16, F32
from glia.base.errors import InternalError
from glia.base.machine_code.native import invoke
from glia.base.machine_code.object_cache import ObjectCache
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.gpsimd import AffineSelect, Iota
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.sync import RegisterMove
from glia.isa.instructions.tensor import NcMatmul, NcTranspose
from glia.isa.instructions.vector import Memset, TensorTensor
from glia.isa.kit import INSTRUCTIONS, Instr, reads, writes
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Loop, Program, While
from glia.neff.package import Neff
from glia.runtime.model import OutOfBoundAccess
from glia.sim.host.functions import MOST_OF_SIN, SINGLES, STEPS
from glia.sim.host.host_program import HostProgram, host_report
from glia.sim.host.library import CodeLibrary
from glia.sim.host.packing import block_shape
from glia.sim.host.product_code import ProductCode
from glia.sim.host.support import HostUnsupported
from glia.sim.host.threads.pool import PoolCode
from glia.sim.policy import AccessOutOfBounds, MalformedProgram
from glia.sim.run import run
from glia.sim.watchdog import EndlessLoop, ExecutionTimeout
from support import machine_programs
from support.clean_programs import Clean, clean
from support.isa_bench import Bench, assert_agree

CLEAN = clean()


@pytest.mark.parametrize("given", CLEAN.values(), ids=CLEAN.keys())
def test_a_program_gives_what_the_reference_gives(given: Clean) -> None:
    host = HostProgram(given.program)
    wanted = run(given.program, given.inputs)
    assert_agree(host.run(given.inputs), wanted)
    assert_agree(host.run(given.inputs), wanted)


def test_loops_branches_and_registers_are_followed() -> None:
    program = machine_programs.doubling()
    for start in (1.5, 60.0, 100.0, 0.2):
        inputs = {b.name: np.full(b.shape, start, b.dtype.numpy) for b in program.inputs}
        assert_agree(HostProgram(program).run(inputs), run(program, inputs))


def test_inputs_of_another_run_are_those_of_that_run() -> None:
    program = machine_programs.matmul(256, 128, 512)
    host, random = HostProgram(program), np.random.default_rng(1)
    for _ in range(3):
        inputs = {b.name: random.standard_normal(b.shape, np.float32) for b in program.inputs}
        assert_agree(host.run(inputs), run(program, inputs))


ULPS = {"exp": 1.5, "log": 2.0, "tanh": 2.0, "log1p": 2.0, "sin": 2.0, "arctan": 2.0}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1e-38, -1e-38, 3.4e38, -3.4e38, 1.0, -1.0]


def test_every_function_has_stated_steps() -> None:
    assert {*ULPS} == {*SINGLES} == {*STEPS}


@pytest.mark.parametrize("function", ULPS)
def test_a_function_is_within_the_stated_steps_of_its_value(function: str) -> None:
    """Dense where functions bend, and at every power of two; the value is that of float64."""
    powers = np.ldexp(1.0 + np.arange(16) / 16, np.arange(-149, 128)[:, None]).reshape(-1)
    dense = np.concatenate([np.linspace(-105, 90, 60000), np.linspace(-2, 2, 60000)])
    points = np.concatenate([SPECIAL, powers, -powers, dense]).astype(np.float32)
    points = np.pad(points, (0, -points.size % 128)).reshape(128, -1)
    found = _computed(function, points)
    if function == "sin":
        beyond = np.isfinite(points) & (np.abs(points) > MOST_OF_SIN)
        assert beyond.any() and np.isnan(found[beyond]).all()
        points, found = points[~beyond], found[~beyond]
    with np.errstate(all="ignore"):
        wanted = getattr(np, function)(points.astype(np.float64))
        rounded = wanted.astype(np.float32)
        step = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), 2.0**-149)
        inside = np.isfinite(rounded)
        error = np.abs(found.astype(np.float64) - wanted)[inside] / step[inside]
    np.testing.assert_array_equal(found[~inside], rounded[~inside])
    normal = np.abs(rounded[inside]) > 2.0**-126
    assert error[normal].max() <= ULPS[function]
    assert error.max() <= 2.0


class Applied(Instr, engine="vector", is_abstract=True):
    """A function of NumPy's."""

    dst: Pattern = writes("SBUF")
    data: Pattern = reads("SBUF")
    function: str

    @staticmethod
    def compute(data: np.ndarray, function: str) -> np.ndarray:
        found: np.ndarray = getattr(np, function)(data)
        return found


def test_a_class_tells_zero_from_minus_zero() -> None:
    """Two classes that differ by the sign of an attribute."""
    x = np.float32([[-2.0, 3.0]])
    found = []
    for value in (0.0, -0.0):
        bench = Bench(0, starts=(0,), is_on_host=False)
        data, dst = bench.pattern(x.shape, plain=True, values=x), bench.pattern(x.shape, plain=True)
        select = AffineSelect(
            dst=dst, data=data, steps=(1,), compare_op="less", false_value=value, offset=5
        )
        found.append(HostProgram(bench.program(select)).run(bench.contents)[dst.tile.name])
    signs = [np.signbit(each.reshape(-1)[:2]).tolist() for each in found]
    assert signs == [[False, False], [True, True]]


def _computed(function: str, values: np.ndarray) -> np.ndarray:
    bench = Bench(0, starts=(0,), is_on_host=False)
    data = bench.pattern(values.shape, plain=True, values=values)
    dst = bench.pattern(values.shape, plain=True)
    host = HostProgram(_around(bench, Applied(dst=dst, data=data, function=function)))
    assert not host.table.in_python, host.table.reasons
    return host.run(bench.contents)[dst.tile.name].reshape(values.shape)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (7, 5, 3),
        (128, 17, 33),
        (100, 512, 128),
        (128, 1, 128),
        (90, 6, 31),
        (1, 501, 127),
        (77, 1, 127),
    ],
)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_product_of_any_extents_is_that_of_its_operands(
    shape: tuple[int, int, int], dtype: Any
) -> None:
    m, n, k = shape
    bench = Bench(3, starts=(0,))
    left, right = bench.pattern((k, m), dtype), bench.pattern((k, n), dtype)
    sums = bench.pattern((m, n), F32, "PSUM")
    first = NcMatmul(dst=sums, stationary=left, moving=right)
    second = NcMatmul(dst=sums, stationary=left, moving=right, accumulate=True)
    bench.run((first, second))


@pytest.mark.parametrize("depth", [1, 2, 31, 64])
@pytest.mark.parametrize("is_unit", [True, False])
def test_pairs_of_bfloat16_give_the_product(depth: int, is_unit: bool) -> None:
    """Where the host has them; what follows an operand of odd depth is not read into the sums."""
    shape = (13, 40)
    bench = Bench(depth, starts=(0,))
    left, right = (bench.pattern((depth, n), BF16, plain=is_unit) for n in shape)
    for each in (left, right):
        bench.contents[each.tile.name][depth:] = np.nan
    bench.run(NcMatmul(dst=bench.pattern(shape, F32, "PSUM"), stationary=left, moving=right))


@pytest.mark.parametrize("features", [{}, {"neon": True}, {"avx": True}, {"avx512f": True}])
@pytest.mark.parametrize("shape", [(1, 1, 1), (13, 40, 17), (25, 96, 5)])
def test_every_shape_of_block_gives_the_product(
    features: dict[str, bool], shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks for other processors run here too, as vectors of the width of theirs."""
    for module in (packing, product_code):
        monkeypatch.setattr(module, "host_block", lambda: block_shape(features))
    code = ProductCode(("float32", "rows"), ("float32", "rows"))
    functions = CodeLibrary()
    functions.load([code, PoolCode()])
    m, n, k = shape
    random = np.random.default_rng(0)
    a, b = random.standard_normal((k, m), np.float32), random.standard_normal((k, n), np.float32)
    c = np.ones((m, n), np.float32)
    wanted = a.T @ b + c
    scratch = np.zeros(product_code.scratch_bytes(m, k), np.uint8)
    places = [each.ctypes.data for each in (scratch, a, b, c)]
    blocks = -(-n // block_shape(features).width)
    words = np.array(
        [functions.address(code.name), blocks, blocks, 0, m, n, k, 1, places[0], 0, places[1],
         4 * m, 4, places[2], 4 * n, 4, places[3], 4 * n, 4], np.int64,
    )  # fmt: skip
    invoke(functions.address(PoolCode.name), words.ctypes.data)
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5)


def test_object_code_on_disk_is_used_unless_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_text = library._compiled

    def counted(text: str) -> bytes:
        compiled.append(text)
        return compile_text(text)

    monkeypatch.setattr(library, "_compiled", counted)
    code = ProductCode(("float32", "rows"), ("bfloat16", "none"))
    for change, count in (("", 1), ("", 1), ("cut", 2), ("flip", 3), ("", 3)):
        (path,) = tmp_path.glob("*.o") if compiled else [tmp_path / "none"]
        if change == "cut":
            path.write_bytes(path.read_bytes()[:-1])
        elif change == "flip":
            data = path.read_bytes()
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        functions = CodeLibrary(ObjectCache(tmp_path))
        assert functions.refusal(code) == ""
        functions.load([code])
        assert functions.address(code.name)
        assert len(compiled) == count


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    kept = ObjectCache(tmp_path / "file" / "folder")
    kept.store("x", b"y")
    assert kept.find("x") is None


SHARING = """
import hashlib, os, signal, sys, threading
import numpy as np
from support import machine_programs
from glia.sim.host.host_program import HostProgram
from glia.base.machine_code.object_cache import ObjectCache
from glia.sim.host.threads.pool import lanes

programs = [machine_programs.matmul(256, 256, 512), machine_programs.matmul(128, 384, 1024)]
def run(program):
    random = np.random.default_rng(2)
    inputs = {b.name: random.standard_normal(b.shape, np.float32) for b in program.inputs}
    host = HostProgram(program)
    assert bool(host.table.pool_words) == (lanes() > 1)
    for _ in range(20):
        (found,) = host.run(inputs).values()
    assert np.abs(found - inputs["x"] @ inputs["w"]).max() < 1e-3
    return hashlib.sha256(found.tobytes()).hexdigest()
alone = [run(program) for program in programs]
together = {}
def keep(number):
    together[number] = run(programs[number])
threads = [threading.Thread(target=keep, args=[number]) for number in (0, 1)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert together == dict(enumerate(alone))
child = os.fork()
if not child:
    os._exit(int([run(program) for program in programs] != alone))
assert os.waitpid(child, 0)[1] == 0

host, is_ended = HostProgram(programs[0]), threading.Event()
inputs = {b.name: np.ones(b.shape, np.float32) for b in programs[0].inputs}
def run_on():
    while not is_ended.is_set():
        host.run(inputs)
busy = threading.Thread(target=run_on)
busy.start()
for _ in range(8):  # most of them while the other thread holds the program
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(int(not (host.run(inputs)["y"] == 256).all()))
    assert os.waitpid(child, 0)[1] == 0
is_ended.set()
busy.join()
print(*alone)
"""


def test_any_number_of_threads_gives_the_same_bits_also_together_and_after_a_fork() -> None:
    found, paths = set(), os.pathsep.join(sys.path)
    for threads in "1", "2", "5":
        environment = os.environ | {"GLIA_NUM_THREADS": threads, "PYTHONPATH": paths}
        command = [sys.executable, "-c", SHARING]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


def test_results_that_overlap_operands_wait_until_these_are_read() -> None:
    """NumPy computes a whole result before it stores any of it."""
    bench = Bench(5, starts=(0,))
    tile = bench.pattern((8, 40), plain=True)
    shifted = Pattern(tile.tile, F32, ((1, 8), (1, 30)), Affine.of(3))
    back = Pattern(tile.tile, F32, ((1, 8), (1, 30)), Affine.of(0))
    above = Pattern(tile.tile, F32, ((1, 7), (1, 40)))
    below = Pattern(tile.tile, F32, ((1, 7), (1, 40)), Affine.of(0), Affine.of(1))
    bench.run(TensorTensor(dst=shifted, data1=back, data2=shifted, op="add"))
    bench.run(TensorTensor(dst=back, data1=back, data2=shifted, op="add"))
    bench.run(DmaCopy(dst=below, src=above, queue="q"))


class Strange(Instr, engine="vector", is_abstract=True):
    """What no lowering knows: the greatest element of every partition goes first."""

    dst: Pattern = writes("SBUF")
    data: Pattern = reads("SBUF")

    @staticmethod
    def compute(data: np.ndarray) -> np.ndarray:
        return np.sort(data, axis=-1)[..., ::-1]


def test_an_instruction_without_machine_code_runs_by_its_meaning_and_is_counted() -> None:
    bench = Bench(6, starts=(0,), is_on_host=False)
    data, dst = bench.pattern((4, 9)), bench.pattern((4, 9))
    program = _around(bench, Strange(dst=dst, data=data))
    host = HostProgram(program)
    assert dict(host.table.reasons) == {("strange", "numpy.sort"): 1}
    assert_agree(host.run(bench.contents), run(program, bench.contents))


def test_what_is_summed_and_arrays_that_a_meaning_makes_have_machine_code() -> None:
    bench = Bench(7, starts=(0,), is_on_host=False)
    data, reduced = bench.pattern((128, 40)), bench.pattern((128, 1))
    parts = [Activation(dst=bench.pattern((128, 40)), data=data, function="exp", command=command,
                        reduced=reduced if command == "reduce" else None)
             for command in ("reset_reduce", "reduce")]  # fmt: skip
    rows = Iota(dst=bench.pattern((128, 40)), steps=(3,), counts=(40,), channel_multiplier=7)
    program = bench.program((*parts, rows))
    host = HostProgram(program)
    assert not host.table.in_python
    assert_agree(host.run(bench.contents), run(program, bench.contents))


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_a_decision_that_depends_on_data_is_made_for_each_run(target: str) -> None:
    """Before generation 3 a transpose spreads infinities over a row, which is decided by data."""
    bench = Bench(8, starts=(0,), is_on_host=False)
    data, turned = bench.pattern((100, 60)), bench.pattern((60, 100), F32, "PSUM")
    program = bench.program(NcTranspose(dst=turned, data=data), target=target)
    host = HostProgram(program)
    assert not host.table.in_python
    assert len(host.table.guarded) == (
        not get_target(target).arch.capabilities.has_bit_exact_transpose
    )
    for value in (1.0, np.inf, 2.0, np.nan):
        inputs = bench.contents | {data.tile.name: bench.contents[data.tile.name].copy()}
        inputs[data.tile.name].reshape(-1)[data.offset.constant + 3] = value
        assert_agree(host.run(inputs), run(program, inputs))


class Endless(Strange, is_abstract=True):
    """A meaning that asks until it is told no."""

    @staticmethod
    def compute(data: np.ndarray) -> np.ndarray:
        while (data > 0).any():
            data = data - 1
        return data


def test_a_loop_that_data_ends_is_not_traced_for_ever() -> None:
    bench = Bench(6, starts=(0,), is_on_host=False)
    program = _around(bench, Endless(dst=bench.pattern((4, 9)), data=bench.pattern((4, 9))))
    host = HostProgram(program)
    assert dict(host.table.reasons) == {("endless", "a decision that depends on data"): 1}
    assert_agree(host.run(bench.contents), run(program, bench.contents))


def _around(bench: Bench, instr: Instr) -> Program:
    plain = bench.program(Memset(dst=getattr(instr, "dst"), value=0.0))  # noqa: B009
    body = tuple(instr if isinstance(each, Memset) else each for each in plain.body)
    return replace(plain, body=body)


def test_the_instructions_that_compiled_models_are_made_of_have_machine_code() -> None:
    def layer(x: Any, w: Any) -> Any:
        import jax

        return jax.nn.softmax(jax.nn.gelu(x @ w), axis=-1)

    import jax

    arguments = [np.ones((64, 96), np.float32), np.ones((96, 200), np.float32)]
    model = glia.load(glia.compile(jax.jit(layer).lower(*arguments)), device="host")
    assert model.host_report.in_python == {}
    assert model.host_report.native_share == 1


def _stored_at(offset: Affine, *before: Any) -> Program:
    x = Tile("x", Memory.HBM, F32, 1, 64)
    t = Tile("t", Memory.SBUF, F32, 128, 8)
    copy = DmaCopy(
        dst=Pattern(t, F32, ((1, 1), (1, 4))), src=Pattern(x, F32, ((1, 4),), offset), queue="q"
    )
    bound = Binding("x", x, (64,), F32)
    return Program("p", "trn2", {"x": x, "t": t}, (bound,), (), {}, (*before, copy))


X = {"x": np.arange(64, dtype=np.float32)}


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        *itertools.product(("constant", "loop", "register"), (-1, 61, 1 << 31)),
        ("constant", 1 << 40),
        ("loop", 1 << 40),
    ],
)
def test_an_access_outside_a_tile_is_refused_before_it_is_made(at: int, kind: str) -> None:
    if kind == "constant":
        program = _stored_at(Affine.of(at))
    elif kind == "loop":
        inner = _stored_at(Affine.build({"i": at}, 0))
        program = replace(inner, body=(Loop("i", 2, inner.body),))
    else:
        program = _stored_at(Affine.of("$r"), RegisterMove(register="r", value=at))
    with pytest.raises(AccessOutOfBounds, match="elements"):
        HostProgram(program).run(X)


def test_an_unset_register_is_a_fault_of_the_program() -> None:
    with pytest.raises(MalformedProgram, match="not set"):
        HostProgram(_stored_at(Affine.of("$r"))).run(X)
    endless = While((), "r", ())
    program = replace(_stored_at(Affine.of(0)), body=(endless,))
    with pytest.raises(MalformedProgram, match="not set"):
        HostProgram(program).run(X)


def test_an_endless_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_SIM_MOST_ITERATIONS", "1000")
    program = _stored_at(Affine.of(0))
    start = RegisterMove(register="r", value=1)
    program = replace(program, body=(start, While((), "r", program.body)))
    with pytest.raises(EndlessLoop, match="1000 iterations"):
        HostProgram(program).run(X)


def test_a_time_limit_ends_a_run_between_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "1")
    t = Tile("t", Memory.SBUF, F32, 128, 8)
    clear = Memset(dst=Pattern(t, F32, ((1, 128), (1, 8))), value=0.0)
    body = (Loop("i", 10_000, (Loop("j", 9_000, (clear,)),)),)
    program = Program("p", "trn2", {"t": t}, (), (), {}, body)
    with pytest.raises(Exception, match="execution timeout"):
        HostProgram(program).run({})


def test_a_time_limit_ends_a_run_of_instructions_without_machine_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog.time, "monotonic", iter(range(0, 10_000, 3)).__next__)
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "5")
    bench = Bench(6, starts=(0,), is_on_host=False)
    plain = _around(bench, Strange(dst=bench.pattern((4, 9)), data=bench.pattern((4, 9))))
    strange = [each for each in plain.body if isinstance(each, Strange)]
    program = replace(plain, body=(Loop("i", 100, (*strange,)),))
    with pytest.raises(ExecutionTimeout):
        HostProgram(program).run(bench.contents)


def test_an_interrupt_ends_a_run_and_the_program_runs_again() -> None:
    """A run of minutes, most of it in one native loop; then one that waits for no lock."""
    t = Tile("t", Memory.SBUF, F32, 128, 8)
    clear = Memset(dst=Pattern(t, F32, ((1, 128), (1, 8))), value=0.0)
    body = (Loop("i", 10_000, (Loop("j", 9_000, (clear,)),)),)
    host = HostProgram(Program("p", "trn2", {"t": t}, (), (), {}, body))
    known = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        for _ in range(2):
            timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                host.run({})
    finally:
        signal.signal(signal.SIGINT, known)


@pytest.mark.parametrize("at", [-4, 1 << 30])
def test_a_program_whose_tensors_do_not_fit_is_refused(at: int) -> None:
    """None of these can be in a NEFF."""
    program = _stored_at(Affine.of(0))
    endless = Pattern(program.tiles["t"], F32, ((1, 1), (0, 1 << 62)))
    broken = [
        replace(program, inputs=(replace(program.inputs[0], shape=(4096,)),)),
        replace(program, addresses={"t": at}),
        replace(program, tiles=program.tiles | {"t": Tile("t", Memory.SBUF, F32, 200, 8)}),
        replace(program, body=(Memset(dst=endless, value=1.0),)),
        replace(program, body=(Loop("i", 8, (Loop("i", 4, program.body),)),)),
    ]
    for each in broken:
        with pytest.raises(InternalError):
            HostProgram(each)


def test_a_model_names_the_device_and_keeps_what_it_has_compiled() -> None:
    program = machine_programs.matmul(128, 128, 512)
    model = glia.load(Neff((program,)), device="host")
    inputs = [np.ones(b.shape, np.float32) for b in program.inputs]
    wanted = glia.load(Neff((program,)))(*inputs)
    for _ in range(2):
        np.testing.assert_allclose(model(*inputs)[0], wanted[0])


@pytest.mark.parametrize("name", sorted(INSTRUCTIONS))
def test_tracing_an_instruction_changes_nothing(name: str) -> None:
    """Every example either has calls or says why not."""
    kind = INSTRUCTIONS[name]
    if "example" not in vars(kind):
        pytest.skip("no example of its own")
    report = _report_of(kind.example())
    assert sum(report.native.values()) + sum(report.in_python.values()) == 1


def _report_of(instr: Instr) -> Any:
    tiles = {pattern.tile.name: pattern.tile for pattern in instr.patterns()}
    return host_report([Program("p", "trn3", tiles, (), (), {}, (instr,))])


def test_an_unsupported_host_runs_the_reference_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("glia.sim.host.host_program.why_unsupported", lambda: "it has no LLVM")
    program = machine_programs.matmul(8, 8, 8)
    inputs = [np.ones(b.shape, np.float32) for b in program.inputs]
    model = glia.load(program)
    with pytest.warns(HostUnsupported, match="it has no LLVM") as caught:
        (found,) = model(*inputs)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(found, glia.load(program, device="reference")(*inputs)[0])
    assert "it has no LLVM" in str(model.host_report)


def test_lookups_in_large_tables_read_and_write_those_of_each_run() -> None:
    """Tables that Python looks at are not copied, wherever they lie in a run."""

    def update(table: Any, rows: Any, at: Any) -> Any:
        return table[at] * 2, table.at[at].add(rows)

    import jax

    random = np.random.default_rng(3)
    shape = (400, 64)
    inside, outside = np.array([3, 399, 17, 200], np.int32), np.array([3, 400, 17, 200], np.int32)
    rows = random.standard_normal((4, 64)).astype(np.float32)
    lowered = jax.jit(update).lower(np.zeros(shape, np.float32), rows, inside)
    model = glia.load(glia.compile(lowered))
    assert not model.host_report.in_python
    bound = model.bind(reuses_outputs=True)
    calls = itertools.product((model, bound, model, bound, bound), (outside, inside, outside))
    for called, at in calls:  # an index outside of its table is reported by Python
        table = random.standard_normal(shape).astype(np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutOfBoundAccess)
            looked_up, changed = called(table, rows, at)
        assert bool(model.notifications) == (at is outside)
        valid = at < 400
        np.testing.assert_allclose(looked_up, table[np.minimum(at, 399)] * 2)
        wanted = table.copy()
        wanted[at[valid]] += rows[valid]
        np.testing.assert_allclose(changed, wanted, rtol=1e-6)

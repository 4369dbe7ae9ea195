"""`simulate`: run a kernel on arrays, instruction by instruction, in Python's own process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from glia.arch import Target
from glia.isa.operand import row_major
from glia.machine.ir import Program
from glia.nki.names.dtypes import dtype_name
from glia.nki.names.language_errors import advise
from glia.nki.names.targets import platform_target
from glia.nki.run.frameworks import from_numpy, outside_torch_compile
from glia.nki.run.launch import (
    Launch,
    argument_region,
    bind,
    check_cores,
    check_loops,
    check_output,
    flatten_outputs,
    ranks_of,
    restore_structure,
)
from glia.nki.session.cores import Cores
from glia.nki.session.interpreter import UNWRITTEN, Interpreter, Unwritten
from glia.nki.session.session import running
from glia.nki.source.subset import check_language
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.runtime.errors import UnknownDevice
from glia.sim.run import one_blas_thread, run

DEVICES = ("host", "reference")
WIDE = "NKI_PRECISE_FP"  # 0 holds low-precision tensors in float32


class SimulatedKernel:
    """A kernel simulated on arrays; `[2]` runs it on the two cores of a logical core."""

    def __init__(
        self, kernel: Callable[..., Any], target: str | None, ranks: int, device: str
    ) -> None:
        self._kernel = kernel
        self._target = target
        self._ranks = ranks
        self._device = device

    def __getitem__(self, grid: Any) -> SimulatedKernel:
        ranks = ranks_of(self._kernel, grid)
        return SimulatedKernel(self._kernel, self._target, ranks, self._device)

    @outside_torch_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays of NumPy, PyTorch or JAX; what the kernel returns, in the same kind.

        NumPy and PyTorch arrays that the kernel writes are changed in place.
        """
        launch = bind(self._kernel, args, kwargs)
        target, by_meaning = platform_target(self._target), self._device == "reference"
        return execute(launch, target, self._ranks, by_meaning=by_meaning)


def simulate(kernel: Any, *, target: str | None = None, device: str = "host") -> Callable[..., Any]:
    """A function that takes the kernel's arguments, with arrays for its tensors.

    `kernel` is a function, decorated with nki.jit or not, or launched on a grid as `kernel[2]`. The
    device is `target`, else the environment's, else trn3. Uninitialised memory holds NaN, or 4
    for dtypes without NaN. A machine program takes its inputs in order.

    Kernels that do much work go on as machine code of the host, instruction by instruction as
    before: functions and sums may then differ in the last places from those of NumPy, which
    executes all instructions with `device="reference"`, or GLIA_DEVICE=reference in the
    environment. UnknownDevice for another device.
    """
    if device not in DEVICES:
        raise UnknownDevice(device=device, known=", ".join(DEVICES))
    if isinstance(kernel, Program):
        return _run_program(kernel)
    function = getattr(kernel, "function", kernel)
    return SimulatedKernel(function, target, getattr(kernel, "ranks", 0), device)


def _run_program(program: Program) -> Callable[..., Any]:
    def simulated(*arrays: np.ndarray) -> Any:
        inputs = {b.name: a for b, a in zip(program.inputs, arrays, strict=True)}
        results = run(program, inputs)
        outputs = [results[binding.name] for binding in program.outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return simulated


def execute(
    launch: Launch,
    target: Target,
    ranks: int,
    unwritten: Unwritten = UNWRITTEN,
    *,
    by_meaning: bool = False,
) -> Any:
    """Run a launch eagerly, with one interpreter for each core; fresh memory holds `unwritten`.

    `by_meaning` is as of `Interpreter`.
    """
    check_cores(launch, target, ranks)
    check_language(launch.kernel, launch.bound)
    cores = Cores(max(1, ranks))
    widens_floats = os.environ.get(WIDE, "1") == "0"
    held = {name: writable(array, widens_floats) for name, array in launch.arrays.items()}
    sessions = [
        Interpreter(
            target,
            rank,
            ranks,
            cores=cores,
            widens_floats=widens_floats,
            unwritten=unwritten,
            by_meaning=by_meaning,
        )
        for rank in range(cores.count)
    ]

    def program(session: Interpreter) -> Callable[[], Any]:
        return lambda: _run_core(session, launch, held)

    with one_blas_thread():
        returned = cores.run([program(session) for session in sessions])[0]
    written = {name for session in sessions for name in session.written & held.keys()}
    for name in written:
        write_back(launch.arrays[name], held[name])
    if returned is None and not written:
        text = "returns nothing and writes to none of its arguments: the device needs an output"
        advise(f"kernel {launch.home.name} {text}", launch.home)
    with running(sessions[0]):
        given = flatten_outputs(returned, wrote=True)
        outputs = [check_output(each, launch, is_eager=True) for each in given]
        values = [from_numpy(np.asarray(tensor), launch.framework) for tensor in outputs]
    return restore_structure(returned, values)


def _run_core(session: Interpreter, launch: Launch, held: dict[str, np.ndarray]) -> Any:
    """Run the program of one core; the kernel's return value."""
    with running(session), np.errstate(all="ignore"):
        returned = launch.call({n: tensor_over(session, n, a, launch) for n, a in held.items()})
    check_loops(session, launch)
    if not session.widens_floats:
        session.on_chip.require_fit(may_move=not session.fixes_order)
    return returned


def writable(array: np.ndarray, widens_floats: bool) -> np.ndarray:
    """The array if a kernel can write it in place, else a copy; floats in float32 if widened."""
    name = dtype_name(array.dtype)
    if widens_floats and name is not None and array.dtype.kind not in "iub":
        return np.array(array, dtype=np.float32, order="C")
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    return np.array(array, order="C")


def tensor_over(session: Interpreter, name: str, array: np.ndarray, launch: Launch) -> NkiTensor:
    """The tensor in HBM of an argument, over the memory of the array that holds it."""
    tile = session.bind(name, array)
    dtype = dtype_name(launch.arrays[name].dtype)
    assert dtype is not None
    tensor = NkiTensor((array.size,), dtype, tile, argument_region(session))
    return tensor._derive(row_major(array.shape))


def write_back(array: np.ndarray, held: np.ndarray) -> None:
    """Update an argument in place, unless the kernel wrote to it directly."""
    if held is not array and array.flags.writeable:
        array[...] = held.astype(array.dtype, copy=False)

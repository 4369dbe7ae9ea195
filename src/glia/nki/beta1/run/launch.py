"""Running Beta 1 kernels, simulated or compiled, on any grid."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from glia.arch import Target
from glia.base.suggestions import nearest
from glia.cc_flags import compile_target
from glia.nki.beta1.api.creation import spmd_dim, wrap_core_tensor
from glia.nki.beta1.api.issue import transfer
from glia.nki.beta1.errors import (
    AnnotationMismatch,
    MutableNotReturned,
    NestedGrid,
    OutputNotWritten,
)
from glia.nki.beta1.run.frame import Frame, activate_frame, is_in_kernel
from glia.nki.beta1.run.grid import Programs
from glia.nki.beta1.tensors.buffers import shared_hbm
from glia.nki.beta1.tensors.dtypes import to_numpy_dtype
from glia.nki.beta1.tensors.storage import Storage, write_fill
from glia.nki.beta1.tensors.tensor import Tensor
from glia.nki.names.errors import BadLaunch, IndexNotInTable, NotAnOutput
from glia.nki.names.language_errors import advise
from glia.nki.names.targets import platform_target
from glia.nki.run.frameworks import framework_call, from_numpy, outside_torch_compile
from glia.nki.run.launch import (
    Launch,
    bind,
    check_loops,
    definition_loc,
    flatten_outputs,
    restore_structure,
)
from glia.nki.run.simulate import tensor_over, writable, write_back
from glia.nki.run.trace import Traced, trace_launch
from glia.nki.session.interpreter import UNWRITTEN, Interpreter, Unwritten
from glia.nki.session.session import caller, current, running
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.sim.run import one_blas_thread

# Options of kernel decorators, documented or used by public kernels.
OPTIONS = {
    "additional_compile_opt", "artifacts_dir", "debug_kernel", "disable_allocation_opt",
    "enable_out_of_bound_check", "experimental_flags", "iters", "kernel_return", "mode",
    "n_iterations", "num_execs", "overwrite", "platform_target", "profile_nth", "save_neff_name",
    "save_trace_name", "show_compiler_tb", "warmup", "working_directory",
}  # fmt: skip
MODES = ("auto", "baremetal", "benchmark", "jax", "simulation", "torchxla", "trace")
Grid = tuple[int, ...]


class Kernel:
    """A kernel; `kernel(arrays)` runs it, `kernel[4, 2](arrays)` on a grid of programs.

    Arrays of NumPy, PyTorch and JAX become tensors in HBM, everything else is a constant; what the
    kernel returns comes back in the same kind. Inside another kernel a call is inlined.
    """

    widens_floats = True  # step by step, narrow floats are held in float32

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], grid: Grid = ()
    ) -> None:
        check_options(function, options)
        functools.update_wrapper(self, function)
        self.func = self.function = function
        self.func_name = getattr(function, "__name__", "kernel")
        self.options = options
        self.grid = grid

    @property
    def mode(self) -> str:
        """How a call runs the kernel: auto, simulation, trace, baremetal, jax, torchxla."""
        return str(self.options.get("mode", "auto"))

    @property
    def writes_parameters(self) -> bool:
        """Whether every parameter may be written, as in the first release."""
        return self.mode == "trace"

    def target(self) -> Target:
        """The device: that of platform_target=, else what the environment says, else trn2."""
        return target_of(self.options)

    def __getitem__(self, grid: Any) -> Kernel:
        return type(self)(self.function, self.options, checked_grid(self.function, grid))

    @outside_torch_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays and return what the kernel returns."""
        if is_in_kernel():
            self.check_nested()
            return self.function(*args, **kwargs)
        return self.run(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run outside another kernel: by the framework of the arguments, else simulated."""
        call = framework_call(self, args, kwargs)
        return simulate_call(self, args, kwargs) if call is None else call()

    def interpret(self, launch: Launch, target: Target, unwritten: Unwritten = UNWRITTEN) -> Any:
        """The kernel's result, simulated step by step; unwritten memory holds `unwritten`."""
        return simulate_launch(self, launch, target, unwritten, by_meaning=True)

    @property
    def identity(self) -> tuple[Any, ...]:
        """The cache key of a program besides target and arguments."""
        return self.function, self.grid, self.writes_parameters, self.options.get("platform_target")

    def traced_launch(
        self, launch: Launch, target: Target, *, synchronises: bool = True, **how: Any
    ) -> Traced:
        """The device program of a launch, with all programs of its grid.

        The kernel's platform_target= takes precedence over `target`. As in the Beta 1 compiler,
        independent instructions are reordered to keep engines busy, and tiles that do not fit on
        chip are spilled.
        """
        given = self.options.get("platform_target")
        whole = replace(launch, kernel=_as_current_kernel(self, launch))
        place = platform_target(given) if given else target
        return trace_launch(
            whole, place, 0, synchronises=synchronises, reorders=synchronises, spills=True, **how
        )

    def check_nested(self) -> None:
        """NestedGrid for a kernel with a grid inside another kernel."""
        if self.grid:
            name = getattr(self.function, "__name__", "kernel")
            grid = ", ".join(map(str, self.grid))
            raise NestedGrid(kernel=name, grid=grid, loc=caller())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def check_options(function: Any, options: dict[str, Any]) -> None:
    """BadLaunch for an unknown decorator option or mode."""
    problem = ""
    mode = options.get("mode", "auto")
    for name in options.keys() - OPTIONS:
        problem = f"a kernel has no option {name!r}{nearest(name, sorted(OPTIONS))}"
    if mode not in MODES:
        problem = f"there is no mode {mode!r}{nearest(str(mode), MODES)}"
    if problem:
        home = definition_loc(function)
        raise BadLaunch(kernel=home.name, problem=problem, loc=home)


KERNEL_CLASSES: dict[str, type[Kernel]] = {}  # by mode; benchmark.py registers them


def target_of(options: dict[str, Any]) -> Target:
    """The target of these options, else that of the compiler's flags and environment."""
    return platform_target(options.get("platform_target") or compile_target())


def checked_grid(function: Any, grid: Any) -> Grid:
    """The grid as positive integers; BadLaunch for anything else."""
    dims = tuple(
        spmd_dim(*dim) if isinstance(dim, tuple) else dim
        for dim in (grid if isinstance(grid, tuple | list) else (grid,))
    )
    if dims == (0,):  # as some kernels are launched: one program, that with the number 0
        return (1,)
    if not all(isinstance(dim, int | np.integer) and dim >= 1 for dim in dims):
        home = definition_loc(function)
        raise BadLaunch(
            kernel=home.name,
            problem=f"the grid {grid!r} is not a tuple of positive integers",
            loc=home,
        )
    return tuple(int(dim) for dim in dims)


def jit(func: Callable[..., Any] | None = None, mode: str = "auto", **kwargs: Any) -> Any:
    """Decorate a function as a kernel, as `@nki.jit` or `@nki.jit(mode="simulation")`.

    A kernel keeps its options that are not overridden. Modes baremetal and benchmark are the
    functions of these names.
    """
    if func is None:
        return functools.partial(jit, mode=mode, **kwargs)
    known = getattr(func, "options", {}), getattr(func, "grid", ())
    function = getattr(func, "function", func)
    return KERNEL_CLASSES.get(mode, Kernel)(
        function, {**known[0], "mode": mode, **kwargs}, known[1]
    )


def trace(func: Callable[..., Any] | None = None, grid: Any = (), **kwargs: Any) -> Any:
    """Decorate a function as a kernel of the first release, which writes its parameters."""
    if func is None:
        return functools.partial(trace, grid=grid, **kwargs)
    kernel = jit(func, mode="trace", **kwargs)
    return kernel[grid] if grid else kernel


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel, launched on a grid as `kernel[4, 2]` or not, on arrays; what it returns.

    Arrays of NumPy that the kernel writes are changed in place.
    """
    known = kernel if isinstance(kernel, Kernel) else Kernel(kernel, {"mode": "trace"})
    return simulate_call(known, args, kwargs)


# --- simulation ----------------------------------------------------------------------------------


def simulate_call(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a kernel instruction by instruction, low-precision floats held in float32."""
    return simulate_launch(kernel, bind(kernel.function, args, kwargs), kernel.target(), UNWRITTEN)


def simulate_launch(
    kernel: Kernel,
    launch: Launch,
    target: Target,
    unwritten: Unwritten,
    *,
    by_meaning: bool = False,
) -> Any:
    """Run a launch instruction by instruction; unwritten memory holds `unwritten`.

    `by_meaning` is as of `Interpreter`.
    """
    session = Interpreter(target, widens_floats=True, unwritten=unwritten, by_meaning=by_meaning)
    held = {name: writable(array, widens_floats=True) for name, array in launch.arrays.items()}
    frame = Frame(session, kernel.grid)
    try:
        with one_blas_thread(), running(session), activate_frame(frame), np.errstate(all="ignore"):
            tensors = {
                name: wrap_core_tensor(
                    frame, tensor_over(session, name, array, launch), name, shared_hbm
                )
                for name, array in held.items()
            }
            returned = run_programs(kernel, launch, frame, tensors)
            check_loops(session, launch)
            wrote = any(each.storage.write_count for each in tensors.values())
            given = flatten_outputs(returned, wrote=wrote)
            values = [_host_value(_output_tensor(each, launch)[0], launch) for each in given]
    except IndexNotInTable as fault:
        raise IndexError(fault.message.format(**fault.facts)) from fault
    for name, tensor in tensors.items():
        if tensor.storage.physical_tile(0).tensor.name in session.written:
            write_back(launch.arrays[name], held[name])
    return restore_structure(returned, values)


def run_programs(kernel: Kernel, launch: Launch, frame: Frame, tensors: dict[str, Tensor]) -> Any:
    """Run the programs of the grid one after the other; the result of the first."""
    frame.ignores_allocation = getattr(kernel.function, "ignores_allocation", False)
    _check_annotations(launch, tensors)
    if not kernel.writes_parameters:
        mutable = _mutable_parameters(launch)
        for name, tensor in tensors.items():
            tensor.storage.is_constant = name.partition(".")[0] not in mutable
    positions = [tuple(map(int, each)) for each in np.ndindex(*kernel.grid)]
    call = functools.partial(launch.call, tensors)  # type: ignore[arg-type]  # Beta 1 tensors as arguments
    returned = Programs(frame, positions, call).run()
    if not kernel.writes_parameters:
        _check_returned(launch, tensors, returned[0])
    return returned[0]


def _host_value(value: Tensor, launch: Launch) -> Any:
    """A returned tensor as an array of the caller's framework."""
    held, name = value.contents(), value.dtype_name
    given = held if name == "tfloat32" else held.astype(to_numpy_dtype(name))
    return from_numpy(given, launch.framework)


def _parameter_annotations(launch: Launch) -> dict[str, Any]:
    """The annotation of each parameter, as text where it cannot be evaluated."""
    function = inspect.unwrap(launch.kernel)
    try:
        return inspect.get_annotations(function, eval_str=True)
    except NameError:
        return inspect.get_annotations(function)


def _mutable_parameters(launch: Launch) -> set[str]:
    found = set()
    for name, kind in _parameter_annotations(launch).items():
        text = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
        if text.split("[")[0].rpartition(".")[2] in ("mutable_tensor", "mutable"):
            found.add(name)
    return found


def _check_annotations(launch: Launch, tensors: dict[str, Tensor]) -> None:
    for name, kind in _parameter_annotations(launch).items():
        expected = getattr(kind, "shape", None)
        tensor = tensors.get(name)
        if tensor is None or not isinstance(expected, tuple):
            continue
        if all(isinstance(n, int) for n in expected) and expected != tensor.shape:
            raise AnnotationMismatch(
                name=name, shape=list(tensor.shape), expected=list(expected), loc=launch.home
            )


def _check_returned(launch: Launch, tensors: dict[str, Tensor], returned: Any) -> None:
    storages = [each.storage for each in flatten_outputs(returned) if isinstance(each, Tensor)]
    for name in _mutable_parameters(launch):
        tensor = tensors.get(name)
        if tensor is not None and tensor.storage not in storages:
            raise MutableNotReturned(name=name, loc=launch.home)
    given = [each.storage for each in tensors.values()]
    for storage in storages:
        if storage not in given and not storage.is_filled:
            raise OutputNotWritten(name=storage.name, loc=launch.home)


# --- compiled ------------------------------------------------------------------------------------


def trace_call(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    """The machine program of a kernel for these arguments, with the dtypes of the device."""
    return kernel.traced_launch(bind(kernel.function, args, kwargs), kernel.target())


def _as_current_kernel(kernel: Kernel, launch: Launch) -> Callable[..., Any]:
    """The whole grid as one kernel of the current NKI."""

    def run_grid(*args: Any, **kwargs: Any) -> Any:
        frame = Frame(current(launch.home.name), kernel.grid)
        with activate_frame(frame):
            given = launch.bound.signature.bind(*args, **kwargs).arguments
            tensors = {
                name: wrap_core_tensor(frame, value, name, shared_hbm)
                for name, value in _core_tensors(given)
            }
            returned = run_programs(kernel, launch, frame, tensors)
            outputs = [
                _output_tensor(each, launch)[1] for each in flatten_outputs(returned, wrote=True)
            ]
            return restore_structure(returned, outputs)

    return run_grid


def _core_tensors(arguments: dict[str, Any]) -> list[tuple[str, NkiTensor]]:
    found = []
    for name, value in arguments.items():
        values = value if isinstance(value, tuple | list) else [value]
        for position, each in enumerate(values):
            if isinstance(each, NkiTensor):
                path = name if each is value else f"{name}.{position}"
                found.append((path, each))
    return found


def _output_tensor(value: Any, launch: Launch) -> tuple[Tensor, NkiTensor]:
    """A returned tensor, and its core tensor, which is all of one in shared HBM.

    A tile, or a part of a tensor, is copied there with a KernelAdvice; NotAnOutput for others.
    """
    if not isinstance(value, Tensor):
        text = f"a {type(value).__name__}"
        raise NotAnOutput(kernel=launch.home.name, value=text, loc=launch.home)
    value.require_scope(launch.home)
    view = _whole_core_tensor(value)
    if view is None:
        text = f"{value.name} of shape {value.shape} in {value.region.value}"
        advise(f"kernel {launch.home.name} returns {text}: return all of a tensor in shared_hbm",
               launch.home)  # fmt: skip
        frame, dtype = value.frame, value.dtype_name
        name = frame.unique_name("", "output")
        copied = Tensor.of_storage(Storage(frame, name, shared_hbm, dtype, (), value.shape))
        transfer(frame, copied.write_view(), value.read_view())
        value, view = copied, _whole_core_tensor(copied)
    assert view is not None
    view.buffer = shared_hbm.region
    return value, view


def _whole_core_tensor(value: Tensor) -> NkiTensor | None:
    """The core tensor of all of a tensor in HBM, None for tiles and parts."""
    if value.is_on_chip:
        return None
    found = value.physical_tile()
    write_fill(value.frame, found)
    view = value.view_of(found.tensor)
    return view if view.is_whole else None

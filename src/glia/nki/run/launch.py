"""Binding of a kernel's arguments: arrays become tensors of the session, the rest constants."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.arch import Target
from glia.base.loc import Loc
from glia.nki.names.dtypes import dtype_name
from glia.nki.names.enums import MemoryRegion
from glia.nki.names.errors import BadLaunch, NotAnOutput, NotATensor, NotInNki
from glia.nki.names.language_errors import advise
from glia.nki.run.frameworks import framework_of, rebuild, to_numpy
from glia.nki.session.session import Session, current
from glia.nki.tensors.nki_tensor import NkiTensor

NEAREST_DTYPES = {"f": "float32", "i": "int32", "u": "uint32"}  # by NumPy's kind


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments bound: `arrays` by the name of their parameter."""

    kernel: Callable[..., Any]
    home: Loc
    bound: inspect.BoundArguments
    arrays: dict[str, np.ndarray]
    given: dict[str, Any]  # the arrays as they were given
    framework: str

    def call(self, tensors: dict[str, NkiTensor]) -> Any:
        """Run the kernel's Python with tensors in the place of the arrays."""
        bound = inspect.BoundArguments(self.bound.signature, dict(self.bound.arguments))
        for path, tensor in tensors.items():
            _replace_argument(bound.arguments, path, tensor)
        return self.kernel(*bound.args, **bound.kwargs)


def bind(kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    """Bind arguments; BadLaunch when they do not fit, NotATensor for unsupported arrays."""
    home = definition_loc(kernel)
    try:
        bound = _signature(kernel).bind(*args, **kwargs)
    except TypeError as problem:
        raise BadLaunch(kernel=home.name, problem=str(problem), loc=home) from problem
    given = dict(_arrays(bound.arguments))
    frameworks = {framework_of(value) for value in given.values()} - {"numpy"}
    framework = frameworks.pop() if frameworks else "numpy"
    arrays = {
        name: _require_tensor_array(name, to_numpy(value), home) for name, value in given.items()
    }
    return Launch(kernel, home, bound, arrays, given, framework or "numpy")


@functools.lru_cache(maxsize=1024)
def _signature(kernel: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(kernel)


def _arrays(arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path, array) of every array, also those in tuples and lists: `x`, `weights.0`, ..."""
    for name, value in arguments.items():
        if framework_of(value):
            yield name, value
        elif isinstance(value, tuple | list) and any(framework_of(each) for each in value):
            for position, each in enumerate(value):
                if framework_of(each):
                    yield f"{name}.{position}", each


def _replace_argument(arguments: dict[str, Any], path: str, tensor: NkiTensor) -> None:
    name, _, position = path.partition(".")
    if not position:
        arguments[name] = tensor
        return
    values = list(arguments[name])
    values[int(position)] = tensor
    arguments[name] = rebuild(arguments[name], values)


def _require_tensor_array(name: str, array: np.ndarray, home: Loc) -> np.ndarray:
    if dtype_name(array.dtype) is None:
        cure = f"convert it to {NEAREST_DTYPES.get(array.dtype.kind, 'a dtype of nki.language')}"
    elif not array.ndim:
        cure = "give a number of Python, or an array with dimensions"
    elif not array.size:
        cure = "give at least one element in each dimension"
    else:
        return array
    raise NotATensor(name=name, dtype=array.dtype, shape=array.shape, cure=cure, loc=home)


def definition_loc(kernel: Callable[..., Any]) -> Loc:
    """The file, line and name of a kernel's definition."""
    function: Any = inspect.unwrap(kernel)
    while hasattr(function, "func"):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None:
        return Loc(name=getattr(kernel, "__name__", "kernel"))
    return Loc(code.co_filename, code.co_firstlineno, code.co_name)


def program_key(launch: Launch, *others: Any) -> Any:
    """The cache key of a program: arguments and `others`; None when one is unhashable."""
    parts = [(name, _key_part(value)) for name, value in launch.bound.arguments.items()]
    return None if any(part is None for _, part in parts) else (others, tuple(parts))


def _key_part(value: Any) -> Any:
    """A shape and dtype for an array, the value itself for a constant."""
    if framework_of(value):
        return str(value.dtype), tuple(value.shape)
    if isinstance(value, tuple | list):
        inner = [_key_part(each) for each in value]
        return None if None in inner else (type(value), tuple(inner))
    if isinstance(value, dict):
        return _key_part([*value.items()])
    try:
        hash(value)
    except TypeError:
        return None
    return type(value), value


def ranks_of(kernel: Callable[..., Any], grid: Any) -> int:
    """The number of cores of a grid; BadLaunch unless it is 1 or 2."""
    extents = grid if isinstance(grid, tuple | list) else (grid,)
    if len(extents) != 1 or isinstance(extents[0], bool) or extents[0] not in (1, 2):
        home = definition_loc(kernel)
        problem = f"the grid [{', '.join(map(str, extents))}] is neither [1] nor [2]"
        raise BadLaunch(kernel=home.name, problem=problem, loc=home)
    return int(extents[0])


def check_cores(launch: Launch, target: Target, ranks: int) -> None:
    """BadLaunch when the target has no logical core of `ranks` physical cores."""
    if ranks > 1 and ranks not in target.lncs:
        problem = f"{target.name} has no logical cores of {ranks} physical cores"
        raise BadLaunch(kernel=launch.home.name, problem=problem, loc=launch.home)


def flatten_outputs(returned: Any, *, wrote: bool = False) -> list[Any]:
    """The returned values of a kernel as a list; empty where it only `wrote` its arguments."""
    if returned is None and wrote:
        return []
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def restore_structure(returned: Any, values: list[Any]) -> Any:
    """Values in the structure of the kernel's return value: a tuple, a list or one value."""
    if isinstance(returned, tuple):
        return tuple(values)
    if isinstance(returned, list):
        return values
    return values[0] if values else None


def argument_region(session: Session) -> MemoryRegion:
    """The buffer of argument tensors, as in the simulator's guide: nl.hbm.

    It is shared HBM where two cores run the kernel.
    """
    return MemoryRegion.shared_hbm if session.ranks > 1 else MemoryRegion.private_hbm


def check_output(value: Any, launch: Launch, *, is_eager: bool) -> NkiTensor:
    """`value` if the caller can read it; else NotAnOutput, or ExpiredTensor out of its scope.

    A compiled program gives whole tensors of shared HBM and arguments; a simulated one any tensor
    in HBM, and a warning where the compiled would not.
    """
    home = launch.home
    if not isinstance(value, NkiTensor):
        raise NotAnOutput(kernel=home.name, value=f"a {type(value).__name__}", loc=home)
    is_known = value.buffer is MemoryRegion.shared_hbm or value.tile.name in launch.arrays
    is_shared = is_known and value.is_whole
    text = f"{value.name} of shape {value.shape} in {value.buffer.value}"
    if value.is_on_chip or not (is_eager or is_shared):
        raise NotAnOutput(kernel=home.name, value=text, loc=home)
    if not is_shared:
        advise(f"kernel {home.name} returns {text}: the device takes whole shared_hbm only", home)
    current("a kernel").require_scope([value.tile])
    return value


def check_loops(session: Session, launch: Launch) -> None:
    """NotInNki when Python left a device loop before its end."""
    if session.left_early:
        feature = "leaving a loop on the device by break or return"
        raise NotInNki(feature=feature, loc=session.left_early[0])
    if session.open_while() is not None:
        feature = "leaving a `while register` loop by break or return"
        raise NotInNki(feature=feature, loc=launch.home)

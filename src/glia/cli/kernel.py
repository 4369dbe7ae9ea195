"""Arguments of the commands on a kernel: `glia profile` and `glia check`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.base.dtype import DTYPES, DType
from glia.base.suggestions import nearest
from glia.cli.errors import BadCommandLine
from glia.cli.values import naming_option
from glia.machine.passes.on_chip_space import OnChipMemoryFull
from glia.nki.run.check_kernel import Report, check_kernel
from glia.nki.run.kernel import as_kernel
from glia.nki.run.kernel_file import NoSuchKernel, attribute_exceptions, load_kernel
from glia.nki.run.testing import profile_kernel
from glia.profile.report import Profile
from glia.runtime.arrays import random_array, read_array

_TENSOR = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,\s]+)\]")
_DTYPES = DTYPES | {str(dtype.numpy): dtype for dtype in DTYPES.values()}  # f32 and float32
MakeArray = Callable[[DType, tuple[int, ...]], np.ndarray]


def profile_kernel_file(
    address: str,
    arguments: tuple[str, ...],
    target: str,
    grid: str = "",
    *,
    as_written: bool = False,
) -> tuple[Profile, float | None]:
    """Profile the kernel at `FILE.py::NAME`; the file is executed.

    Then the microseconds that it takes as written, where the back end has changed it.

    `arguments` are NAME=DTYPE[N,N] or NAME=FILE.npy for tensors and NAME=VALUE for constants.
    BadCommandLine when there is no such file or kernel, or an argument is of none of these forms.
    """
    parser = _KernelCommandLine("glia profile", _zero_stride_array)
    kernel = parser.kernel(address, grid)
    values = parser.arguments(arguments, kernel)
    with attribute_exceptions(address):
        report = profile_kernel(kernel, target=target, as_written=as_written, **values)
        if as_written or not report.notes:
            return report, None
        with suppress(OnChipMemoryFull):  # as written it may not fit
            written = profile_kernel(kernel, target=target, as_written=True, **values)
            return report, written.latency_us
        return report, None


def check_kernel_file(
    address: str, arguments: tuple[str, ...], seed: int, grid: str, **options: Any
) -> Report:
    """Check the kernel at `FILE.py::NAME`; tensors given by dtype and shape are filled from `seed`.

    `arguments` and errors as of `profile_kernel_file`, options as of `check_kernel`.
    """
    generator = np.random.default_rng(seed)
    parser = _KernelCommandLine(
        "glia check", lambda dtype, shape: random_array(dtype, shape, generator)
    )
    kernel = parser.kernel(address, grid)
    values = parser.arguments(arguments, kernel)
    with attribute_exceptions(address):
        return check_kernel(kernel, **options, **values)


@dataclass(frozen=True)
class _KernelCommandLine:
    """Parses address, grid and arguments of a kernel; errors are BadCommandLine.

    `make_array` makes the tensor of an argument given by dtype and shape.
    """

    command: str
    make_array: MakeArray

    def kernel(self, address: str, grid: str) -> Any:
        """The kernel at `FILE.py::NAME`, with its launch grid where `grid` is not empty."""
        try:
            kernel = load_kernel(address)
        except NoSuchKernel as problem:
            raise self._error(str(problem)) from problem
        if not grid:
            return kernel
        extents = grid.split(",")
        if not all(extent.isdecimal() and int(extent) for extent in extents):
            raise self._error(f"--grid {grid!r} is not of the form N or N,N")
        return as_kernel(kernel)[tuple(map(int, extents))]

    def arguments(self, texts: tuple[str, ...], kernel: Any) -> dict[str, Any]:
        """The values of --arg by parameter name."""
        values: dict[str, Any] = {}
        for text in texts:
            name, value = self._argument(text)
            if name in values:
                raise self._error(f"--arg {name} is given twice")
            values[name] = value
        self._check_names(values, kernel)
        return values

    def _check_names(self, values: dict[str, Any], kernel: Any) -> None:
        """BadCommandLine for a name that is no parameter of the kernel."""
        parameters = inspect.signature(kernel).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return
        known = [each.name for each in parameters]
        for name in values.keys() - set(known):
            listed = f"; it takes {', '.join(known)}" if known else ""
            hint = nearest(name, known) or listed
            raise self._error(f"the kernel has no parameter {name!r}{hint}")

    def _argument(self, text: str) -> tuple[str, Any]:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise self._error(f"--arg {text!r} is not of the form NAME=DTYPE[N,N] or NAME=VALUE")
        tensor = _TENSOR.fullmatch(value.strip())
        if tensor is not None:
            return name, self._tensor(text, tensor["dtype"], tensor["shape"])
        if value.endswith(".npy"):
            with naming_option(f"--arg {name}"):
                return name, read_array(value)
        try:
            return name, ast.literal_eval(value)
        except (ValueError, SyntaxError):
            dtype, bracket, _ = value.partition("[")
            if bracket and dtype.strip() in _DTYPES:
                raise self._error(f"--arg {text!r} is not of the form NAME=DTYPE[N,N]") from None
            return name, value

    def _tensor(self, text: str, dtype: str, shape: str) -> np.ndarray:
        if dtype not in _DTYPES:
            meant = nearest(dtype, _DTYPES)
            raise self._error(f"--arg {text!r}: {dtype} is no dtype, as s32 or int32 is{meant}")
        extents = tuple(int(extent) for extent in shape.replace(",", " ").split())
        return self.make_array(_DTYPES[dtype], extents)

    def _error(self, problem: str) -> BadCommandLine:
        return BadCommandLine(problem=problem, command=self.command)


def _zero_stride_array(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """An array of one element of memory: profiling traces the kernel and reads no values."""
    return np.broadcast_to(np.zeros((), dtype.numpy), shape)

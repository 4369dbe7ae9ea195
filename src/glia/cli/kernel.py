"""Commands about a kernel in a Python file, `kernel.py::name`: its time, and its faults."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.base.dtype import DTYPES, DType
from glia.base.errors import CompileError
from glia.base.loc import Loc
from glia.base.suggestions import nearest
from glia.cli.arrays import random_array, read_array
from glia.cli.errors import BadCommandLine, KernelRaised

if TYPE_CHECKING:
    from glia.nki.run.check_kernel import Report
    from glia.profile.report import Profile

SEPARATOR = "::"
MOST_LINES = 12
_PACKAGE = Path(__file__).parents[1]
_TENSOR = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,\s]+)\]")
_BY_NAME = DTYPES | {str(dtype.numpy): dtype for dtype in DTYPES.values()}  # f32 and float32
MakeArray = Callable[[DType, tuple[int, ...]], np.ndarray]


def profile_kernel_file(
    place: str, arguments: tuple[str, ...], target: str, grid: str = ""
) -> Profile:
    """Profile the kernel at `FILE.py::NAME`, whose file is run to get it.

    `arguments` are NAME=DTYPE[N,N] or NAME=FILE.npy for tensors and NAME=VALUE for constants.
    BadCommandLine when there is no such file or kernel, or an argument is of none of these forms.
    """
    from glia.nki.run.testing import profile_kernel

    reader = _Reader("glia profile", _without_memory)
    kernel = reader.kernel(place, grid)
    given = reader.arguments(arguments, kernel)
    with _blaming(place):
        return profile_kernel(kernel, target=target, **given)


def check_kernel_file(
    place: str, arguments: tuple[str, ...], seed: int, grid: str, **options: Any
) -> Report:
    """Check the kernel at `FILE.py::NAME`; tensors are filled from the seed where no file is given.

    Arguments, options and errors as of `profile_kernel_file` and `check_kernel`.
    """
    from glia.nki.run.check_kernel import check_kernel

    generator = np.random.default_rng(seed)
    reader = _Reader("glia check", lambda dtype, shape: random_array(dtype, shape, generator))
    kernel = reader.kernel(place, grid)
    given = reader.arguments(arguments, kernel)
    with _blaming(place):
        return check_kernel(kernel, **options, **given)


@dataclass(frozen=True)
class _Reader:
    """Reads a kernel and its arguments for a command; `make` fills a tensor without a file."""

    command: str
    make: MakeArray

    def kernel(self, place: str, grid: str) -> Any:
        """What FILE.py calls NAME, on the grid if one is given."""
        path, _, name = place.partition(SEPARATOR)
        if not Path(path).is_file():
            raise self._wrong(f"there is no file {path}")
        spec = importlib.util.spec_from_file_location(f"kernel_file_{Path(path).stem}", path)
        if spec is None or spec.loader is None:
            raise self._wrong(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module  # dataclasses look their module up
        try:
            spec.loader.exec_module(module)
        except Exception as problem:
            text = f"{path} cannot be run: {type(problem).__name__}: {problem}"
            raise self._wrong(text) from problem
        kernel = getattr(module, name, None)
        if not callable(kernel):
            raise self._wrong(f"{path} has no kernel {name!r}{_kernels_of(path, name, module)}")
        return self._launched(kernel, grid) if grid else kernel

    def arguments(self, texts: tuple[str, ...], kernel: Any) -> dict[str, Any]:
        """The arguments by name, each of which is a parameter of the kernel."""
        given: dict[str, Any] = {}
        for text in texts:
            name, value = self._argument(text)
            if name in given:
                raise self._wrong(f"--arg {name} is given twice")
            given[name] = value
        parameters = inspect.signature(kernel).parameters.values()
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            known = [each.name for each in parameters]
            for name in given.keys() - set(known):
                taken = f"; it takes {', '.join(known)}" if known else ""
                meant = nearest(name, known) or taken
                raise self._wrong(f"the kernel has no parameter {name!r}{meant}")
        return given

    def _launched(self, kernel: Any, grid: str) -> Any:
        from glia.nki.run.kernel import as_kernel

        extents = grid.split(",")
        if not all(extent.isdecimal() and int(extent) for extent in extents):
            raise self._wrong(f"--grid {grid!r} is not of the form N or N,N")
        return as_kernel(kernel)[tuple(map(int, extents))]

    def _argument(self, text: str) -> tuple[str, Any]:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise self._wrong(f"--arg {text!r} is not of the form NAME=DTYPE[N,N] or NAME=VALUE")
        tensor = _TENSOR.fullmatch(value.strip())
        if tensor is not None:
            return name, self._tensor(text, tensor["dtype"], tensor["shape"])
        if value.endswith(".npy"):
            return name, read_array(value)
        try:
            return name, ast.literal_eval(value)
        except (ValueError, SyntaxError):
            dtype, bracket, _ = value.partition("[")
            if bracket and dtype.strip() in _BY_NAME:
                raise self._wrong(f"--arg {text!r} is not of the form NAME=DTYPE[N,N]") from None
            return name, value

    def _tensor(self, text: str, dtype: str, shape: str) -> np.ndarray:
        if dtype not in _BY_NAME:
            raise self._wrong(f"--arg {text!r}: {dtype} is none of {', '.join(_BY_NAME)}")
        extents = tuple(int(extent) for extent in shape.replace(",", " ").split())
        return self.make(_BY_NAME[dtype], extents)

    def _wrong(self, problem: str) -> BadCommandLine:
        return BadCommandLine(problem=problem, command=self.command)


@contextmanager
def _blaming(place: str) -> Iterator[None]:
    """Turn an exception that the kernel's own file raises, or what it calls, into KernelRaised."""
    path, _, name = place.partition(SEPARATOR)
    try:
        yield
    except CompileError:
        raise
    except Exception as error:
        loc = _raised_at(error, Path(path).resolve())
        if loc is None:
            raise
        kind, text = type(error).__name__, str(error) or "without a message"
        raise KernelRaised(kernel=name, kind=kind, text=text, loc=loc) from error


def _raised_at(error: Exception, path: Path) -> Loc | None:
    """The line of a file that raised, itself or in a library; None where glia did."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if file == path:
            return Loc(frame.filename, frame.lineno or 0, frame.name)
        if _PACKAGE in file.parents and _PACKAGE / "kernels" not in file.parents:
            return None
    return None


def _kernels_of(path: str, name: str, module: ModuleType) -> str:
    """The kernel that a misspelt name is most like; without a name all that the file has."""
    from glia.nki.beta1.run.launch import Kernel as Beta1Kernel
    from glia.nki.run.kernel import Kernel

    held = vars(module).items()
    kernels = [known for known, value in held if isinstance(value, Kernel | Beta1Kernel)]
    if name or not kernels:
        return nearest(name, kernels)
    return "; name one: " + ", ".join(f"{path}{SEPARATOR}{known}" for known in kernels)


def _without_memory(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """An array that takes no memory: a kernel that is timed is traced, not run."""
    return np.broadcast_to(np.zeros((), dtype.numpy), shape)


def path_text(found: Profile) -> str:
    """The critical path, a source line to a line."""
    from glia.profile.critical_path import critical_path

    rows = critical_path(found.timing)
    lines = ["critical path, by source line:"]
    for row in rows[:MOST_LINES]:
        place = f"{Path(row.loc.file).name}:{row.loc.line}"
        source = linecache.getline(row.loc.file, row.loc.line).strip()[:60]
        lines.append(
            f"  {row.share:6.1%} {row.ns / 1000:10.2f} us {row.track:12} {row.opcode:24} "
            f"{place:28} {source}"
        )
    if len(rows) > MOST_LINES:
        rest = sum(row.share for row in rows[MOST_LINES:])
        lines.append(f"  {rest:6.1%} on {len(rows) - MOST_LINES} more lines")
    return "\n".join(lines)

"""`glia profile kernel.py::name`: the time of a kernel in a Python file, by its source lines."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.base.dtype import DTYPES
from glia.cli.errors import BadCommandLine

if TYPE_CHECKING:
    from glia.profile.report import Profile

SEPARATOR = "::"
COMMAND = "glia profile"
MOST_LINES = 12
_TENSOR = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,\s]+)\]")


def profile_kernel_file(place: str, arguments: tuple[str, ...], target: str) -> Profile:
    """Profile the kernel at `FILE.py::NAME`, whose file is run to get it.

    `arguments` are NAME=DTYPE[N,N] for tensors and NAME=VALUE for constants. BadCommandLine when
    there is no such file or kernel, or an argument is of neither form.
    """
    from glia.nki.testing import profile_kernel

    kernel = load_kernel(place)
    given = dict(_argument(text) for text in arguments)
    return profile_kernel(kernel, target=target, **given)


def load_kernel(place: str) -> Any:
    """What FILE.py calls NAME."""
    path, _, name = place.partition(SEPARATOR)
    if not Path(path).is_file():
        raise BadCommandLine(problem=f"there is no file {path}", command=COMMAND)
    spec = importlib.util.spec_from_file_location(f"kernel_file_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise BadCommandLine(problem=f"{path} is not a Python file", command=COMMAND)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        text = f"{path} cannot be run: {type(problem).__name__}: {problem}"
        raise BadCommandLine(problem=text, command=COMMAND) from problem
    kernel = getattr(module, name, None)
    if not callable(kernel):
        raise BadCommandLine(problem=f"{path} has no kernel {name!r}", command=COMMAND)
    return kernel


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        problem = f"--arg {text!r} is not of the form NAME=DTYPE[N,N] or NAME=VALUE"
        raise BadCommandLine(problem=problem, command=COMMAND)
    tensor = _TENSOR.fullmatch(value.strip())
    if tensor is not None:
        return name, _tensor(text, tensor["dtype"], tensor["shape"])
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _tensor(text: str, dtype: str, shape: str) -> np.ndarray:
    """An array of the shape and dtype that takes no memory: a kernel is traced, not run."""
    if dtype not in DTYPES:
        problem = f"--arg {text!r}: {dtype} is none of {', '.join(DTYPES)}"
        raise BadCommandLine(problem=problem, command=COMMAND)
    extents = [int(extent) for extent in shape.replace(",", " ").split()]
    return np.broadcast_to(np.zeros((), DTYPES[dtype].numpy), extents)


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

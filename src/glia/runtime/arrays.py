"""Arrays in files, .npy and .npz: reading, writing, and comparison with a reference."""

from __future__ import annotations

import io
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glia.base.dtype import DType
from glia.base.files import write_atomically
from glia.base.gzip_members import inflation_limit
from glia.machine.ir import Binding
from glia.runtime.errors import BadArrayFile

_HEADER_BYTES = 1 << 16
_LARGEST_ELEMENT = 16
_UNREADABLE = (
    OSError, ValueError, EOFError, KeyError, IndexError, MemoryError, OverflowError, SyntaxError,
    RuntimeError, tokenize.TokenError, struct.error,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip  # NumPy evaluates a header's literal, zipfile decompresses with any of three


def read_array(path: str) -> np.ndarray:
    """The array in a .npy file, memory-mapped; BadArrayFile when there is none."""
    with _array_file_errors(path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise BadArrayFile(
            path=path, reason="it is a .npz file; a .npy file, which holds one array, is needed"
        )
    return array


def read_arrays(path: str) -> list[np.ndarray]:
    """All arrays of a .npz file in their order, or the one of a .npy file."""
    with _array_file_errors(path):
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            return [archive]
        with archive:
            assert archive.zip is not None
            unpacked_bytes = sum(member.file_size for member in archive.zip.infolist())
            if unpacked_bytes > inflation_limit(Path(path).stat().st_size):
                raise ValueError(f"it would be {unpacked_bytes} bytes when unpacked")
            return [archive[name] for name in archive.files]


def read_references(path: str, outputs: Sequence[Binding]) -> dict[str, np.ndarray]:
    """The reference of every output from a .npz file, by name, or by position (arr_0, ...)."""
    with _array_file_errors(path):
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it is not a .npz file")
        with archive:
            return dict(_references(archive, path, outputs))


def _references(
    archive: np.lib.npyio.NpzFile, path: str, outputs: Sequence[Binding]
) -> Iterator[tuple[str, np.ndarray]]:
    for position, binding in enumerate(outputs):
        keys = [key for key in (binding.name, f"arr_{position}") if key in archive.files]
        if not keys:
            raise BadArrayFile(path=path, reason=f"it has no array {binding.name!r}")
        elements = int(np.prod(binding.shape, dtype=object))
        assert archive.zip is not None
        unpacked_bytes = archive.zip.getinfo(f"{keys[0]}.npy").file_size
        if unpacked_bytes > elements * _LARGEST_ELEMENT + _HEADER_BYTES:
            raise BadArrayFile(
                path=path, reason=f"array {keys[0]!r} is too large: {unpacked_bytes} bytes"
            )
        array = archive[keys[0]]
        if array.shape != binding.shape:
            reason = f"array {keys[0]!r} has shape {list(array.shape)}, not {list(binding.shape)}"
            raise BadArrayFile(path=path, reason=reason)
        is_raw = array.dtype.kind == "V" and array.itemsize == binding.dtype.numpy.itemsize
        yield binding.name, array.view(binding.dtype.numpy) if is_raw else array


@contextmanager
def _array_file_errors(path: str) -> Iterator[None]:
    """Turn what NumPy and zipfile raise of a file into BadArrayFile."""
    try:
        yield
    except _UNREADABLE as problem:
        lines = str(problem).splitlines() or [f"it is damaged ({type(problem).__name__})"]
        reason = getattr(problem, "strerror", None) or lines[0][:200]
        raise BadArrayFile(path=path, reason=reason) from problem


@dataclass(frozen=True)
class Difference:
    """How far an output is from its reference; `count` elements are outside the tolerance."""

    name: str
    count: int
    elements: int
    largest: float
    index: tuple[int, ...]  # where the largest difference is

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.count} of {self.elements} elements differ, "
            f"most at {list(self.index)} by {self.largest:.4g}"
        )


def compare(
    results: Mapping[str, np.ndarray],
    references: Mapping[str, np.ndarray],
    relative: float,
    absolute: float,
) -> list[Difference]:
    """The outputs with elements where |result - reference| > absolute + relative * |reference|.

    NaN equals NaN.
    """
    found = []
    for name, reference in references.items():
        wide = np.complex128 if reference.dtype.kind == "c" else np.float64
        a, b = results[name].astype(wide), reference.astype(wide)
        is_close = np.isclose(a, b, rtol=relative, atol=absolute, equal_nan=True)
        if is_close.all():
            continue
        with np.errstate(invalid="ignore"):
            distance = np.where(is_close, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
        index = np.unravel_index(int(distance.argmax()), distance.shape)
        place = tuple(int(i) for i in index)
        count = int((~is_close).sum())
        found.append(Difference(name, count, a.size, float(distance[index]), place))
    return found


def random_array(
    dtype: DType, shape: tuple[int, ...], generator: np.random.Generator
) -> np.ndarray:
    """Random contents for an input: standard normal floats, integers and bools 0 or 1."""
    if dtype.is_float or dtype.is_complex:
        return np.asarray(generator.standard_normal(shape)).astype(dtype.numpy)
    return np.asarray(generator.integers(0, 2, shape)).astype(dtype.numpy)


def save_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a .npz file under their names."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    write_atomically(Path(path), [stream.getvalue()])

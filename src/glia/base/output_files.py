"""Output files that cannot be written, as an error with a code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glia.base.errors import CompileError


class UnwritableOutput(CompileError):
    """An output file cannot be written; checked before compilation where possible.

    Cause: Its directory is missing or not writable, the path is a directory, or the disk is full.
    Fix: Choose another path, or free space on the disk.
    Example: neuronx-cc compile model.pb --framework XLA --target trn2 --output /no/such/dir/m.neff
    """

    code = "GLIA204"
    message = "cannot write {path}: {reason}"
    help = "choose another path, or free space on the disk"


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn a failure to write `path` into UnwritableOutput."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise UnwritableOutput(path=path, reason=problem.strerror or problem) from problem

"""Programs that PyTorch has exported, into graphs by way of HLO."""

from __future__ import annotations

import importlib

from glia.frontend.formats import Format
from glia.frontend.hlo import import_hlo

_WRITER = "glia.plugins.torch.export"


def is_exported_program(module: object) -> bool:
    """Whether a value is a `torch.export.ExportedProgram`."""
    kind = type(module)
    is_of_torch = kind.__module__.partition(".")[0] == "torch"
    return is_of_torch and kind.__name__ == "ExportedProgram"


def exported_to_hlo(program: object) -> bytes:
    """The serialized HLO module of an exported program.

    Parameters and buffers are constants in it, except that a buffer which the program writes is an
    input, in whose place an output is. Raises UnsupportedOperator, DynamicShape and UnknownDType.
    """
    hlo: bytes = importlib.import_module(_WRITER).exported_to_hlo(program)
    return hlo


EXPORTED = Format(
    "a torch.export.ExportedProgram",
    accepts=is_exported_program,
    read=lambda program: import_hlo(exported_to_hlo(program)),
    serialize=exported_to_hlo,
)

"""Every format a model can be given in, and `read_module`, which finds the one that fits.

A new front end is a file that declares a `Format`, and its line here.
"""

from __future__ import annotations

import os
from pathlib import Path

from glia.base.files import read_file
from glia.frontend import exported_program, hlo, stablehlo
from glia.frontend.errors import NotAModel, UnreadableFile
from glia.frontend.formats import Format
from glia.frontend.hlo_import.hlo_proto import LARGEST_FILE_BYTES
from glia.graph.ir import Graph

GRAPH = Format(
    "a graph", accepts=lambda module: isinstance(module, Graph), read=lambda graph: graph
)


def read_module_file(path: str | os.PathLike[str]) -> bytes:
    """The serialized HLO module of a file, which holds one or StableHLO.

    Raises UnreadableFile, and for StableHLO what `stablehlo_to_hlo` raises.
    """
    try:
        data = read_file(Path(path), LARGEST_FILE_BYTES)
    except OSError as error:
        raise UnreadableFile(path=path, reason=(error.strerror or str(error)).lower()) from error
    return stablehlo.stablehlo_to_hlo(data) if stablehlo.is_stablehlo(data) else data


MODEL_FILE = Format(
    "the path of a file of either",
    accepts=lambda module: isinstance(module, str | os.PathLike),
    read=lambda path: hlo.import_hlo(read_module_file(path)),
    serialize=read_module_file,
)

# The first that accepts a module reads it; STABLEHLO precedes MODEL_FILE, as text may be a path.
FORMATS: tuple[Format, ...] = (
    GRAPH,
    stablehlo.STABLEHLO,
    stablehlo.LOWERED,
    exported_program.EXPORTED,
    hlo.HLO_BYTES,
    MODEL_FILE,
)


def read_module(module: object) -> Graph:
    """The graph of a model.

    `module` is serialized HLO (bytes), StableHLO (text or bytecode, with jaxlib), the path of a
    file of either, a jax `Lowered`, a torch.export `ExportedProgram`, or a graph. Raises the front
    ends' errors, and NotAModel for anything else.
    """
    return _format_of(module).read(module)


def serialized_hlo(module: object) -> bytes | None:
    """The HLO module of a model, serialized; None for a graph. Raises as `read_module` does."""
    serialize = _format_of(module).serialize
    return serialize(module) if serialize else None


def _format_of(module: object) -> Format:
    """The first format that accepts a module; NotAModel where none does."""
    for each in FORMATS:
        if each.accepts(module):
            return each
    known = ", ".join(each.name for each in FORMATS)
    raise NotAModel(given=_described(module), cure=_cure(module), known=known)


def _described(module: object) -> str:
    name = getattr(module, "__name__", "")
    kind = type(module).__name__
    return f"the {kind} {name}" if callable(module) and name else f"a value of type {kind}"


def _cure(module: object) -> str:
    """What to write instead for a value that holds a model in another form."""
    if hasattr(module, "state_dict"):
        return "a module of PyTorch is exported first: torch.export.export(module, arguments)"
    if hasattr(module, "lower"):
        return "call its lower() with example arguments first, or use glia.plugins.jax.on_device"
    if callable(module):
        return (
            "a JAX function is lowered first: jax.jit(f).lower(...), or glia.plugins.jax.on_device;"
            " a kernel has compile() of its own"
        )
    return "give the path or the bytes of a serialized HLO or StableHLO module"

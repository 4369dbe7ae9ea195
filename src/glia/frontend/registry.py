"""Every format a model can be given in, and `read_module`, which finds the one that fits.

A new front end is a file that declares a `Format`, and its line here.
"""

from __future__ import annotations

from glia.frontend import hlo, stablehlo
from glia.frontend.errors import NotAModel
from glia.frontend.formats import Format
from glia.graph.ir import Graph

GRAPH = Format(
    "a graph", accepts=lambda module: isinstance(module, Graph), read=lambda graph: graph
)

# The first that accepts a module reads it; STABLEHLO precedes HLO_FILE, as text may be a path.
FORMATS: tuple[Format, ...] = (
    GRAPH,
    stablehlo.STABLEHLO,
    stablehlo.LOWERED,
    hlo.HLO_FILE,
    hlo.HLO_BYTES,
)


def read_module(module: object) -> Graph:
    """The graph of a model.

    `module` is serialized HLO (bytes), StableHLO (text or bytecode, with jaxlib), the path of a
    file of serialized HLO, a jax `Lowered`, or a graph. Raises the front ends' errors, and
    NotAModel for anything else.
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
    if hasattr(module, "lower"):
        return "call its lower() with example arguments first, or use glia.plugins.jax.on_device"
    if callable(module):
        return (
            "a JAX function is lowered first: jax.jit(f).lower(...), or glia.plugins.jax.on_device;"
            " a kernel has compile() of its own"
        )
    return "give the path or the bytes of a serialized HLO module"

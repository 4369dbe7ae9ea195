"""StableHLO and jax programs into graphs, through jaxlib's own conversion to HLO."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

from glia.base.dtype import DTYPES
from glia.frontend.errors import BadStableHlo, FrameworkMissing, UnknownDType
from glia.frontend.formats import Format
from glia.frontend.hlo import import_hlo
from glia.graph.ir import Graph

_BYTECODE = b"ML\xefR"
_UNKNOWN_DTYPE = re.compile(r"f6E2M3FN|f6E3M2FN")  # of MLIR; jaxlib ends the process for them
_LONGEST_MAGIC = 6
_LONGEST_REASON = 400


def import_stablehlo(module: str | bytes) -> Graph:
    """The graph of a StableHLO module: MLIR text, bytecode, or a portable artifact.

    The entry function is `main`. Raises FrameworkMissing without jaxlib, BadStableHlo when jaxlib
    refuses the module, and what `import_hlo` raises.
    """
    return import_hlo(stablehlo_to_hlo(module))


def stablehlo_to_hlo(module: str | bytes) -> bytes:
    """The serialized HLO module of a StableHLO module; FrameworkMissing, BadStableHlo."""
    mlir = _conversions("a StableHLO module")
    if isinstance(module, bytes) and not module.startswith(_BYTECODE):
        module = _text(module)
    _refuse_unknown_dtypes(module)
    try:
        computation = mlir.mlir_module_to_xla_computation(
            module, use_tuple_args=False, return_tuple=False
        )
    except (RuntimeError, ValueError, MemoryError) as error:
        reason = str(error).strip()[:_LONGEST_REASON] or "jaxlib ran out of memory"
        raise BadStableHlo(reason=reason) from error
    serialized: bytes = computation.as_serialized_hlo_module_proto()
    return serialized


def import_lowered(lowered: Any) -> Graph:
    """The graph of a `jax.stages.Lowered`; parameters are the arguments jax kept, in order.

    Raises what `import_hlo` raises.
    """
    return import_hlo(_lowered_to_hlo(lowered))


def _lowered_to_hlo(lowered: Any) -> bytes:
    serialized: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return serialized


def _is_stablehlo(module: object) -> bool:
    """Whether a value is MLIR: bytecode, or text with a line break or the word it begins with."""
    if isinstance(module, str):
        return "\n" in module or module.lstrip().startswith("module")
    if isinstance(module, bytes | bytearray | memoryview):
        return bytes(module[:_LONGEST_MAGIC]).startswith((_BYTECODE, b"module"))
    return False


def _text_or_bytes(module: Any) -> str | bytes:
    return module if isinstance(module, str) else bytes(module)


STABLEHLO = Format(
    "StableHLO text or bytecode",
    accepts=_is_stablehlo,
    read=lambda module: import_stablehlo(_text_or_bytes(module)),
    serialize=lambda module: stablehlo_to_hlo(_text_or_bytes(module)),
)
LOWERED = Format(
    "a jax Lowered",
    accepts=lambda module: hasattr(module, "compiler_ir"),
    read=import_lowered,
    serialize=_lowered_to_hlo,
)


def _refuse_unknown_dtypes(module: str | bytes) -> None:
    """Raise UnknownDType when a value has a float type that HLO lacks."""
    texts = [module] if isinstance(module, str) else _types_of_bytecode(module)
    for text in texts:
        if found := _UNKNOWN_DTYPE.search(text):
            raise UnknownDType(element_type=found[0], known=" ".join(DTYPES))


def _types_of_bytecode(module: bytes) -> set[str]:
    """The types of all values of a module, printed."""
    types: set[Any] = set()
    parsed = parse_module(module)

    def visit(operation: Any) -> Any:
        types.update(result.type for result in operation.results)
        for region in operation.regions:
            types.update(argument.type for block in region for argument in block.arguments)
        return mlir_bindings("a StableHLO module").WalkResult.ADVANCE

    parsed.operation.walk(visit)
    return set(map(str, types))


def _text(module: bytes) -> str:
    try:
        return module.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadStableHlo(reason="it is neither text nor MLIR bytecode") from error


def mlir_bindings(what: str) -> ModuleType:
    """jaxlib's Python bindings of MLIR; FrameworkMissing, which names `what`, without jaxlib."""
    try:
        return importlib.import_module("jaxlib.mlir.ir")
    except ImportError as error:
        raise FrameworkMissing(what=what, package="jaxlib", extra="jax") from error


def parse_module(text: str | bytes) -> Any:
    """An MLIR module in a context of its own; ops of other dialects may be in generic form.

    Raises FrameworkMissing without jaxlib, and BadStableHlo.
    """
    ir = mlir_bindings("a StableHLO module")
    from jax._src.interpreters.mlir import make_ir_context

    context = make_ir_context()
    context.allow_unregistered_dialects = True
    try:
        return ir.Module.parse(text, context)
    except (ir.MLIRError, ValueError) as error:
        raise BadStableHlo(reason=str(error).strip()[:_LONGEST_REASON]) from error


def _conversions(what: str) -> ModuleType:
    """jaxlib's conversions between MLIR and HLO."""
    try:
        from jax._src.lib import xla_client  # type: ignore[attr-defined]  # jax does not list it
    except ImportError as error:
        raise FrameworkMissing(what=what, package="jaxlib", extra="jax") from error
    found: ModuleType = xla_client._xla.mlir  # type: ignore[attr-defined]  # nor jaxlib this
    return found

"""StableHLO and jax programs into graphs, through jaxlib's own conversion to HLO."""

from __future__ import annotations

import importlib
import io
import re
from types import ModuleType
from typing import Any

from glia.base.dtype import DTYPES
from glia.frontend.conversion import LONGEST_REASON, convert
from glia.frontend.errors import BadStableHlo, FrameworkMissing, UnknownDType
from glia.frontend.formats import Format
from glia.frontend.hlo import import_hlo
from glia.frontend.partitioning import device_counts
from glia.graph.ir import Graph

_BYTECODE = b"ML\xefR"
_UNKNOWN_DTYPE = re.compile(rb"f6E2M3FN|f6E3M2FN")  # of MLIR; jaxlib ends for them
_HEAD_BYTES = 1 << 16  # in which text has no control characters, and a protobuf has
_CONTROL = re.compile(rb"[^\t\n\f\r\x20-\xff]")
_COMMENTS = re.compile(rb"(?:\s+|//[^\n]*\n)*")
_OPENINGS = (b"module", b'"builtin.module"', b"func.func", b"#", b"!")


def import_stablehlo(module: str | bytes) -> Graph:
    """The graph of a StableHLO module: MLIR text, bytecode, or a portable artifact.

    The entry function is `main`. Raises FrameworkMissing without jaxlib, BadStableHlo when jaxlib
    refuses the module, and what `import_hlo` raises.
    """
    return import_hlo(stablehlo_to_hlo(module))


def stablehlo_to_hlo(module: str | bytes) -> bytes:
    """The serialized HLO module of a StableHLO module; FrameworkMissing, BadStableHlo."""
    data = module.encode("utf-8", "surrogatepass") if isinstance(module, str) else module
    try:
        return convert(data)
    except BadStableHlo:
        if found := _UNKNOWN_DTYPE.search(data):
            raise UnknownDType(element_type=found[0].decode(), known=" ".join(DTYPES)) from None
        raise


def import_lowered(lowered: Any) -> Graph:
    """The graph of a `jax.stages.Lowered`; parameters are the arguments jax kept, in order.

    Raises what `import_hlo` raises.
    """
    return import_hlo(_lowered_to_hlo(lowered))


def _lowered_to_hlo(lowered: Any) -> bytes:
    """The HLO module of what jax lowered; of one device, where it is for several."""
    module = lowered.compiler_ir("stablehlo").operation
    if device_counts(module) != (1, 1):
        written = io.BytesIO()
        module.write_bytecode(written)
        return stablehlo_to_hlo(written.getvalue())
    serialized: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return serialized


def is_stablehlo(module: object) -> bool:
    """Whether a value is MLIR: bytecode, or text; a str with a line break is no path."""
    if isinstance(module, str):
        return "\n" in module or module.lstrip().startswith(("module", "func.func"))
    if isinstance(module, bytes | bytearray | memoryview):
        head = bytes(module[:_HEAD_BYTES])
        return head.startswith(_BYTECODE) or _begins_as_text(head)
    return False


def _begins_as_text(head: bytes) -> bool:
    """Whether the beginning of a file is that of MLIR text, after comments.

    An HLO protobuf begins with a line feed, the length of its name and the name, which may be
    `module`; control characters follow.
    """
    comments = _COMMENTS.match(head)
    start = comments.end() if comments else 0
    return head.startswith(_OPENINGS, start) and not _CONTROL.search(head)


def _text_or_bytes(module: Any) -> str | bytes:
    return module if isinstance(module, str) else bytes(module)


STABLEHLO = Format(
    "StableHLO text or bytecode",
    accepts=is_stablehlo,
    read=lambda module: import_stablehlo(_text_or_bytes(module)),
    serialize=lambda module: stablehlo_to_hlo(_text_or_bytes(module)),
)
LOWERED = Format(
    "a jax Lowered",
    accepts=lambda module: hasattr(module, "compiler_ir"),
    read=import_lowered,
    serialize=_lowered_to_hlo,
)


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
        raise BadStableHlo(reason=str(error).strip()[:LONGEST_REASON]) from error

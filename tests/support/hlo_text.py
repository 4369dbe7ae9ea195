"""HLO modules written by hand, for what JAX does not emit: HLO text, or changed messages."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxlib import _hlo

from glia.frontend.hlo_import.hlo_proto import messages

F32_TYPE, S32_TYPE, PRED_TYPE, TUPLE_TYPE = 11, 4, 1, 13


def from_text(text: str) -> bytes:
    """A serialized HloModuleProto from HLO text."""
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def entry(body: str) -> bytes:
    """A module whose entry computation has these instructions."""
    return from_text("HloModule test\n\nENTRY main {\n" + body + "\n}\n")


def module(data: bytes) -> Any:
    """A serialized module as a message to change; `SerializeToString` gives the bytes back."""
    return messages()["Module"].FromString(data)


def adding_module() -> Any:
    """x + x for a vector of four floats, as a message."""
    return module(entry("  x = f32[4] parameter(0)\n  ROOT y = f32[4] add(x, x)"))


def vector(*values: float) -> np.ndarray:
    """A float32 vector."""
    return np.array(values, np.float32)

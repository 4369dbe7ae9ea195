"""The backend_config of a custom call that carries a compiled kernel: JSON in base64.

The documented keys of an AwsNeuronCustomNativeKernel are kernel_version, func_name, grid and
has_collectives. Two are added: `neff`, the kernel's programs as a NEFF in base64, and `fixed`, for
each core the tiles whose addresses the kernel's author chose.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

from glia.base.errors import CompileError
from glia.machine.ir import Program
from glia.neff.package import Neff

VERSION = 1
RAW_CONFIG = 2  # the version of the custom-call interface whose config is the string itself
MAXIMUM_CONFIG_BYTES = 1 << 28


def write_kernel(programs: Sequence[Program], fixed: Sequence[Sequence[str]]) -> str:
    """The backend_config of a custom call of these placed programs, one for each core."""
    neff = Neff(tuple(programs))
    data = neff.to_bytes()
    config = {
        "kernel_version": VERSION,
        "func_name": neff.name,
        "grid": [len(programs)] if len(programs) > 1 else [],
        "has_collectives": False,
        "neff": base64.b64encode(data).decode("ascii"),
        "fixed": [list(names) for names in fixed],
    }
    return base64.b64encode(json.dumps(config).encode("utf-8")).decode("ascii")


def read_kernel(text: str) -> tuple[Neff, list[list[str]]]:
    """The kernel in a backend_config, and each core's tiles of fixed address.

    Raises ValueError with the reason when the text holds no kernel that glia wrote.
    """
    config = _decode_json(text)
    data, fixed = config.get("neff"), config.get("fixed", [])
    if not isinstance(data, str) or not isinstance(fixed, list):
        raise ValueError("its config holds no program of glia; trace the kernel with glia's nki")
    if not all(_is_text_list(names) for names in fixed):
        raise ValueError("its config lists tile names that are not text")
    try:
        return Neff.from_bytes(base64.b64decode(data, validate=True)), fixed
    except (binascii.Error, ValueError) as problem:
        raise ValueError(f"its program is not base64: {problem}") from problem
    except CompileError as problem:
        raise ValueError(f"its program is damaged: {problem}") from problem


def _decode_json(text: str) -> dict[str, Any]:
    """The JSON object that a backend_config encodes."""
    if len(text) > MAXIMUM_CONFIG_BYTES:
        raise ValueError(f"its config has more than {MAXIMUM_CONFIG_BYTES} bytes")
    try:
        config = json.loads(base64.b64decode(text.strip().strip('"'), validate=True))
    except (binascii.Error, ValueError, RecursionError) as problem:
        raise ValueError("its config is not JSON in base64") from problem
    if not isinstance(config, dict):
        raise ValueError("its config is not a JSON object")
    return config


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)

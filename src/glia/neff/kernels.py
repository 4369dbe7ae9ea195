"""Hand-written kernels inside models: what a custom call holds of one, written and read.

The backend_config of an AwsNeuronCustomNativeKernel is JSON in base64. The documented keys are
kernel_version, func_name, grid and has_collectives; ours are `neff`, the kernel's own program as a
NEFF in base64, and `fixed`, for each core the tiles that have the addresses their author gave them.
A model is for one core, which runs what a kernel's cores do together.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glia.arch import get_target
from glia.base.errors import CompileError
from glia.frontend.errors import BadCustomCall
from glia.isa.operand import Memory
from glia.machine.aliased_tiles import join_overlapping
from glia.machine.ir import Program
from glia.machine.merge_cores import on_one_core
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.tile.ir import Call
from glia.tile.ir import Program as TileProgram
from glia.tile.nest_rewriting import map_calls

VERSION = 1
MOST_BYTES = 1 << 28  # of a config


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


def read_kernels(program: TileProgram, options: CompileOptions) -> TileProgram:
    """Give every call its kernel; BadCustomCall when one does not fit its buffers or the target."""
    known: dict[str, Program] = {}
    return map_calls(program, lambda call: _with_kernel(call, program, options.target, known))


def _with_kernel(call: Call, program: TileProgram, target: str, known: dict[str, Program]) -> Call:
    """The call with its kernel; `known` are those read before, by their config."""
    kernel = known.get(call.config)
    if kernel is None:
        kernel = known[call.config] = _read(call)
    if kernel.target != target:
        raise _bad(call, f"{kernel.name} was compiled for {kernel.target}, the model for {target}")
    for what, names, bindings in (
        ("inputs", call.inputs, kernel.inputs),
        ("results", call.outputs, kernel.outputs),
    ):
        wanted = [f"{b.dtype}{list(b.shape)}" for b in bindings]
        buffers = [program.buffers[name] for name in names]
        given = [f"{b.dtype}{list(b.shape)}" for b in buffers]
        if wanted != given:
            takes = ", ".join(wanted) or "none"
            raise _bad(call, f"{kernel.name} has the {what} {takes}; here {', '.join(given)}")
    return replace(call, kernel=kernel)


def _read(call: Call) -> Program:
    """The kernel that a config holds, for one core and free to be placed anew."""
    config = _decoded(call)
    text, fixed = config.get("neff"), config.get("fixed", [])
    if not isinstance(text, str) or not isinstance(fixed, list):
        raise _bad(call, "its config holds no program of glia; trace the kernel with glia's nki")
    if not all(_are_names(each) for each in fixed):
        raise _bad(call, "its config names tiles that are no text")
    try:
        neff = Neff.from_bytes(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as problem:
        raise _bad(call, f"its program is not base64: {problem}") from problem
    except CompileError as problem:
        raise _bad(call, f"its program is damaged: {problem}") from problem
    if len({program.target for program in neff.programs}) != 1:
        raise _bad(call, f"{neff.name} has cores of different targets")
    joined = [
        _joined(call, program, names)
        for program, names in itertools.zip_longest(neff.programs, fixed, fillvalue=())
        if isinstance(program, Program)
    ]
    try:
        return on_one_core(joined)
    except ValueError as problem:
        raise _bad(call, f"{neff.name} cannot run on one core: {problem}") from problem


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _decoded(call: Call) -> dict[str, Any]:
    """The JSON object that a config is."""
    if len(call.config) > MOST_BYTES:
        raise _bad(call, f"its config has more than {MOST_BYTES} bytes")
    try:
        config = json.loads(base64.b64decode(call.config.strip().strip('"'), validate=True))
    except (binascii.Error, ValueError, RecursionError) as problem:
        raise _bad(call, "its config is not JSON in base64") from problem
    if not isinstance(config, dict):
        raise _bad(call, "its config is no JSON object")
    return config


def _joined(call: Call, kernel: Program, fixed: Sequence[str]) -> Program:
    """Tiles get new addresses, which must not take two apart that share bytes on purpose."""
    try:
        joined = join_overlapping(kernel, [name for name in fixed if name in kernel.addresses])
    except ValueError as problem:
        raise _bad(call, str(problem)) from problem
    bank = get_target(kernel.target).arch.psum_bank_bytes
    for name, tile in joined.tiles.items():
        is_new = name not in kernel.tiles
        if is_new and tile.memory is Memory.PSUM and tile.bytes_per_partition > bank:
            raise _bad(call, f"{name} overlap in more than one bank of PSUM")
    return joined


def _bad(call: Call, reason: str) -> BadCustomCall:
    return BadCustomCall(target=call.target, reason=reason, instruction=call.name, loc=call.loc)

"""Programs that are not HLO, or are for several devices: the HLO module that each device runs.

jaxlib makes it. Programs for several devices are divided by Shardy's passes, with collectives, in
the process that converts modules, as they end it for some programs. Those, and what they refuse,
are taken to the partitioner that XLA has for CPUs: its module after that pass is read back.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxlib import _jax, xla_client

from glia.frontend.errors import BadStableHlo
from glia.frontend.hlo_import.hlo_proto import message_classes
from glia.frontend.partitioning import with_whole_windows
from glia.frontend.stablehlo import stablehlo_to_hlo
from glia.plugins.pjrt.errors import NotPartitioned

_PARTITIONER = "spmd-partitioning"  # XLA's pass, by the name in its dumps
_LONGEST_REASON = 300

_SCHEMA = """
Sharding: kind=1 i32, tile_dimensions=3 i64*, devices=4 i64*, elements=5 Sharding*,
    is_last_replicated=6 bool
Shardings: result=12 Sharding, parameters=14 Sharding*
Hlo: hlo_module=1 bytes
"""


@functools.cache
def messages() -> dict[str, Any]:
    """The classes of the table above, by name."""
    return message_classes("shardings", _SCHEMA)


def to_mlir(code: bytes) -> bytes:
    """The MLIR of a serialized HLO module."""
    return bytes(_jax.mlir.hlo_to_stablehlo(code))


def to_hlo(code: bytes) -> bytes:
    """The serialized HLO module of a program in MLIR."""
    computation = _jax.mlir.mlir_module_to_xla_computation(
        code, use_tuple_args=False, return_tuple=False
    )
    return bytes(computation.as_serialized_hlo_module_proto())


def partition(artifact: bytes, serialized_options: bytes) -> bytes:
    """The HLO module of each device, for a portable artifact that the options divide.

    The module says how its parameters and results are divided. Raises NotPartitioned.
    """
    refusal = "a result is divided in a way that it does not describe"
    try:
        hlo = stablehlo_to_hlo(artifact)
        if messages()["Shardings"].FromString(hlo).HasField("result"):
            return hlo
    except BadStableHlo as error:
        refusal = " ".join(str(error.facts["reason"]).split())[:_LONGEST_REASON]
    try:
        return partition_by_xla(artifact, serialized_options)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise NotPartitioned(shardy=refusal, xla=reason) from error


@functools.cache
def cpu_client(devices: int) -> Any:
    """XLA's client of the host's processor, seen as so many devices."""
    return xla_client.make_cpu_client(num_devices=devices)


def partition_by_xla(artifact: bytes, serialized_options: bytes) -> bytes:
    """The module that XLA has after partitioning; its compilation for CPUs may fail later."""
    options = xla_client.CompileOptions.ParseFromString(serialized_options)
    devices = options.num_partitions * options.num_replicas
    client = cpu_client(devices)
    with tempfile.TemporaryDirectory() as directory:
        debug = options.executable_build_options.debug_options
        debug.xla_dump_to = directory
        debug.xla_dump_hlo_pass_re = _PARTITIONER
        debug.xla_dump_hlo_as_proto = True
        order = np.arange(devices).reshape(options.num_replicas, options.num_partitions)
        options.device_assignment = xla_client.DeviceAssignment.create(order)
        failure: Exception | None = None
        try:
            module = with_whole_windows(artifact)
            client.compile_and_load(module, _jax.DeviceList(tuple(client.devices())), options)
        except (RuntimeError, ValueError) as error:
            failure = error
        written = sorted(Path(directory).glob(f"*.after_{_PARTITIONER}*.hlo.pb"))
        if not written:
            raise failure or ValueError("XLA wrote no module after partitioning")
        hlo: bytes = messages()["Hlo"].FromString(written[-1].read_bytes()).hlo_module
    return hlo

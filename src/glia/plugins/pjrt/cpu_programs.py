"""Programs that XLA compiles and runs on the host's processor, beside the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxlib import _jax, xla_client

from glia.plugins.pjrt.converted_programs import cpu_client, to_mlir

Arrays = Sequence[np.ndarray]


def compiled(hlo: bytes) -> Callable[[Arrays], Arrays]:
    """A function of a module's arguments; RuntimeError where XLA refuses the module."""
    client = cpu_client(1)
    (device,) = client.local_devices()
    options = xla_client.CompileOptions()
    executable = client.compile_and_load(to_mlir(hlo), _jax.DeviceList((device,)), options)

    def run(arguments: Arrays) -> Arrays:
        with jax.ensure_compile_time_eval():  # a function may be traced meanwhile
            given = [jax.device_put(each, device) for each in arguments]
        return [np.asarray(each) for each in executable.execute(given)]

    return run

"""The interface's table with all that provides its functions: importing this fills it."""

from __future__ import annotations

import ctypes
from typing import Any

from glia.plugins.pjrt import buffers, devices, events, executables, loading
from glia.plugins.pjrt.api_table import api_table

# Importing them is what provides functions
PROVIDERS = (buffers, devices, events, executables, loading)


def table_address() -> int:
    """Where the table is; it stays there until the process ends."""
    return ctypes.addressof(api_table())


def capsule() -> Any:
    """The table as what `jaxlib` takes: a capsule named `pjrt_c_api`."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(table_address(), b"pjrt_c_api", None)

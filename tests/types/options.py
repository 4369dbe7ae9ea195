"""What a type checker finds in calls of `glia.compile`; never run.

`make types` fails when one of the errors below is no longer found, as an ignore without need.
"""

from __future__ import annotations

import glia


def options_that_exist(module: bytes) -> glia.Neff:
    return glia.compile(module, target="trn1", optlevel=3, auto_cast_type="fp16", verify=True)


def a_misspelt_option(module: bytes) -> glia.Neff:
    return glia.compile(module, targett="trn1")  # type: ignore[call-arg]


def an_option_of_another_type(module: bytes) -> glia.Neff:
    return glia.compile(module, native_int64=True)  # type: ignore[arg-type]

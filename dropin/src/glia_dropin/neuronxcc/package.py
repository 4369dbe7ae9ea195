"""`neuronxcc`: the package that holds NKI Beta 1."""

import logging

from glia.nki import beta1 as nki

# Importing AWS's package adds this level, which callers use to turn logging off.
logging.OFF = logging.CRITICAL + 10  # type: ignore[attr-defined]

__all__ = ["nki"]

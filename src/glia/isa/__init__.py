"""The instruction set: importing it completes the registry of instructions.

Every module of `glia.isa.instructions` is imported, and every instruction that one declares
registers in INSTRUCTIONS. Import an instruction from the module that declares it.
"""

from glia.base.discovery import import_modules
from glia.isa.kit import INSTRUCTIONS

import_modules("glia.isa.instructions")

__all__ = ["INSTRUCTIONS"]

"""`nki.isa`, of the current generation."""

from typing import TYPE_CHECKING

from glia.nki.isa import *  # noqa: F403
from glia.nki.isa import __all__  # noqa: F401

if not TYPE_CHECKING:  # checkers and editors shall see what is not there
    from glia.nki.isa import __getattr__  # noqa: F401

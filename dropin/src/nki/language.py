"""`nki.language`, of the current generation."""

from typing import TYPE_CHECKING

from glia.nki.language import *  # noqa: F403
from glia.nki.language import __all__  # noqa: F401

if not TYPE_CHECKING:  # checkers and editors shall see what is not there
    from glia.nki.language import __getattr__  # noqa: F401

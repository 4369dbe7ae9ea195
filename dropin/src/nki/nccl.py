"""`nki.nccl`: nki.collectives under an earlier name."""

from typing import TYPE_CHECKING

from glia.nki.collectives import *  # noqa: F403
from glia.nki.collectives import __all__  # noqa: F401

if not TYPE_CHECKING:  # checkers and editors shall see what is not there
    from glia.nki.collectives import __getattr__  # noqa: F401

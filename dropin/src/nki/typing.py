"""`nki.typing`, of the current generation."""

from glia.nki.typing import *  # noqa: F403
from glia.nki.typing import __all__  # noqa: F401

"""Limits of tiles, and the width of dtypes."""

from glia.nki.beta1.constants import *  # noqa: F403
from glia.nki.beta1.constants import __all__  # noqa: F401

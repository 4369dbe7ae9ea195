"""`neuronxcc.nki.language` of NKI Beta 1."""

from typing import TYPE_CHECKING

from glia.nki.beta1.language import *  # noqa: F403
from glia.nki.beta1.language import __all__  # noqa: F401
from neuronxcc.nki.language import constants  # noqa: F401

if not TYPE_CHECKING:  # checkers and editors shall see what is not there
    from glia.nki.beta1.language import __getattr__  # noqa: F401

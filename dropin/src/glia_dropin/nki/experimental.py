"""`nki.experimental`: a loop that nki.language has by now."""

from glia.nki.language import while_loop

__all__ = ["while_loop"]

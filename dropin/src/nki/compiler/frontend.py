"""`nki.compiler.frontend`: the ways in which a kernel becomes a program."""

from glia_dropin.nki.frontends import (
    NKIFrontend,
    ParserFrontend,
    TracerFrontend,
    resolve_frontend_cls,
)

__all__ = ["NKIFrontend", "ParserFrontend", "TracerFrontend", "resolve_frontend_cls"]

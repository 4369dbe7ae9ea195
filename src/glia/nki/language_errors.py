"""What a user can do wrong in the language of kernels."""

from __future__ import annotations

from glia.base.errors import CompileError


class NotInLanguage(CompileError, SyntaxError):
    """A kernel uses a part of Python that the parser of its release refuses.

    Cause: NKI_COMPILER_FRONTEND=custom asks for the parser, which NKI 0.2 to 0.6 always use; it
    takes a part of Python, in kernels and in all functions and classes that they name.
    Fix: write what the help says, or leave the variable unset: since NKI 0.7 Python itself traces
    kernels. docs/nki-language.md has every rule.
    Example: a kernel with `[n * 2 for n in range(3)]` where NKI_COMPILER_FRONTEND=custom.
    """

    code = "GLIA620"
    message = "NKI's parser refuses this: {rule}"
    help = "{cure} (source: {source})"


class KernelAdvice(UserWarning):
    """A kernel does what the documentation advises against, or will not allow for long."""

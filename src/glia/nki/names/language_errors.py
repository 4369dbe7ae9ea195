"""The user errors of the kernel language."""

from __future__ import annotations

import warnings
from typing import Any

from glia.base.errors import CompileError
from glia.base.loc import Loc
from glia.nki.names.errors import NkiValidationError


class NotInLanguage(CompileError, SyntaxError):
    """A kernel uses a Python construct that NKI's parser refuses.

    Cause: NKI_COMPILER_FRONTEND=custom selects the parser, which NKI 0.2 to 0.6 always use; it
    accepts a subset of Python, in kernels and in all functions and classes that they reference.
    Fix: write what the help says, or leave the variable unset: since NKI 0.7 Python itself traces
    kernels. docs/nki-language.md lists every rule.
    Example: a kernel with `[n * 2 for n in range(3)]` where NKI_COMPILER_FRONTEND=custom.
    """

    code = "GLIA620"
    message = "NKI's parser refuses this: {rule}"
    help = "{cure} (source: {source})"


class ExpiredTensor(CompileError, NkiValidationError):
    """A tensor allocated in the body of a device loop is used after its iteration.

    Cause: tensors that nl.ndarray allocates in the body of nl.fori_loop or nl.while_loop live for
    one iteration.
    Fix: allocate the tensor before the loop and write to it in the body.
    Example: a body that keeps its tile in a list, which the kernel stores after nl.fori_loop.
    """

    code = "GLIA621"
    message = "{tensor} was allocated in the body of a loop on the device and is used outside"
    help = "allocate it before the loop, and write to it in the body"


class Beta1InKernel(CompileError, NkiValidationError):
    """A kernel of the current generation calls a function of NKI Beta 1 (neuronxcc.nki).

    Cause: `import neuronxcc.nki.language as nl` beside `import nki`; an error since NKI 0.4.
    Fix: import nki.language and nki.isa, and write the call as they take it: with dst, no mask.
    Example: neuronxcc.nki.language.load(x) in a kernel that nki.jit decorates.
    """

    code = "GLIA622"
    message = (
        "{function} of neuronxcc.nki (NKI Beta 1) is used in a kernel of the current generation"
    )
    help = "import it from nki.language or nki.isa; docs/nki.md shows both generations"


class KernelAdvice(UserWarning):
    """A kernel uses what the documentation deprecates or advises against."""


_SHOWN: dict[str, dict[Any, Any]] = {}  # registries of the warnings module, by file


def advise(text: str, loc: Loc) -> None:
    """Issue a KernelAdvice at a source line, by default once."""
    shown = _SHOWN.setdefault(loc.file, {})
    warnings.warn_explicit(text, KernelAdvice, loc.file, loc.line, registry=shown)

"""Stub files of the modules that kernels import, for editors and type checkers.

Most functions of NKI are generated from declarations, so that their source does not show their
parameters. `make pages` writes a stub beside each module.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

MODULES = ("isa", "language", "collectives", "beta1.isa", "beta1.language")
HEADER = '"""Written by tools/nki_stubs.py; the module itself holds the documentation."""'
WIDEST = 100
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_PLAIN = (bool, int, float, str, type(None))


def stub_of(module: Any) -> str:
    """The stub of a module: its public names, functions with parameters and first sentences."""
    imports: set[str] = set()
    bodies = [_entry(name, getattr(module, name), imports) for name in sorted(module.__all__)]
    own = sorted(line for line in imports if line.startswith(f"from {module.__name__} import "))
    bodies += [_defined(module, *line.split()[3::2], imports) for line in own]
    imports = imports.difference(own)
    names = ", ".join(f'"{name}"' for name in sorted(module.__all__))
    lines = (HEADER, "", *sorted(imports), "", f"__all__ = [{names}]", "", *filter(None, bodies))
    return "\n".join((*lines, ""))


def _entry(name: str, value: Any, imports: set[str]) -> str:
    """What a stub says of one name; `imports` grow by what that needs."""
    if inspect.isclass(value):
        imports.add(_imported(value, name))
        return ""
    if not callable(value):
        kind = type(value)
        if not kind.__module__.startswith("glia.") or kind.__name__.startswith("_"):
            imports.add("from typing import Any as _Any")
            return f"{name}: {kind.__name__ if kind in _PLAIN else '_Any'}"
        imports.add(_imported(kind, f"_{kind.__name__}"))
        return f"{name}: _{kind.__name__}"
    return _function(name, value, imports)


def _defined(module: Any, name: str, alias: str, imports: set[str]) -> str:
    """A class of the module itself, or another name for one."""
    if name != alias:
        return f"{alias} = {name}"
    kind = getattr(module, name)
    (base,) = kind.__bases__
    imports.add(_imported(base, f"_{base.__name__}"))
    if issubclass(kind, Enum):
        lines = [f"{each} = {member.value!r}" for each, member in kind.__members__.items()]
    else:
        lines = _function("__init__", kind.__init__, imports).splitlines()
    return "\n".join((f"class {name}(_{base.__name__}):", *(f"    {line}" for line in lines)))


def _imported(kind: type, name: str) -> str:
    return f"from {kind.__module__} import {kind.__name__} as {name}"


def _function(name: str, function: Any, imports: set[str]) -> str:
    signature = inspect.signature(function)
    parts = list(_parameters(signature, function, imports))
    returned = _annotation(signature.return_annotation, function, imports)
    text = (inspect.getdoc(function) or "").splitlines()
    doc = f'    """{text[0]}"""' if text else "    ..."
    line = f"def {name}({', '.join(parts)}) -> {returned}:"
    if len(line) > WIDEST:
        line = "\n".join((f"def {name}(", *(f"    {part}," for part in parts), f") -> {returned}:"))
    return f"{line}\n{doc}"


def _parameters(signature: inspect.Signature, function: Any, imports: set[str]) -> Iterator[str]:
    """Each parameter as it is written, with the marks of those that are only named."""
    is_marked = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            is_marked = True
        if parameter.kind is parameter.KEYWORD_ONLY and not is_marked:
            is_marked = True
            yield "*"
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = _annotation(parameter.annotation, function, imports)
        if parameter.default is None and kind != "_Any" and "None" not in kind:
            kind = f"{kind} | None"
        default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
        yield f"{mark}{parameter.name}: {kind}{default}"


def _shown(default: Any) -> str:
    """A default, where it is one that a stub can say."""
    return repr(default) if default == () or isinstance(default, _PLAIN) else "..."


def _annotation(annotation: Any, function: Any, imports: set[str]) -> str:
    """An annotation as text; names of ours are imported under names that no parameter has."""
    if annotation is inspect.Parameter.empty:
        annotation = "Any"
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")
    return _NAME.sub(lambda found: _named(found[0], function, imports), text)


def _named(name: str, function: Any, imports: set[str]) -> str:
    """What a stub calls a name of an annotation, which it imports from where it is defined."""
    if hasattr(builtins, name):
        return name
    own = inspect.unwrap(function).__module__
    is_class_of_its_own = inspect.isclass(getattr(sys.modules.get(own), name, None))
    for home in (own, *_HOMES) if is_class_of_its_own else (*_HOMES, own):
        value = getattr(importlib.import_module(home), name, None)
        if value is not None:
            place = value.__module__ if inspect.isclass(value) else home
            imports.add(f"from {place} import {name} as _{name}")
            return f"_{name}"
    raise LookupError(f"unknown name {name} in an annotation of {function.__name__}")


_HOMES = (
    "collections.abc",
    "typing",
    "glia.nki.tensors.nki_tensor",
    "glia.nki.tensors.nki_object",
    "glia.nki.names.enums",
    "glia.nki.names.operators",
    "glia.isa.rendezvous",
)


def stubs() -> dict[str, str]:
    """The text of every stub by its path in glia.nki."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(f"glia.nki.{name}")
        found[f"{name.replace('.', '/')}.pyi"] = stub_of(module)
    return found

"""The syntax of functions and classes, and the user's code that they reference."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

FOREIGN = frozenset({"glia_dropin", "numpy", "torch", "torch_xla", "jax", "jaxlib", "ml_dtypes"})
MAX_WRAPPERS = 64  # decorators and partials around one function
_OWN_FOLDER = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Definition:
    """The syntax of a function or class; `lines_above` is the offset of its line numbers."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    file: str
    lines_above: int

    @cached_property
    def body(self) -> tuple[ast.AST, ...]:
        """All nodes of a function's body in order, without annotations, which are not evaluated.

        A class has none of its own: its methods are functions.
        """
        found: list[ast.AST] = []
        waiting = list(reversed(self.node.body)) if not _is_class(self.node) else []
        while waiting:
            each: Any = waiting.pop()
            found.append(each)
            waiting.extend(reversed(_evaluated_children(each)))
        return tuple(found)


def _is_class(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef)


def _evaluated_children(node: Any) -> list[Any]:
    """The child nodes that a node evaluates."""
    if isinstance(node, ast.FunctionDef):
        return node.body
    parts: list[Any] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            parts.extend(each for each in value if isinstance(each, ast.AST))
        elif isinstance(value, ast.AST) and name not in ("ctx", "op", "annotation"):
            parts.append(value)
    return parts


def unwrap(value: Any) -> Any:
    """The function inside decorators, methods and functools.partial."""
    for _ in range(MAX_WRAPPERS):
        inner = getattr(value, "__dict__", {}).get("__wrapped__")
        if isinstance(value, functools.partial):
            inner = value.func
        elif isinstance(value, MethodType):
            inner = value.__func__
        if inner is None:
            break
        value = inner
    return value


def definition_of(value: Any) -> Definition | None:
    """The syntax of a function or class; None when there is no source."""
    if isinstance(value, FunctionType):
        return _definition_of_code(value.__code__, value.__code__.co_filename)
    return _definition_of_class(value) if isinstance(value, type) else None


@lru_cache(maxsize=1024)
def _definition_of_code(code: CodeType, file: str) -> Definition | None:
    """The `def` statement of `code`: parsed from its own lines, else found in its file."""
    lines = _lines(file)
    first = code.co_firstlineno
    own = "".join(lines[first - 1 : _last_line(code)])
    is_indented = own[:1].isspace()
    tree = _parse("if 1:\n" + own if is_indented else own)
    lines_above = first - 1 - is_indented
    if tree is None:
        tree, lines_above = _parse("".join(lines)), 0
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            begin = min(each.lineno for each in (node, *node.decorator_list)) + lines_above
            if begin == first:
                return Definition(node, file, lines_above)
    return None


def _lines(file: str) -> list[str]:
    linecache.checkcache(file)
    return linecache.getlines(file)


def _last_line(code: CodeType) -> int:
    """The last line that an instruction of `code`, or of a function in it, stands in."""
    ends = [place[1] or 0 for place in code.co_positions()]
    inner = [_last_line(each) for each in code.co_consts if isinstance(each, CodeType)]
    return max(code.co_firstlineno, *ends, *inner)


@lru_cache(maxsize=256)
def _definition_of_class(kind: type) -> Definition | None:
    file = _file_of(kind)
    node: Any = _parse("".join(_lines(file)))
    for name in kind.__qualname__.split("."):
        inner = [each for each in getattr(node, "body", ()) if _is_class(each)]
        node = next((each for each in reversed(inner) if each.name == name), None)
    return Definition(node, file, 0) if node is not None else None


def _file_of(value: Any) -> str:
    """The file of a function; of a class that of its module or, in a notebook, of its methods."""
    if isinstance(value, FunctionType):
        return value.__code__.co_filename
    module = sys.modules.get(value.__module__)
    methods = (each for each in vars(value).values() if isinstance(each, FunctionType))
    referenced_values = getattr(module, "__file__", None)
    return referenced_values or next((each.__code__.co_filename for each in methods), "")


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


# --- names ---------------------------------------------------------------------------------------


def referenced_values(definition: Definition, value: Any) -> Iterator[tuple[Any, Any]]:
    """(node, value) of all global names in a function, or of the methods of a class."""
    if isinstance(value, type):
        members = [getattr(each, "__func__", each) for each in vars(value).values()]
        functions = [each for each in members if isinstance(each, FunctionType)]
        own = [f for f in functions if f.__code__.co_filename == definition.file]
        yield from ((definition.node, each) for each in own)
        return
    known = _environment(value)
    local = {*value.__code__.co_varnames, *value.__code__.co_cellvars}
    for node in definition.body:
        if isinstance(node, ast.Name | ast.Attribute):
            found = _resolve(node, known, local)
            if found is not None:
                yield node, found


def bound_names(value: Any) -> frozenset[str]:
    """The names that a function or its module binds; those of a class's module for a class."""
    if isinstance(value, FunctionType):
        code = value.__code__
        return frozenset((*value.__globals__, *code.co_varnames, *code.co_cellvars))
    return frozenset(vars(sys.modules[value.__module__]) if value.__module__ in sys.modules else ())


def _environment(function: FunctionType) -> dict[str, Any]:
    """Global names of a function, and those of the functions around it."""
    known = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell that nothing has filled yet
            known[name] = cell.cell_contents
    return known


def _resolve(node: ast.expr, known: dict[str, Any], local: set[str]) -> Any:
    """The value of a name or of an attribute of a module or class; None for anything else."""
    if isinstance(node, ast.Name):
        return None if node.id in local else unwrap(known.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _resolve(node.value, known, local)
        if isinstance(owner, ModuleType | type):
            return unwrap(inspect.getattr_static(owner, node.attr, None))
    return None


def is_user_code(value: Any) -> bool:
    """Whether a value is a function or class outside Python's library, NKI and the frameworks."""
    if not isinstance(value, FunctionType | type):
        return False
    root = (value.__module__ or "").partition(".")[0]
    if root in sys.stdlib_module_names or root in FOREIGN:
        return False
    return not _file_of(value).startswith(_OWN_FOLDER)

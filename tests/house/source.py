"""The package's source as the house tests read it: files, syntax trees, docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "glia"
TESTS = REPOSITORY / "tests"


@cache
def python_files(root: Path) -> tuple[Path, ...]:
    """Every Python file below a folder, sorted."""
    return tuple(sorted(p for p in root.rglob("*.py") if "__pycache__" not in p.parts))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree."""
    return tuple(ast.walk(tree_of(path)))


def place(path: Path, line: int) -> str:
    """`file:line`, from the repository's root."""
    return f"{path.relative_to(REPOSITORY)}:{line}"


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(node: ast.AST, module: str) -> Iterator[str]:
    """The modules that an import statement of `module` names; what is not one gives nothing."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        parent = ".".join(module.split(".")[: -node.level]) if node.level else ""
        base = ".".join(part for part in (parent, node.module or "") if part)
        if base == "glia":
            yield from (f"glia.{alias.name}" for alias in node.names)
        else:
            yield base


def code_lines(path: Path) -> int:
    """Lines that are neither blank, nor comment, nor docstring."""
    documented: set[int] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = text_of(path).splitlines()
    return sum(
        1
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.strip().startswith("#") and number not in documented
    )

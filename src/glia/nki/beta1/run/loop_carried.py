"""Which Python names a `while` carries from one iteration to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache

Names = frozenset[str]
_NOWHERE: Names = frozenset()
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_BRANCHES = ("body", "orelse", "finalbody", "handlers", "cases")


@lru_cache(maxsize=1024)
def carried_names(loop: ast.While) -> tuple[str, ...]:
    """The sorted names that an iteration sets and the next may read before setting them."""
    before = _ExposedReads()
    before.visit_all((*loop.body, loop.test))  # the first iteration runs without a test
    return tuple(sorted(before.exposed & stored_names(loop)))


@lru_cache(maxsize=1024)
def stored_names(loop: ast.While) -> Names:
    """The names that an iteration sets or deletes."""
    nodes = [node for node in ast.walk(loop) if isinstance(node, ast.Name)]
    return frozenset(node.id for node in nodes if not isinstance(node.ctx, ast.Load))


@lru_cache(maxsize=1024)
def assigned_names(loop: ast.While) -> Names:
    """The names that an iteration binds other than by augmented assignment."""
    updates = {node.target for node in ast.walk(loop) if isinstance(node, ast.AugAssign)}
    nodes = [node for node in ast.walk(loop) if isinstance(node, ast.Name)]
    rebound = [n for n in nodes if not isinstance(n.ctx, ast.Load) and n not in updates]
    return frozenset(node.id for node in rebound)


class _ExposedReads(ast.NodeVisitor):
    """Collects upward-exposed reads: names read before they are set, in evaluation order."""

    def __init__(self, defined: Names = _NOWHERE) -> None:
        self.exposed: set[str] = set()
        self.defined = set(defined)  # set on every path so far

    def visit_all(self, statements: Iterable[ast.AST]) -> None:
        """Visit nodes in sequence."""
        for each in statements:
            self.visit(each)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            if node.id not in self.defined:
                self.exposed.add(node.id)
        else:
            self.defined.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit_all((node.value, *node.targets))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit_all((node.value, node.target))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.visit(ast.Name(node.target.id, ast.Load()))
        self.visit_all((node.value, node.target))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit_all((node.value, node.target))

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._visit_optional((node.target, *node.body))
        self._visit_optional(node.orelse)

    def generic_visit(self, node: ast.AST) -> None:
        """Visit the expressions of a statement, then its blocks, any of which may not run."""
        is_scope = isinstance(node, _SCOPES) or hasattr(node, "generators")
        for name, value in ast.iter_fields(node):
            parts = value if isinstance(value, list) else [value]
            nodes = [each for each in parts if isinstance(each, ast.AST)]
            if is_scope or (name in _BRANCHES and not isinstance(node, ast.With)):
                self._visit_optional(nodes)
            else:
                self.visit_all(nodes)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        both = [self._visit_optional(branch) for branch in (node.body, node.orelse)]
        self.defined |= both[0] & both[1]

    def _visit_optional(self, statements: Iterable[ast.AST]) -> set[str]:
        """Visit a block that may not run; the names that are set where it does."""
        inner = _ExposedReads(frozenset(self.defined))
        inner.visit_all(statements)
        self.exposed |= inner.exposed
        return inner.defined

"""Names that say nothing: verb fragments, participles and function words as names of helpers."""

from __future__ import annotations

import ast

_WORDS = """
met meet held told tell given give of is are was has had does do did can may must here there
anew again room rooms turn turns turned remember remembered remembering repeated earlier kinds
made found shown show asked ask kept keep said say taken take tried heard seen left lent gone
goes both either each other others another one ones alone together apart alike before begun
become past now then elsewhere instead twice once maybe certain fresh brief plain whole wrong
bad own over through with without within where ahead around along less more lacks lacking like
look life lives unmet blaming complain forgets
"""
FORBIDDEN = frozenset(_WORDS.split())


def forbidden_names(tree: ast.Module) -> list[ast.FunctionDef | ast.ClassDef]:
    """Functions, methods and classes of a module whose name is one of FORBIDDEN."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.endswith("__")
        and node.name.strip("_").lower() in FORBIDDEN
    ]

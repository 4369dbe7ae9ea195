"""The check of a kernel's language: static, over its source and that of all code it references.

Since NKI 0.7 Python traces a kernel, which may use all of Python. Earlier releases parsed it, and
so does 0.7 where the environment asks for that: then the rules of `subset_rules` hold.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import BoundArguments
from itertools import product
from types import FunctionType
from typing import Any

from glia.base.loc import Loc
from glia.nki.names.language_errors import NotInLanguage, advise
from glia.nki.source.definitions import (
    Definition,
    bound_names,
    definition_of,
    is_user_code,
    referenced_values,
    unwrap,
)
from glia.nki.source.frontend import Frontend, frontend
from glia.nki.source.subset_rules import ARGUMENTS, NAMES, RULES, SubsetRule


@dataclass(frozen=True)
class Finding:
    """A violation of a rule and its location."""

    rule: SubsetRule
    loc: Loc


def check_language(kernel: Callable[..., Any], bound: BoundArguments) -> None:
    """NotInLanguage for a kernel that the parser refuses, a warning for what it advises against.

    A kernel is checked once, with the functions and classes that it references and the classes of
    its arguments; the arguments are checked every time. A kernel without source cannot be checked,
    which is a warning.
    """
    function = unwrap(kernel)
    if frontend() is Frontend.TRACER or not is_user_code(function):
        return
    parameters = bound.signature.parameters.values()
    values = [bound.arguments.get(each.name, each.default) for each in parameters]
    for root in (function, *map(type, values)):
        if is_user_code(root):
            code = getattr(root, "__code__", root)
            _check_root(_Root(getattr(code, "co_filename", ""), code, root))
    home = Loc(function.__code__.co_filename, function.__code__.co_firstlineno, function.__name__)
    for value, rule in product(values, ARGUMENTS):
        if rule.breaks(value, frozenset()):
            _report(Finding(rule, home))


@dataclass(frozen=True)
class _Root:
    """A kernel or class: code objects are equal also where their files are not."""

    file: str
    code: Any
    value: Any = field(compare=False)


@lru_cache(maxsize=1024)
def _check_root(root: _Root) -> None:
    for found in findings(root.value):
        _report(found)


def findings(root: Any) -> Iterator[Finding]:
    """The violations in a kernel or class and in the user's code that it references.

    Each definition reports a rule once, at its first violation.
    """
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        definition = definition_of(each)
        if definition is not None:
            yield from _rule_findings(definition, each, "kernel" if each is root else "helper")
            names = list(referenced_values(definition, each))
            yield from _name_findings(definition, names)
            waiting.extend(found for _, found in names if is_user_code(found))
        elif each is root and isinstance(each, FunctionType):
            text = f"kernel {each.__name__} has no source: its language is not checked"
            advise(text, Loc(each.__code__.co_filename, each.__code__.co_firstlineno))


@lru_cache(maxsize=1)
def _rules_by_node() -> dict[type[ast.AST], list[SubsetRule]]:
    rules: dict[type[ast.AST], list[SubsetRule]] = {}
    for rule in RULES:
        for kind in rule.kinds:
            rules.setdefault(kind, []).append(rule)
    return rules


def _rule_findings(definition: Definition, value: Any, role: str) -> Iterator[Finding]:
    rules, bound, node = _rules_by_node(), bound_names(value), definition.node
    line = node.lineno
    reported: set[str] = set()
    for each in (node, *definition.body):
        line = getattr(each, "lineno", line)
        roles: tuple[str, ...] = ("body",)
        if each is node:
            roles = ("class",) if isinstance(value, type) else ("function", role)
        for rule in rules.get(type(each), ()):
            if rule.scope in roles and rule.name not in reported and rule.breaks(each, bound):
                reported.add(rule.name)
                yield Finding(rule, Loc(definition.file, line + definition.lines_above, node.name))


def _name_findings(definition: Definition, names: list[tuple[Any, Any]]) -> Iterator[Finding]:
    for rule in NAMES:
        for node, value in names:
            if rule.breaks(value, frozenset()):
                line = node.lineno + definition.lines_above
                yield Finding(rule, Loc(definition.file, line, definition.node.name))
                break


def _report(found: Finding) -> None:
    rule, loc = found.rule, found.loc
    if not rule.is_advice:
        raise NotInLanguage(rule=rule.sentence, cure=rule.rewrite, source=rule.source, loc=loc)
    advise(f"{loc.name}: {rule.sentence}; {rule.rewrite} ({rule.source})", loc)

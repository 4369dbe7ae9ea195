"""The check of a kernel's language: its source, and that of all it names, is read and not run.

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
    is_users,
    named,
    plain,
)
from glia.nki.source.frontend import Frontend, frontend
from glia.nki.source.subset_rules import ARGUMENTS, NAMES, RULES, Rule


@dataclass(frozen=True)
class Found:
    """A rule that a program breaks, and where."""

    rule: Rule
    loc: Loc


def check_language(kernel: Callable[..., Any], bound: BoundArguments) -> None:
    """NotInLanguage for a kernel that the parser refuses, a warning for what it advises against.

    A kernel is asked once, with the functions and classes that it names and the classes of its
    arguments; the arguments are asked every time. Of a kernel without source, which nobody can
    ask, a warning says so.
    """
    function = plain(kernel)
    if frontend() is Frontend.TRACER or not is_users(function):
        return
    parameters = bound.signature.parameters.values()
    values = [bound.arguments.get(each.name, each.default) for each in parameters]
    for root in (function, *map(type, values)):
        if is_users(root):
            code = getattr(root, "__code__", root)
            _ask(_Root(getattr(code, "co_filename", ""), code, root))
    home = Loc(function.__code__.co_filename, function.__code__.co_firstlineno, function.__name__)
    for value, rule in product(values, ARGUMENTS):
        if rule.breaks(value, frozenset()):
            _tell(Found(rule, home))


@dataclass(frozen=True)
class _Root:
    """A kernel or class: code objects are equal also where their files are not."""

    file: str
    code: Any
    value: Any = field(compare=False)


@lru_cache(maxsize=1024)
def _ask(root: _Root) -> None:
    for found in findings(root.value):
        _tell(found)


def findings(root: Any) -> Iterator[Found]:
    """What a kernel or class, or the user's code that it names, does against the rules.

    Each rule that a definition breaks once, at its first place.
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
            yield from _broken(definition, each, "kernel" if each is root else "helper")
            names = list(named(definition, each))
            yield from _badly_named(definition, names)
            waiting.extend(found for _, found in names if is_users(found))
        elif each is root and isinstance(each, FunctionType):
            text = f"kernel {each.__name__} has no source: its language is not checked"
            advise(text, Loc(each.__code__.co_filename, each.__code__.co_firstlineno))


@lru_cache(maxsize=1)
def _by_kind() -> dict[type[ast.AST], list[Rule]]:
    rules: dict[type[ast.AST], list[Rule]] = {}
    for rule in RULES:
        for kind in rule.kinds:
            rules.setdefault(kind, []).append(rule)
    return rules


def _broken(definition: Definition, value: Any, role: str) -> Iterator[Found]:
    rules, bound, node = _by_kind(), bound_names(value), definition.node
    line = node.lineno
    told: set[str] = set()
    for each in (node, *definition.body):
        line = getattr(each, "lineno", line)
        roles: tuple[str, ...] = ("body",)
        if each is node:
            roles = ("class",) if isinstance(value, type) else ("function", role)
        for rule in rules.get(type(each), ()):
            if rule.of in roles and rule.name not in told and rule.breaks(each, bound):
                told.add(rule.name)
                yield Found(rule, Loc(definition.file, line + definition.above, node.name))


def _badly_named(definition: Definition, names: list[tuple[Any, Any]]) -> Iterator[Found]:
    for rule in NAMES:
        for node, value in names:
            if rule.breaks(value, frozenset()):
                line = node.lineno + definition.above
                yield Found(rule, Loc(definition.file, line, definition.node.name))
                break


def _tell(found: Found) -> None:
    rule, loc = found.rule, found.loc
    if not rule.is_advice:
        raise NotInLanguage(rule=rule.sentence, cure=rule.rewrite, source=rule.source, loc=loc)
    advise(f"{loc.name}: {rule.sentence}; {rule.rewrite} ({rule.source})", loc)

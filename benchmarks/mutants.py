"""Plant small faults in the meanings and rules of instructions; list those that no test notices.

    PYTHONPATH=src python benchmarks/mutants.py [part of a function's name ...]

Every function of glia.isa that computes values or says what is legal is changed in one place at a
time: operands exchanged, a comparison or a constant off by one, a branch or a flag turned round,
another rule for NaN or for rounding; and every entry of the tables of operators and functions as a
whole. The laws in tests/law that reach the change run, those that reach little else first, until
one of them fails. Some survivors mean the same as the original; the others want a test.
"""

from __future__ import annotations

import ast
import copy
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from _pytest.runner import runtestprotocol

from glia.isa import activation, alu

Definition = ast.FunctionDef | ast.Lambda
KEPT = "kept"  # the name under which a lambda is compiled

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 20  # of tests for one mutant
VALUES = ("Array", "Results", "list[tuple", "Any", "int", "float", "bool")  # of a meaning, a rule
OTHERS = ("cycles", "transfer_nanoseconds", "rate", "moved_bytes", "descriptors", "passes")
WITHOUT_MEANINGS = (".cost", ".examples", ".kit", ".form")

ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift, ast.MatMult)
OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.And: ast.Or, ast.Or: ast.And, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
NAMES = {
    "maximum": "fmax", "minimum": "fmin", "rint": "floor", "argmax": "argmin", "max": "min",
    "min": "max", "floor": "rint", "abs": "positive", "sum": "max", "exp": "expm1",
    "mod": "fmod", "fmod": "mod", "log1p": "log", "square": "abs", "sqrt": "cbrt",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One fault: where it is and what it does, the code that meets it, and how it is planted."""

    where: str
    what: str
    code: CodeType | None  # None: whatever names the entry of a table
    plant: Callable[[], None]


# --- which functions have meanings --------------------------------------------------------------


def functions() -> Iterator[tuple[str, FunctionType]]:
    """Every function of glia.isa that computes values, by name."""
    seen: set[int] = set()
    for module_name, module in sorted(sys.modules.items()):
        if module_name.startswith("glia.isa.") and not module_name.endswith(WITHOUT_MEANINGS):
            for name, function in _functions_of(module_name.removeprefix("glia.isa."), module):
                if id(function) not in seen:  # rules are shared
                    seen.add(id(function))
                    yield name, function


def _functions_of(name: str, module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    own = {k: v for k, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__}
    for key, value in own.items():
        members = list(vars(value).items()) if inspect.isclass(value) else [("", value)]
        own_rules = vars(value).get("rules", ()) if inspect.isclass(value) else ()
        members += [("rules", rule.holds) for rule in own_rules]
        for inner, member in members:
            function = getattr(member, "__func__", member)
            if isinstance(function, FunctionType) and _has_meaning(function):
                yield ".".join(filter(None, (name, key, inner))), function


def _has_meaning(function: FunctionType) -> bool:
    if function.__closure__ is not None:
        return False  # its code serves many rules
    if function.__name__ == "<lambda>":
        return True
    if function.__name__ in OTHERS or function.__name__.startswith("__"):
        return False
    returned = str(function.__annotations__.get("return", ""))
    return function.__name__ == "compute" or any(part in returned for part in VALUES)


# --- faults in functions ------------------------------------------------------------------------


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    match node:
        case ast.BinOp(left, op, right):
            if isinstance(op, ORDERED):
                yield ast.BinOp(right, op, left)
            if type(op) in OPERATORS:
                yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.Compare(left, [op], [right]) if type(op) in OPERATORS:
            yield ast.Compare(left, [OPERATORS[type(op)]()], [right])
        case ast.BoolOp(op, values):
            yield ast.BoolOp(OPERATORS[type(op)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.Invert(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.If(test, body, orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant("F" | "C" as value):
            yield ast.Constant("C" if value == "F" else "F")
        case ast.Call(ast.Attribute(_, "where") as function, [test, yes, no]):
            yield ast.Call(function, [test, no, yes], [])
        case ast.Attribute(value, name, context) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], context)
        case ast.Slice(lower, upper, step) if lower or upper:
            yield ast.Slice(None, None, step)


def mutants_of(name: str, function: FunctionType) -> Iterator[Mutant]:
    """Every change of one function."""
    definition = _definition(function)
    nodes = _nodes(definition)
    harmless = {id(each.operand) for each in nodes if isinstance(each, ast.UnaryOp)}
    harmless |= {id(each.value) for each in nodes if isinstance(each, ast.keyword)}
    types = [getattr(each, "annotation", getattr(each, "returns", None)) for each in nodes]
    harmless |= {id(part) for each in types if each is not None for part in ast.walk(each)}
    for number, node in enumerate(nodes):
        if isinstance(node, ast.Constant | ast.BinOp) and id(node) in harmless:
            continue  # the 1 of reshape(-1), options such as copy=False, types
        for changed in changes(node):
            what = f"{ast.unparse(node)[:60]!r} -> {ast.unparse(changed)[:60]!r}"
            code = _compiled(function, definition, number, changed)
            where = f"{name}:{getattr(node, 'lineno', '')}"
            yield Mutant(where, what, function.__code__, _replacing(function, code))


def _nodes(definition: Definition) -> list[ast.AST]:
    parts = definition.body if isinstance(definition, ast.FunctionDef) else [definition.body]
    return [node for part in parts for node in ast.walk(part)]


def _definition(function: FunctionType) -> Definition:
    code = function.__code__
    tree = ast.parse(Path(code.co_filename).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        is_lambda = isinstance(node, ast.Lambda) and function.__name__ == "<lambda>"
        if is_lambda and node.lineno == code.co_firstlineno:
            return node
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            starts = (node.lineno, *(each.lineno for each in node.decorator_list))
            if code.co_firstlineno in starts:
                return node
    raise LookupError(function)


class _Exchange(ast.NodeTransformer):
    def __init__(self, target: ast.AST, changed: ast.AST) -> None:
        self.target, self.changed = target, changed

    def visit(self, node: ast.AST) -> Any:
        if node is self.target:
            return ast.copy_location(copy.deepcopy(self.changed), node)
        return self.generic_visit(node)


def _compiled(
    function: FunctionType, definition: Definition, number: int, changed: ast.AST
) -> CodeType:
    """The code of the function with another node in the place of one of its nodes."""
    tree = copy.deepcopy(definition)
    if isinstance(tree, ast.FunctionDef):
        tree.decorator_list = []
    tree = _Exchange(_nodes(tree)[number], changed).visit(tree)
    if isinstance(tree, ast.Lambda):
        tree = ast.copy_location(ast.Assign([ast.Name(KEPT, ast.Store())], tree), tree)
    module = ast.fix_missing_locations(ast.Module([tree], []))
    names: dict[str, Any] = {}
    exec(compile(module, function.__code__.co_filename, "exec"), {**function.__globals__}, names)
    return names[getattr(tree, "name", KEPT)].__code__


def _replacing(function: FunctionType, code: CodeType) -> Callable[[], None]:
    def plant() -> None:
        function.__code__ = code

    return plant


# --- faults in tables ---------------------------------------------------------------------------


def of_tables() -> Iterator[Mutant]:
    """Operators and functions that compute something else."""
    for name, op in alu.ALU_OPS.items():
        if op.arity == 2:
            exchanged = lambda a, b, f=op.compute: f(b, a)  # noqa: E731
            yield _entry(alu.ALU_OPS, name, "operands exchanged", exchanged)
        yield from _either(alu.ALU_OPS, name, op.compute)
    for name, declared in activation.ACTIVATIONS.items():
        mirrored = lambda x, *more, f=declared.compute: f(-x, *more)  # noqa: E731
        yield _entry(activation.ACTIVATIONS, name, "of -x", mirrored)
        yield from _either(activation.ACTIVATIONS, name, declared.compute)


def _either(table: dict[str, Any], name: str, compute: Callable[..., Any]) -> Iterator[Mutant]:
    yield _entry(table, name, "a thousandth more", lambda *v: _more(compute(*v)))
    yield _entry(table, name, "NaN is 0", lambda *v: np.nan_to_num(compute(*v), nan=0.0))


def _more(values: Any) -> Any:
    if values.dtype.kind == "f":
        return values * np.float32(1.001)
    return values ^ values.dtype.type(1)


def _entry(table: dict[str, Any], name: str, what: str, compute: Callable[..., Any]) -> Mutant:
    changed = replace(table[name], compute=compute)
    return Mutant(f"table:{name}", what, None, lambda: table.update({name: changed}))


# --- the run ------------------------------------------------------------------------------------


class Planter:
    """A pytest plugin that runs the collected tests on every mutant instead of once."""

    def __init__(self, wanted: list[str]) -> None:
        self.wanted = wanted

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all of it; True says that nothing is left to do."""
        reached, seconds = _reached(session.items)
        nearest = sorted(
            session.items, key=lambda item: (len(reached[item.nodeid]), seconds[item.nodeid])
        )
        every = [m for name, f in functions() for m in mutants_of(name, f)] + list(of_tables())
        mutants = [m for m in every if not self.wanted or any(w in m.where for w in self.wanted)]
        survivors = 0
        for mutant in mutants:
            name = mutant.where.split(":")[1]
            tests = [
                item for item in nearest
                if mutant.code in reached[item.nodeid] or (not mutant.code and name in item.nodeid)
            ]  # fmt: skip
            if not _is_noticed(mutant, tests):
                survivors += 1
                print(f"{mutant.where}: {mutant.what} ({len(tests)} tests)", flush=True)
        print(f"{survivors} of {len(mutants)} mutants survive {len(nearest)} tests")
        return True


def _reached(items: list[pytest.Item]) -> tuple[dict[str, set[CodeType]], dict[str, float]]:
    """Which code of glia.isa every test runs, and how long it takes."""
    reached: dict[str, set[CodeType]] = {}
    seconds: dict[str, float] = {}
    for item in items:
        codes = reached[item.nodeid] = set()

        def watch(frame: Any, event: str, _: Any, codes: set[CodeType] = codes) -> None:
            if event == "call" and "/isa/" in frame.f_code.co_filename:
                codes.add(frame.f_code)

        start = time.perf_counter()
        threading.setprofile(watch)  # cores that meet run in threads
        sys.setprofile(watch)
        runtestprotocol(item, log=False, nextitem=None)
        sys.setprofile(None)
        threading.setprofile(None)
        seconds[item.nodeid] = time.perf_counter() - start
    return reached, seconds


def _is_noticed(mutant: Mutant, tests: list[pytest.Item]) -> bool:
    """Whether a test fails, in a process of its own."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    signal.alarm(2 * SECONDS)  # whoever hangs is noticed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    mutant.plant()
    end = time.monotonic() + SECONDS
    for item in tests:
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
            os._exit(1)
        if time.monotonic() > end:
            break
    os._exit(0)


def main() -> None:
    """Plant all faults, or those in functions that are named."""
    files = [
        *sorted((ROOT / "tests/law/isa").glob("test_isa_*.py")),
        ROOT / "tests/law/test_footprints.py",
    ]
    pytest.main([*map(str, files), "-q", "-p", "no:cacheprovider"], plugins=[Planter(sys.argv[1:])])


if __name__ == "__main__":
    main()

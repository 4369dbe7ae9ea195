"""A case as a program of inputs: its MLIR rewritten, its constants and checks as arrays.

The constants of the function under test become arguments of `main`, so that the compiler cannot
fold what the case is about; constants that are part of a shape or of a call's meaning stay. Every
check becomes a result of `main` and an expected value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glia.conformance.errors import NoChecks
from glia.frontend.stablehlo import import_stablehlo, mlir_bindings, parse_module
from glia.graph.evaluate import evaluate

PARALLEL = "interpreter.run_parallel"  # names the function of each process, by replicas
UNCHECKED = "unchecked"

_ALMOST = 1e-4  # the default tolerance of check.expect_almost_eq
_ALMOST_CALLED = 1e-3  # what the interpreter takes for a call of @check.expect_almost_eq
_UNITS = 3  # units in the last place of the terms of a sum
_INACCURATE = "RUN-DISABLED(inaccurate)"  # the interpreter itself does not pass the check
_WHERE_INACCURATE = 10  # times as many units are allowed
_ULPS_CALLED = 3  # and for one of @check.expect_close

_NAME = r"%[\w.$#-]+"
_TYPE = r"tensor<(?:[^<>]|<[^<>]*>)*>"
_TOLERANCE = r"(?:,\s*tolerance\s*=\s*(?P<tolerance>[-+.\w]+))?"
_DENSE = re.compile(rf"dense<[^>]*>\s*:\s*(?P<type>{_TYPE})")
_AS_CONSTANT = re.compile(
    rf"(?P<check>check\.expect_\w+_const)\s+(?P<actual>{_NAME}),"
    rf"\s*(?P<value>{_DENSE.pattern}){_TOLERANCE}"
)
_AS_VALUE = re.compile(
    rf"(?P<check>check\.expect_\w+)\s+(?P<operands>{_NAME},\s*{_NAME}){_TOLERANCE}"
    rf"(?:,\s*max_ulp_difference\s*=\s*(?P<ulps>\d+))?[^:]*:\s*(?P<type>{_TYPE})(?:,\s*{_TYPE})?"
)
_PROPERTIES = re.compile(r'("check\.\w+"\([^)]*\)) <(\{[^}]*\})>')


@dataclass(frozen=True)
class ValueCheck:
    """What a result must be: equal, within an absolute tolerance, or within units in last place.

    `units` are those in the last place of the terms of a sum that are allowed too. Without
    `expected` the value is the next result of the program, which has no check of its own. A result
    of kind UNCHECKED may be anything.
    """

    kind: str  # eq, almost_eq, close or UNCHECKED
    limit: float = 0
    expected: np.ndarray | None = None
    units: float = 0


@dataclass(frozen=True)
class Program:
    """A module whose `main` takes `inputs` and returns one value for each of `checks`.

    `ranks` run it at once; inputs and checks are those of the first, then of the second, and so on.
    """

    module: str
    inputs: tuple[np.ndarray, ...]
    checks: tuple[ValueCheck, ...]
    ranks: int = 1


def read_program(text: str) -> Program:
    """The program of a case.

    Raises NoChecks when no function of the module checks anything, FrameworkMissing without
    jaxlib, and the errors of `import_stablehlo`.
    """
    ir = mlir_bindings("a conformance case")
    module = parse_module(_generic_checks(text))
    with module.context, ir.Location.unknown():
        functions = {f.name.value: f for f in module.body.operations if hasattr(f, "entry_block")}
        program = _Rewriting(ir, module, functions).program()
    is_inaccurate = _INACCURATE in text
    checks = (replace(each, units=_units(each, is_inaccurate)) for each in program.checks)
    return replace(program, checks=tuple(checks))


def _units(check: ValueCheck, is_inaccurate: bool) -> float:
    if check.kind in ("eq", UNCHECKED):
        return 0
    return _UNITS * (_WHERE_INACCURATE if is_inaccurate else 1)


def _generic_checks(text: str) -> str:
    """The text with checks in the generic form, which needs no dialect."""

    def constant(found: re.Match[str]) -> str:
        tolerance = found["tolerance"] or _ALMOST
        attributes = f"value = {found['value']}, tolerance = {tolerance} : f64"
        return f'"{found["check"]}"({found["actual"]}) {{{attributes}}} : ({found["type"]}) -> ()'

    def value(found: re.Match[str]) -> str:
        limits = f"tolerance = {found['tolerance'] or _ALMOST} : f64"
        limits += f", max_ulp_difference = {found['ulps'] or 0}"
        types = f"({found['type']}, {found['type']})"
        return f'"{found["check"]}"({found["operands"]}) {{{limits} : i64}} : {types} -> ()'

    text = _PROPERTIES.sub(r"\1 \2", text)
    return _AS_VALUE.sub(value, _AS_CONSTANT.sub(constant, text))


class _Rewriting:
    """The one rewriting of a parsed module; `program` may be called once."""

    def __init__(self, ir: Any, module: Any, functions: dict[str, Any]) -> None:
        self.ir = ir
        self.module = module
        self.functions = functions

    def program(self) -> Program:
        function, checks = self._function_under_test()
        for op in function.entry_block:
            if op.operation.name == PARALLEL:
                return self._parallel_program(function, op.operation, checks)
        block = function.entry_block
        kinds = [_kind_and_limit(op) for op in checks]
        expected = [self._expected(op) for op in checks]
        results = [
            value
            for op, literal in zip(checks, expected, strict=True)
            for value in (op.operands if literal is None else op.operands[:1])
        ]
        is_expected = [op.operands[1] for op in checks if len(op.operands) == 2]
        inputs = self._constants_as_arguments(block, is_expected)
        self._return(function, results)
        for op in checks:
            op.operation.erase()
        arrays = iter(_arrays([*inputs, *(each for each in expected if each is not None)]))
        values = tuple(next(arrays) for _ in inputs)
        wanted = (None if each is None else next(arrays) for each in expected)
        found = (ValueCheck(*kind, each) for kind, each in zip(kinds, wanted, strict=True))
        return Program(str(self.module), values, tuple(found))

    def _parallel_program(self, function: Any, parallel: Any, checks: list[Any]) -> Program:
        """The program that the processes of a case run; each has the same function."""
        rows = [[each.value for each in row] for row in parallel.attributes["programs"]]
        (name,) = {each for row in rows for each in row}
        given = [self._literal(value) for value in parallel.operands]
        if any(literal is None for literal in given):
            raise NoChecks(what="a case whose processes take computed arguments")
        found = [ValueCheck(UNCHECKED)] * len(parallel.results)
        literals = [self._expected(op) for op in checks]
        values = _arrays([each for each in (*given, *literals) if each is not None])
        expected = iter(values[len(given) :])
        for op, literal in zip(checks, literals, strict=True):
            if literal is not None:
                place = op.operands[0].result_number
                found[place] = ValueCheck(*_kind_and_limit(op), next(expected))
        function.operation.erase()
        attributes = self.module.operation.attributes
        number = self.ir.IntegerType.get_signless(32)
        for key, count in (("mhlo.num_replicas", len(rows)), ("mhlo.num_partitions", len(rows[0]))):
            attributes[key] = self.ir.IntegerAttr.get(number, count)
        self.functions[name].operation.attributes["sym_name"] = self.ir.StringAttr.get("main")
        inputs = tuple(values[: len(given)])
        return Program(str(self.module), inputs, tuple(found), len(rows) * len(rows[0]))

    def _function_under_test(self) -> tuple[Any, list[Any]]:
        for function in self.functions.values():
            checks = [op for op in function.entry_block if _check_name(op)]
            if checks:
                return function, checks
        raise NoChecks(what="the module")

    def _literal(self, value: Any) -> tuple[str, str] | None:
        """The text and type of a constant, or of a call's result that is one; else None."""
        if not hasattr(value.owner, "operation"):
            return None  # an argument of a block
        operation = value.owner.operation
        if operation.name == "stablehlo.constant":
            return _dense(operation)
        if operation.name != "func.call" or len(operation.operands):
            return None
        callee = self.functions[operation.attributes["callee"].value]
        return self._literal(_terminator(callee.entry_block).operands[value.result_number])

    def _expected(self, check: Any) -> tuple[str, str] | None:
        """The text and type of what a check compares with; None when another computed value."""
        if "value" in check.operation.attributes:
            return _dense(check.operation)
        return self._literal(check.operands[1])

    def _constants_as_arguments(self, block: Any, is_expected: list[Any]) -> list[tuple[str, str]]:
        """Replace constants by arguments of the block; their texts and types."""
        values = [
            (result, literal)
            for op in block
            for result in op.operation.results
            if (literal := self._literal(result)) is not None
            and result not in is_expected
            and not any(_is_static(use) for use in result.uses)
        ]
        for result, _ in values:
            argument = block.add_argument(result.type, self.ir.Location.unknown())
            result.replace_all_uses_with(argument)
        return [literal for _, literal in values]

    def _return(self, function: Any, results: list[Any]) -> None:
        """End the function with other results, and make it `main`."""
        ir, block = self.ir, function.entry_block
        _terminator(block).operation.erase()
        with ir.InsertionPoint(block):
            ir.Operation.create("func.return", operands=results)
        types = [argument.type for argument in block.arguments]
        signature = ir.FunctionType.get(types, [value.type for value in results])
        attributes = function.operation.attributes
        attributes["function_type"] = ir.TypeAttr.get(signature)
        attributes["sym_name"] = ir.StringAttr.get("main")
        for name in ("arg_attrs", "res_attrs", "sym_visibility"):
            if name in attributes:
                del attributes[name]


def _is_static(use: Any) -> bool:
    """Whether a use must stay a constant: a shape, or an operand of an opaque call."""
    name = use.owner.operation.name
    if re.fullmatch(r"stablehlo\.(real_)?dynamic_(?!slice|update|iota)\w+", name):
        return bool(use.operand_number > 0)
    return name in ("stablehlo.dynamic_iota", "stablehlo.custom_call")


def _terminator(block: Any) -> Any:
    return block.operations[len(block.operations) - 1]


def _check_name(op: Any) -> str:
    """eq, almost_eq or close for an operation that checks values, else ""."""
    name = op.operation.name
    if name == "stablehlo.custom_call":
        name = op.operation.attributes["call_target_name"].value
    found = re.fullmatch(r"check\.(?:expect_)?(eq|almost_eq|close)(?:_const)?", name)
    return found[1] if found else ""


def _kind_and_limit(check: Any) -> tuple[str, float]:
    kind = _check_name(check)
    attributes = check.operation.attributes

    def limit(name: str, default: float) -> float:
        return float(attributes[name].value) if name in attributes else default

    is_called = check.operation.name == "stablehlo.custom_call"
    if kind == "close":
        return kind, limit("max_ulp_difference", _ULPS_CALLED)
    if is_called and attributes["call_target_name"].value == "check.eq":
        is_float = _is_float(check.operands[0].type.element_type)
        return ("almost_eq", _ALMOST) if is_float else ("eq", 0)
    if kind == "almost_eq":
        return kind, _ALMOST_CALLED if is_called else limit("tolerance", _ALMOST)
    return kind, 0


def _is_float(element: Any) -> bool:
    return re.fullmatch(r"b?f\d\w*|complex<f32>", str(element)) is not None


def _dense(operation: Any) -> tuple[str, str]:
    """The text and type of the constant in an operation; MLIR's bindings read few dtypes."""
    found = _DENSE.search(operation.get_asm())
    assert found is not None
    return found[0], found["type"]


def _arrays(literals: list[tuple[str, str]]) -> list[np.ndarray]:
    """The values of constants, read as those of any other module."""
    if not literals:
        return []
    names = [f"%{number}" for number in range(len(literals))]
    types = ", ".join(declared for _, declared in literals)
    body = (f"{n} = stablehlo.constant {v}" for n, (v, _) in zip(names, literals, strict=True))
    end = f"return {', '.join(names)} : {types}"
    text = "\n".join((f"func.func @main() -> ({types}) {{", *body, end, "}"))
    return [np.array(array) for array in evaluate(import_stablehlo(text), [])]

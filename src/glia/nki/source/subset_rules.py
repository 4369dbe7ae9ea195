"""The part of Python that NKI's parser takes: every rule with its source, cure and two programs.

A rule is declared here and nowhere else: the check, its messages, docs/nki-language.md and the
tests read it. What no public text speaks of is allowed.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Set
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import Any

import numpy as np

GATHER = "leanprover/KLR, interop/klr/gather.c"
SIMPLIFY = "leanprover/KLR, KLR/NKI/Simplify.lean"
GUIDE = "NKI language guide, release 2.32"
MIGRATION = "NKI migration guide, 0.2.0 to 0.3.0, language restrictions"
ANNOUNCEMENT = "Announcing changes to NKI specialization, 16 October 2026"

# Python's own functions that the parser knows.
KNOWN_BUILTINS = frozenset({
    "abs", "bool", "dict", "divmod", "float", "int", "isinstance", "len", "list", "max", "min",
    "print", "range", "slice", "str", "tuple", "type",
})  # fmt: skip
_BUILTINS = frozenset(
    name
    for name, value in vars(builtins).items()
    if not (isinstance(value, type) and issubclass(value, BaseException))
    and name not in KNOWN_BUILTINS
)


@dataclass(frozen=True)
class Rule:
    """One sentence of the language: what is refused, and what to write in its place.

    A rule looks at nodes of its `kinds`: those in the body of a function, or the definition itself
    where `of` names one: every "function", the "kernel" that is launched, a "helper" that it names,
    a "class". Where `of` is "argument" or "name" it looks at values. `breaks` also gets the names
    that the code or its module binds. `refused` breaks this rule and no other, `legal` is the
    nearest program that breaks none; both are the body of a kernel of `x`, or a module that defines
    one. Advice warns, anything else is an error.
    """

    name: str
    sentence: str
    rewrite: str
    source: str
    kinds: tuple[type[ast.AST], ...]
    breaks: Callable[[Any, Set[str]], bool] = lambda node, bound: True
    _: KW_ONLY
    refused: str
    legal: str
    of: str = "body"
    is_advice: bool = False


# --- what a rule looks at ------------------------------------------------------------------------


def _kinds(*names: str) -> tuple[type[ast.AST], ...]:
    """Kinds of nodes by name, those that the grammar of this Python has."""
    return tuple(getattr(ast, name) for name in names if hasattr(ast, name))


def last_name(node: ast.expr) -> str:
    """The last name of what is called, inherited from or decorates: `jit` of @nki.jit(...)."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_other_context(node: ast.With, bound: Set[str]) -> bool:
    call = node.items[0].context_expr
    is_bare = isinstance(call, ast.Call) and not call.args and not call.keywords
    is_named = any(item.optional_vars is not None for item in node.items)
    return len(node.items) > 1 or is_named or not is_bare or last_name(call) != "no_reorder"


def _compares_identity(node: ast.Compare, bound: Set[str]) -> bool:
    operands = [node.left, *node.comparators]
    return any(
        isinstance(operator, ast.Is | ast.IsNot) and not (_is_none(left) or _is_none(right))
        for operator, left, right in zip(node.ops, operands, operands[1:], strict=False)
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _has_other_key(node: ast.Dict, bound: Set[str]) -> bool:
    return any(isinstance(k, ast.Constant) and not isinstance(k.value, str) for k in node.keys)


def _is_wide(node: ast.Constant, bound: Set[str]) -> bool:
    return type(node.value) is int and node.value >= 2**32


def _calls_other_builtin(node: ast.Call, bound: Set[str]) -> bool:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    return name in _BUILTINS and name not in bound


def _has_other_decorator(node: ast.FunctionDef, bound: Set[str]) -> bool:
    return any(last_name(d) not in ("jit", "staticmethod") for d in node.decorator_list)


def _has_other_base(node: ast.ClassDef, bound: Set[str]) -> bool:
    bases = [last_name(base) for base in node.bases]
    allowed = ("NKIObject", "Enum", "NamedTuple")
    return len(bases) != 1 or not any(word in bases[0] for word in allowed)


def _holds_more(node: ast.ClassDef, bound: Set[str]) -> bool:
    fields = ast.Pass | ast.Assign | ast.AnnAssign | ast.FunctionDef
    return not all(isinstance(each, fields) or _is_text(each) for each in node.body)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_numpy_dtype(value: Any) -> bool:
    is_scalar_type = isinstance(value, type) and issubclass(value, np.generic)
    return is_scalar_type or isinstance(value, np.dtype)


_BETA1_PACKAGES = ("glia.nki.beta1.", "glia_dropin.neuronxcc.", "neuronxcc.")


def _is_of_beta1(value: Any) -> bool:
    name = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None)
    return f"{name}.".startswith(_BETA1_PACKAGES)


# --- the rules -----------------------------------------------------------------------------------

STATEMENTS = (
    Rule(
        "try", "a kernel has no `try`",
        "ask with `if` before, or state with `assert` what must hold",
        GATHER, _kinds("Try", "TryStar"),
        refused="try:\n    n = x.shape[1]\nexcept IndexError:\n    n = 1",
        legal="n = 1\nif len(x.shape) > 1:\n    n = x.shape[1]",
    ),
    Rule(
        "raise", "a kernel has no `raise`", "write `assert condition, message`",
        GATHER, _kinds("Raise"),
        refused="if len(x.shape) != 2:\n    raise ValueError('x has no rows')",
        legal="assert len(x.shape) == 2, 'x has no rows'",
    ),
    Rule(
        "import", "a kernel has no `import`", "import at the top of the module",
        GATHER, _kinds("Import", "ImportFrom"),
        refused="import math\nn = math.ceil(x.shape[0] / 2)",
        legal="n = (x.shape[0] + 1) // 2",
    ),
    Rule(
        "global", "a kernel does not assign to global names", "pass and return what changes",
        GATHER, _kinds("Global"),
        refused="global count\ncount = 1", legal="count = 1",
    ),
    Rule(
        "nonlocal", "a function in a kernel does not assign to names around it",
        "keep what changes in a dict or list",
        GATHER, _kinds("Nonlocal"),
        refused="n = 0\ndef body(i):\n    nonlocal n\n    n = 1\nnl.fori_loop(0, 2, body)",
        legal="n = [0]\ndef body(i):\n    n[0] = 1\nnl.fori_loop(0, 2, body)",
    ),
    Rule(
        "del", "a kernel has no `del`", "leave it out, or call pop of the list or dict",
        GATHER, _kinds("Delete"),
        refused="sizes = [1, 2]\ndel sizes[1]", legal="sizes = [1, 2]\nsizes.pop()",
    ),
    Rule(
        "match", "a kernel has no `match`", "write `if` and `elif`",
        GATHER, _kinds("Match"),
        refused="match x.shape[0]:\n    case 1:\n        n = 2\n    case other:\n        n = 1",
        legal="if x.shape[0] == 1:\n    n = 2\nelse:\n    n = 1",
    ),
    Rule(
        "async", "a kernel is not asynchronous", "leave out async and await",
        GATHER, _kinds("AsyncFunctionDef", "AsyncFor", "AsyncWith", "Await"),
        refused="async def half(n):\n    return n // 2\nn = half",
        legal="def half(n):\n    return n // 2\nn = half",
    ),
    Rule(
        "class in a kernel", "a kernel defines no class", "define it at the top of the module",
        GATHER, _kinds("ClassDef"),
        refused="class Sizes(nl.NKIObject):\n    rows: int = 1\nn = Sizes().rows",
        legal="sizes = dict(rows=1)\nn = sizes['rows']",
    ),
    Rule(
        "with", "the only `with` is `with nl.no_reorder():`",
        "call what begins and what ends as functions",
        SIMPLIFY, _kinds("With"), _is_other_context,
        refused="with nl.no_reorder() as order:\n    n = 1",
        legal="with nl.no_reorder():\n    n = 1",
    ),
    Rule(
        "loop with else", "a loop has no `else`", "keep in a variable how the loop ended",
        SIMPLIFY, _kinds("For", "While"), lambda node, bound: bool(node.orelse),
        refused="for n in range(2):\n    pass\nelse:\n    n = 3",
        legal="for n in range(2):\n    pass\nn = 3",
    ),
    Rule(
        "several loop variables", "a `for` has one variable",
        "take the element apart in the body: a, b = pair",
        SIMPLIFY, _kinds("For"), lambda node, bound: not isinstance(node.target, ast.Name),
        refused="for a, b in ((1, 2), (3, 4)):\n    n = a + b",
        legal="for pair in ((1, 2), (3, 4)):\n    a, b = pair",
    ),
)  # fmt: skip

EXPRESSIONS = (
    Rule(
        "generator", "a kernel holds no generator", "append to a list and return it",
        ANNOUNCEMENT, _kinds("Yield", "YieldFrom"),
        refused="def sizes():\n    yield 1\nn = sizes",
        legal="def sizes():\n    return [1]\nn = sizes",
    ),
    Rule(
        "lambda", "a kernel has no `lambda`", "define a function with `def`",
        GATHER, _kinds("Lambda"),
        refused="half = lambda n: n // 2\nn = half(4)",
        legal="def half(n):\n    return n // 2\nn = half(4)",
    ),
    Rule(
        "comprehension", "a kernel has no comprehension", "append to a list in a loop",
        GATHER, _kinds("ListComp", "SetComp", "DictComp", "GeneratorExp"),
        refused="sizes = [n * 2 for n in range(3)]",
        legal="sizes = []\nfor n in range(3):\n    sizes.append(n * 2)",
    ),
    Rule(
        "set", "a kernel has no set", "write a tuple or a list", GATHER, _kinds("Set"),
        refused="n = 2 in {1, 2}", legal="n = 2 in (1, 2)",
    ),
    Rule(
        "assignment in an expression", "an expression does not assign",
        "assign in a statement before",
        GATHER, _kinds("NamedExpr"),
        refused="if (n := x.shape[0]) > 1:\n    n = 1",
        legal="n = x.shape[0]\nif n > 1:\n    n = 1",
    ),
    Rule(
        "format", "a value in an f-string has no format", "write {value} alone",
        GATHER, _kinds("FormattedValue"), lambda node, bound: node.format_spec is not None,
        refused="n = f'{x.shape[0]:4d} rows'", legal="n = f'{x.shape[0]} rows'",
    ),
    Rule(
        "unpacking", "`*values` is not taken apart in calls, lists and targets",
        "name every element",
        SIMPLIFY, _kinds("Starred"),
        refused="n = max(*x.shape)", legal="n = max(x.shape[0], x.shape[1])",
    ),
    Rule(
        "unpacking of keywords", "`**values` is not taken apart in calls", "name every argument",
        SIMPLIFY, _kinds("keyword"), lambda node, bound: node.arg is None,
        refused="sizes = dict(a=1)\nsizes = dict(**sizes)", legal="sizes = dict(a=1)",
    ),
    Rule(
        "matrix product", "there is no operator `@`", "call nisa.nc_matmul or nl.matmul",
        SIMPLIFY, _kinds("BinOp", "AugAssign"),
        lambda node, bound: isinstance(node.op, ast.MatMult),
        refused="def product(a, b):\n    return a @ b\nn = product",
        legal="def product(a, b):\n    return nl.matmul(a, b)\nn = product",
    ),
    Rule(
        "kind of value", "a value is None, bool, int, float or str, not complex and not bytes",
        "write a str, or two numbers",
        GUIDE, _kinds("Constant"),
        lambda node, bound: isinstance(node.value, complex | bytes),
        refused="n = b'rows'", legal="n = 'rows'",
    ),
    Rule(
        "wide integer", "an integer has 32 bits", "compute with wider numbers on the device",
        GUIDE, _kinds("Constant"), _is_wide,
        refused="n = 4294967296", legal="n = 4294967295",
    ),
    Rule(
        "key", "the keys of a dict are strings", "write {'1': 2}, or a list",
        GUIDE, _kinds("Dict"), _has_other_key,
        refused="n = {1: 2}", legal="n = {'1': 2}",
    ),
    Rule(
        "identity", "`is` and `is not` compare with None only", "write == or !=",
        MIGRATION, _kinds("Compare"), _compares_identity, is_advice=True,
        refused="n = x.shape is x.shape", legal="n = x.shape is None",
    ),
    Rule(
        "function of Python", "the parser knows of Python's own functions only "
        + ", ".join(sorted(KNOWN_BUILTINS)),
        "write the loop",
        "leanprover/KLR, KLR/Trace/Python.lean", _kinds("Call"), _calls_other_builtin,
        is_advice=True,
        refused="n = sum((1, 2))", legal="n = max((1, 2))",
    ),
)  # fmt: skip

SIGNATURES = (
    Rule(
        "keyword-only parameter", "the parameters of a kernel have no `*` among them",
        "move those with a default to the end",
        MIGRATION, _kinds("FunctionDef"), lambda node, bound: bool(node.args.kwonlyargs),
        of="kernel",
        refused="def kernel(x, *, scale=1.0):\n    return copied(x)",
        legal="def kernel(x, scale=1.0):\n    return copied(x)",
    ),
    Rule(
        "parameters without number", "a function takes no `*values`", "take a tuple",
        SIMPLIFY, _kinds("FunctionDef"), lambda node, bound: node.args.vararg is not None,
        of="function",
        refused="def first(*values):\n    return values[0]\n\n"
        "def kernel(x):\n    return copied(first(x))",
        legal="def first(values):\n    return values[0]\n\n"
        "def kernel(x):\n    return copied(first((x, x)))",
    ),
    Rule(
        "parameters without name", "a function takes no `**values`", "name every parameter",
        SIMPLIFY, _kinds("FunctionDef"), lambda node, bound: node.args.kwarg is not None,
        of="function", is_advice=True,
        refused="def first(x, **options):\n    return x\n\n"
        "def kernel(x):\n    return copied(first(x))",
        legal="def first(x, scale=1):\n    return x\n\n"
        "def kernel(x):\n    return copied(first(x))",
    ),
    Rule(
        "decorator", "a function that a kernel calls has no decorator but nki.jit and staticmethod",
        "leave the decorator out, or write what it does into the function",
        SIMPLIFY, _kinds("FunctionDef"), _has_other_decorator, of="helper",
        refused="import functools\n\n@functools.cache\ndef half(n):\n    return n // 2\n\n"
        "def kernel(x):\n    n = half(4)\n    return copied(x)",
        legal="def half(n):\n    return n // 2\n\n"
        "def kernel(x):\n    n = half(4)\n    return copied(x)",
    ),
    Rule(
        "base class", "a class in a kernel inherits from one of NKIObject, Enum, NamedTuple",
        "derive it from nl.NKIObject alone",
        GUIDE, _kinds("ClassDef"), _has_other_base, of="class",
        refused="class Sizes:\n    rows = 1\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
        legal="class Sizes(nl.NKIObject):\n    rows = 1\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
    ),
    Rule(
        "keyword of a class", "a class has no keywords, such as metaclass=", "leave it out",
        GATHER, _kinds("ClassDef"), lambda node, bound: bool(node.keywords), of="class",
        refused="class Sizes(nl.NKIObject, metaclass=type(nl.NKIObject)):\n    rows = 1\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
        legal="class Sizes(nl.NKIObject):\n    rows = 1\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
    ),
    Rule(
        "statement of a class", "a class holds fields and methods, nothing else",
        "compute in __init__ or at the top of the module",
        GATHER, _kinds("ClassDef"), _holds_more, of="class",
        refused="class Sizes(nl.NKIObject):\n    rows = 1\n    if rows:\n        rows = 2\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
        legal="class Sizes(nl.NKIObject):\n    rows = 2\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
    ),
)  # fmt: skip

ARGUMENTS = (
    Rule(
        "list as argument", "an argument of a kernel is no list", "pass a tuple",
        MIGRATION, (), lambda value, bound: isinstance(value, list), of="argument",
        refused="def kernel(x, sizes=[1, 2]):\n    return copied(x)",
        legal="def kernel(x, sizes=(1, 2)):\n    return copied(x)",
    ),
    Rule(
        "dtype of NumPy as argument", "an argument of a kernel is no dtype of NumPy",
        "pass one of nl, such as nl.float32",
        GATHER, (), lambda value, bound: _is_numpy_dtype(value), of="argument",
        refused="import numpy as np\n\ndef kernel(x, dtype=np.float32):\n    return copied(x)",
        legal="def kernel(x, dtype=nl.float32):\n    return copied(x)",
    ),
)  # fmt: skip

NAMES = (
    Rule(
        "Beta 1", "a kernel names nothing of neuronxcc, which is NKI Beta 1",
        "import it from nki.language or nki.isa, and write the call as they take it",
        "leanprover/KLR, KLR/NKI/Annotations.lean", (),
        lambda value, bound: _is_of_beta1(value), of="name",
        refused="from glia.nki.beta1 import language as nl1\n\n"
        "def kernel(x):\n    n = nl1.arange(4)\n    return copied(x)",
        legal="def kernel(x):\n    n = nl.ds(0, 4)\n    return copied(x)",
    ),
)  # fmt: skip

RULES = (*STATEMENTS, *EXPRESSIONS, *SIGNATURES, *ARGUMENTS, *NAMES)

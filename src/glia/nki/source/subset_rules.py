"""The subset of Python that NKI's parser accepts: each rule with source, fix and two programs.

A rule is declared here only: the check, its messages, docs/nki-language.md and the tests derive
from it. Anything that public texts do not mention is allowed.
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

# The built-in functions that the parser supports.
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
class SubsetRule:
    """A rule of the language: what is refused, and what to write instead.

    A rule applies to nodes of its `kinds`: those in the body of a function, or with `scope` the
    definition itself: of every "function", the launched "kernel", a "helper" that it references, a
    "class". With `scope` "argument" or "name" it applies to values. `breaks` also gets the names
    bound by the code or its module. `refused` violates this rule only, `legal` is the nearest
    program that violates none; both are the body of a kernel of `x`, or a module that defines one.
    Advice is a warning, anything else an error.
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
    scope: str = "body"
    is_advice: bool = False


# --- predicates ----------------------------------------------------------------------------------


def _node_types(*names: str) -> tuple[type[ast.AST], ...]:
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


def _has_other_statements(node: ast.ClassDef, bound: Set[str]) -> bool:
    fields = ast.Pass | ast.Assign | ast.AnnAssign | ast.FunctionDef
    return not all(isinstance(each, fields) or _is_docstring(each) for each in node.body)


def _is_docstring(node: ast.stmt) -> bool:
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
    SubsetRule(
        "try", "a kernel has no `try`",
        "test with `if` before, or `assert` the precondition",
        GATHER, _node_types("Try", "TryStar"),
        refused="try:\n    n = x.shape[1]\nexcept IndexError:\n    n = 1",
        legal="n = 1\nif len(x.shape) > 1:\n    n = x.shape[1]",
    ),
    SubsetRule(
        "raise", "a kernel has no `raise`", "write `assert condition, message`",
        GATHER, _node_types("Raise"),
        refused="if len(x.shape) != 2:\n    raise ValueError('x has no rows')",
        legal="assert len(x.shape) == 2, 'x has no rows'",
    ),
    SubsetRule(
        "import", "a kernel has no `import`", "import at the top of the module",
        GATHER, _node_types("Import", "ImportFrom"),
        refused="import math\nn = math.ceil(x.shape[0] / 2)",
        legal="n = (x.shape[0] + 1) // 2",
    ),
    SubsetRule(
        "global", "a kernel does not assign to global names", "pass and return the value",
        GATHER, _node_types("Global"),
        refused="global count\ncount = 1", legal="count = 1",
    ),
    SubsetRule(
        "nonlocal", "a function in a kernel does not assign to names around it",
        "keep the value in a dict or list",
        GATHER, _node_types("Nonlocal"),
        refused="n = 0\ndef body(i):\n    nonlocal n\n    n = 1\nnl.fori_loop(0, 2, body)",
        legal="n = [0]\ndef body(i):\n    n[0] = 1\nnl.fori_loop(0, 2, body)",
    ),
    SubsetRule(
        "del", "a kernel has no `del`", "remove it, or call pop of the list or dict",
        GATHER, _node_types("Delete"),
        refused="sizes = [1, 2]\ndel sizes[1]", legal="sizes = [1, 2]\nsizes.pop()",
    ),
    SubsetRule(
        "match", "a kernel has no `match`", "write `if` and `elif`",
        GATHER, _node_types("Match"),
        refused="match x.shape[0]:\n    case 1:\n        n = 2\n    case other:\n        n = 1",
        legal="if x.shape[0] == 1:\n    n = 2\nelse:\n    n = 1",
    ),
    SubsetRule(
        "async", "a kernel is not asynchronous", "remove async and await",
        GATHER, _node_types("AsyncFunctionDef", "AsyncFor", "AsyncWith", "Await"),
        refused="async def half(n):\n    return n // 2\nn = half",
        legal="def half(n):\n    return n // 2\nn = half",
    ),
    SubsetRule(
        "class in a kernel", "a kernel defines no class", "define it at the top of the module",
        GATHER, _node_types("ClassDef"),
        refused="class Sizes(nl.NKIObject):\n    rows: int = 1\nn = Sizes().rows",
        legal="sizes = dict(rows=1)\nn = sizes['rows']",
    ),
    SubsetRule(
        "with", "the only `with` is `with nl.no_reorder():`",
        "call functions at the begin and the end",
        SIMPLIFY, _node_types("With"), _is_other_context,
        refused="with nl.no_reorder() as order:\n    n = 1",
        legal="with nl.no_reorder():\n    n = 1",
    ),
    SubsetRule(
        "loop with else", "a loop has no `else`", "record in a variable how the loop ended",
        SIMPLIFY, _node_types("For", "While"), lambda node, bound: bool(node.orelse),
        refused="for n in range(2):\n    pass\nelse:\n    n = 3",
        legal="for n in range(2):\n    pass\nn = 3",
    ),
    SubsetRule(
        "several loop variables", "a `for` has one variable",
        "unpack the element in the body: a, b = pair",
        SIMPLIFY, _node_types("For"), lambda node, bound: not isinstance(node.target, ast.Name),
        refused="for a, b in ((1, 2), (3, 4)):\n    n = a + b",
        legal="for pair in ((1, 2), (3, 4)):\n    a, b = pair",
    ),
)  # fmt: skip

EXPRESSIONS = (
    SubsetRule(
        "generator", "a kernel has no generators", "append to a list and return it",
        ANNOUNCEMENT, _node_types("Yield", "YieldFrom"),
        refused="def sizes():\n    yield 1\nn = sizes",
        legal="def sizes():\n    return [1]\nn = sizes",
    ),
    SubsetRule(
        "lambda", "a kernel has no `lambda`", "define a function with `def`",
        GATHER, _node_types("Lambda"),
        refused="half = lambda n: n // 2\nn = half(4)",
        legal="def half(n):\n    return n // 2\nn = half(4)",
    ),
    SubsetRule(
        "comprehension", "a kernel has no comprehensions", "append to a list in a loop",
        GATHER, _node_types("ListComp", "SetComp", "DictComp", "GeneratorExp"),
        refused="sizes = [n * 2 for n in range(3)]",
        legal="sizes = []\nfor n in range(3):\n    sizes.append(n * 2)",
    ),
    SubsetRule(
        "set", "a kernel has no sets", "write a tuple or a list", GATHER, _node_types("Set"),
        refused="n = 2 in {1, 2}", legal="n = 2 in (1, 2)",
    ),
    SubsetRule(
        "assignment in an expression", "an expression does not assign",
        "assign in a separate statement before it",
        GATHER, _node_types("NamedExpr"),
        refused="if (n := x.shape[0]) > 1:\n    n = 1",
        legal="n = x.shape[0]\nif n > 1:\n    n = 1",
    ),
    SubsetRule(
        "format", "a value in an f-string has no format specifier", "write {value} without one",
        GATHER, _node_types("FormattedValue"), lambda node, bound: node.format_spec is not None,
        refused="n = f'{x.shape[0]:4d} rows'", legal="n = f'{x.shape[0]} rows'",
    ),
    SubsetRule(
        "unpacking", "calls, lists and assignment targets do not unpack `*values`",
        "name every element",
        SIMPLIFY, _node_types("Starred"),
        refused="n = max(*x.shape)", legal="n = max(x.shape[0], x.shape[1])",
    ),
    SubsetRule(
        "unpacking of keywords", "calls do not unpack `**values`", "name every argument",
        SIMPLIFY, _node_types("keyword"), lambda node, bound: node.arg is None,
        refused="sizes = dict(a=1)\nsizes = dict(**sizes)", legal="sizes = dict(a=1)",
    ),
    SubsetRule(
        "matrix product", "there is no operator `@`", "call nisa.nc_matmul or nl.matmul",
        SIMPLIFY, _node_types("BinOp", "AugAssign"),
        lambda node, bound: isinstance(node.op, ast.MatMult),
        refused="def product(a, b):\n    return a @ b\nn = product",
        legal="def product(a, b):\n    return nl.matmul(a, b)\nn = product",
    ),
    SubsetRule(
        "type of constant", "a constant is None, bool, int, float or str, not complex or bytes",
        "write a str, or two numbers",
        GUIDE, _node_types("Constant"),
        lambda node, bound: isinstance(node.value, complex | bytes),
        refused="n = b'rows'", legal="n = 'rows'",
    ),
    SubsetRule(
        "wide integer", "an integer constant has at most 32 bits",
        "compute with wider numbers on the device",
        GUIDE, _node_types("Constant"), _is_wide,
        refused="n = 4294967296", legal="n = 4294967295",
    ),
    SubsetRule(
        "key", "the keys of a dict are strings", "write {'1': 2}, or a list",
        GUIDE, _node_types("Dict"), _has_other_key,
        refused="n = {1: 2}", legal="n = {'1': 2}",
    ),
    SubsetRule(
        "identity", "`is` and `is not` compare with None only", "write == or !=",
        MIGRATION, _node_types("Compare"), _compares_identity, is_advice=True,
        refused="n = x.shape is x.shape", legal="n = x.shape is None",
    ),
    SubsetRule(
        "built-in function", "the only built-in functions are "
        + ", ".join(sorted(KNOWN_BUILTINS)),
        "write the loop",
        "leanprover/KLR, KLR/Trace/Python.lean", _node_types("Call"), _calls_other_builtin,
        is_advice=True,
        refused="n = sum((1, 2))", legal="n = max((1, 2))",
    ),
)  # fmt: skip

SIGNATURES = (
    SubsetRule(
        "keyword-only parameter", "a kernel has no keyword-only parameters, those after `*`",
        "move parameters with a default to the end",
        MIGRATION, _node_types("FunctionDef"), lambda node, bound: bool(node.args.kwonlyargs),
        scope="kernel",
        refused="def kernel(x, *, scale=1.0):\n    return copied(x)",
        legal="def kernel(x, scale=1.0):\n    return copied(x)",
    ),
    SubsetRule(
        "variadic parameter", "a function has no `*values` parameter", "take a tuple",
        SIMPLIFY, _node_types("FunctionDef"), lambda node, bound: node.args.vararg is not None,
        scope="function",
        refused="def first(*values):\n    return values[0]\n\n"
        "def kernel(x):\n    return copied(first(x))",
        legal="def first(values):\n    return values[0]\n\n"
        "def kernel(x):\n    return copied(first((x, x)))",
    ),
    SubsetRule(
        "variadic keyword parameter", "a function has no `**values` parameter",
        "name every parameter",
        SIMPLIFY, _node_types("FunctionDef"), lambda node, bound: node.args.kwarg is not None,
        scope="function", is_advice=True,
        refused="def first(x, **options):\n    return x\n\n"
        "def kernel(x):\n    return copied(first(x))",
        legal="def first(x, scale=1):\n    return x\n\n"
        "def kernel(x):\n    return copied(first(x))",
    ),
    SubsetRule(
        "decorator", "a function that a kernel calls has no decorator but nki.jit and staticmethod",
        "remove the decorator, or write its effect into the function",
        SIMPLIFY, _node_types("FunctionDef"), _has_other_decorator, scope="helper",
        refused="import functools\n\n@functools.cache\ndef half(n):\n    return n // 2\n\n"
        "def kernel(x):\n    n = half(4)\n    return copied(x)",
        legal="def half(n):\n    return n // 2\n\n"
        "def kernel(x):\n    n = half(4)\n    return copied(x)",
    ),
    SubsetRule(
        "base class", "a class in a kernel inherits from one of NKIObject, Enum, NamedTuple",
        "derive it from nl.NKIObject alone",
        GUIDE, _node_types("ClassDef"), _has_other_base, scope="class",
        refused="class Sizes:\n    rows = 1\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
        legal="class Sizes(nl.NKIObject):\n    rows = 1\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
    ),
    SubsetRule(
        "keyword of a class", "a class has no keywords, such as metaclass=", "remove it",
        GATHER, _node_types("ClassDef"), lambda node, bound: bool(node.keywords), scope="class",
        refused="class Sizes(nl.NKIObject, metaclass=type(nl.NKIObject)):\n    rows = 1\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
        legal="class Sizes(nl.NKIObject):\n    rows = 1\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
    ),
    SubsetRule(
        "statement of a class", "a class has fields and methods only",
        "compute in __init__ or at the top of the module",
        GATHER, _node_types("ClassDef"), _has_other_statements, scope="class",
        refused="class Sizes(nl.NKIObject):\n    rows = 1\n    if rows:\n        rows = 2\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
        legal="class Sizes(nl.NKIObject):\n    rows = 2\n\n"
        "def kernel(x):\n    n = Sizes.rows\n    return copied(x)",
    ),
)  # fmt: skip

ARGUMENTS = (
    SubsetRule(
        "list as argument", "an argument of a kernel is not a list", "pass a tuple",
        MIGRATION, (), lambda value, bound: isinstance(value, list), scope="argument",
        refused="def kernel(x, sizes=[1, 2]):\n    return copied(x)",
        legal="def kernel(x, sizes=(1, 2)):\n    return copied(x)",
    ),
    SubsetRule(
        "NumPy dtype as argument", "an argument of a kernel is not a NumPy dtype",
        "pass a dtype of nl, such as nl.float32",
        GATHER, (), lambda value, bound: _is_numpy_dtype(value), scope="argument",
        refused="import numpy as np\n\ndef kernel(x, dtype=np.float32):\n    return copied(x)",
        legal="def kernel(x, dtype=nl.float32):\n    return copied(x)",
    ),
)  # fmt: skip

NAMES = (
    SubsetRule(
        "Beta 1", "a kernel names nothing of neuronxcc, which is NKI Beta 1",
        "import it from nki.language or nki.isa, and write the call as they take it",
        "leanprover/KLR, KLR/NKI/Annotations.lean", (),
        lambda value, bound: _is_of_beta1(value), scope="name",
        refused="from glia.nki.beta1 import language as nl1\n\n"
        "def kernel(x):\n    n = nl1.arange(4)\n    return copied(x)",
        legal="def kernel(x):\n    n = nl.ds(0, 4)\n    return copied(x)",
    ),
)  # fmt: skip

RULES = (*STATEMENTS, *EXPRESSIONS, *SIGNATURES, *ARGUMENTS, *NAMES)

"""Kernels in the code blocks of documentation pages, extracted to files.

Such a file keeps the line numbers of its page, so that messages point there: the lines of the
block and of the definitions in earlier blocks that it uses. Conventional imports that pages omit
are added on the first line.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from glia.conformance.load import DECORATORS, decorated_kernels, imported_modules
from glia.conformance.outcome import Outcome
from glia.conformance.page_recipes import kernels_of_page

BLOCK = re.compile(r"( *)\.\. (code-block|code|sourcecode):: *(python|)\s*$")
KERNEL = re.compile(  # a decorator of kernels, any others, the function
    rf"^ *@(?!jax\b|torch\b)(?:\w+\.)*(?:{'|'.join(DECORATORS)})\b(?!\.).*\n"
    r"(?: *@.*\n)* *def (\w+)",
    re.MULTILINE,
)
BETA1 = "neuronxcc.nki"
CONVENTIONAL_IMPORTS = {  # imports that pages omit
    "nki": "import {root} as nki",
    "nl": "import {root}.language as nl",
    "nisa": "import {root}.isa as nisa",
    "nt": "import {root}.typing as nt",
    "ncc": "import {root}.compiler as ncc",
    "np": "import numpy as np",
    "math": "import math",
}


@dataclass(frozen=True)
class CodeBlock:
    """A code block: the number of its first line on the page, from 1, and its text."""

    line: int
    text: str


@dataclass(frozen=True)
class Excerpt:
    """A code block that defines kernels: its file, or the outcomes of kernels that cannot run."""

    page: Path
    line: int  # of the block's first line
    path: Path | None = None
    outcomes: tuple[Outcome, ...] = ()


def blocks_of(text: str) -> Iterator[CodeBlock]:
    """The Python blocks of a reStructuredText page: code directives and literal blocks."""
    lines = text.expandtabs(8).split("\n")
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        directive = BLOCK.match(line)
        if not directive and (not line.rstrip().endswith("::") or line.lstrip().startswith("..")):
            continue
        start, indent = place, len(line) - len(line.lstrip())
        while place < len(lines) and _is_indented(lines[place], indent):
            place += 1
        body = lines[start:place]
        options = next((n for n, each in enumerate(body) if not _is_option(each)), len(body))
        yield CodeBlock(start + options + 1, dedent("\n".join(body[options:])))


def _is_indented(line: str, indent: int) -> bool:
    return not line.strip() or len(line) - len(line.lstrip()) > indent


def _is_option(line: str) -> bool:
    return not line.strip() or re.match(r"\s*:[\w-]+:", line) is not None


def excerpts(page: Path, root: str, folder: Path) -> Iterator[Excerpt]:
    """The code blocks of a page that define kernels; those that can run, as files in a folder.

    `root` is the package that its kernels are written for, unless it imports the other one only.
    The files are named by the page, a second of the same kernel with `:2` behind it and so on.
    """
    definitions: dict[str, CodeBlock] = {}
    seen: Counter[str] = Counter()
    text = page.read_text(encoding="utf-8", errors="replace")
    root = _default_package(text, root)
    for block in blocks_of(text):
        try:
            tree = ast.parse(block.text)
        except SyntaxError as problem:
            line = block.line + (problem.lineno or 1) - 1
            what = f"the code is not valid Python: {problem.msg}, line {line} (the page itself)"
            yield from _without_file(page, block, KERNEL.findall(block.text), "explained", what)
            continue
        if names := [*decorated_kernels(tree), *kernels_of_page(tree, page.name)]:
            own = _package_of(tree, root)
            usable = {
                n: d for n, d in definitions.items() if own == root or n not in CONVENTIONAL_IMPORTS
            }
            whole, missing = _complete_block(block, usable, own)
            if part := _incompleteness(tree, names, missing):
                yield from _without_file(page, block, names, "not run", part)
            else:
                seen[names[0]] += 1
                name = page.name if seen[names[0]] == 1 else f"{page.name}:{seen[names[0]]}"
                path = folder / str(block.line) / name
                path.parent.mkdir(parents=True)
                path.write_text(whole, encoding="utf-8")
                yield Excerpt(page, block.line, path)
        definitions |= _definitions(tree, block)


def _without_file(
    page: Path, block: CodeBlock, names: Sequence[str], status: str, reason: str
) -> Iterator[Excerpt]:
    if names:
        made = (Outcome(str(page), name, "", status, reason=reason) for name in names)
        yield Excerpt(page, block.line, outcomes=tuple(made))


def _default_package(text: str, root: str) -> str:
    """The NKI package that a page imports; `root` where it imports both or none."""
    imports = re.findall(r"^ *(?:import|from) (nki|neuronxcc)\b", text, re.MULTILINE)
    return {("nki",): "nki", ("neuronxcc",): BETA1}.get(tuple({*imports}), root)


def _package_of(tree: ast.Module, usual: str) -> str:
    """The NKI package of a block: imported, implied by Beta 1 syntax, or the page's default."""
    packages = {name.partition(".")[0] for name in imported_modules(tree)}
    if "neuronxcc" in packages:
        return BETA1
    is_beta1 = "nki" not in packages and any(map(_is_of_beta1, ast.walk(tree)))
    return BETA1 if is_beta1 else "nki" if "nki" in packages else usual


def _is_of_beta1(node: ast.AST) -> bool:
    """Whether a node is Beta 1 syntax: par_dim, or a call assigned to a subscript."""
    match node:
        case ast.Attribute(value=ast.Name(id="nl"), attr="par_dim"):
            return True
        case ast.Assign(targets=[ast.Subscript()], value=ast.Call(func=ast.Attribute(value=of))):
            return isinstance(of, ast.Name) and of.id in ("nl", "nisa")
    return False


def _incompleteness(tree: ast.Module, names: list[str], missing: set[str]) -> str:
    """Why a block cannot run by itself; "" when it can."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if all(_is_elided(node) for node in functions if node.name in names):
        return "the page omits the body of the kernel"
    if missing:
        return f"incomplete: the page does not define {', '.join(sorted(missing))}"
    return ""


def _is_elided(function: ast.FunctionDef) -> bool:
    """Whether a function has no body but docstrings and pass, or contains `...`."""
    said = [node.value for node in function.body if isinstance(node, ast.Expr)]
    constants = [node.value for node in said if isinstance(node, ast.Constant)]
    passes = sum(isinstance(node, ast.Pass) for node in function.body)
    return Ellipsis in constants or len(constants) + passes == len(function.body)


def _definitions(tree: ast.Module, block: CodeBlock) -> dict[str, CodeBlock]:
    """The names that a block defines, each with its defining lines."""
    lines = block.text.split("\n")
    found: dict[str, CodeBlock] = {}
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        text = "\n".join(lines[first - 1 : node.end_lineno])
        found |= dict.fromkeys(_defined_by(node), CodeBlock(block.line + first - 1, text))
    return found


def _defined_by(node: ast.stmt) -> set[str]:
    match node:
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        case ast.FunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Assign():
            return {each.id for each in node.targets if isinstance(each, ast.Name)}
    return set()


def _complete_block(
    block: CodeBlock, definitions: dict[str, CodeBlock], root: str
) -> tuple[str, set[str]]:
    """The block with the definitions and imports that it needs, and the undefined names."""
    pieces = {block}
    conventional: dict[str, str] = {}
    while True:
        text = _place_on_lines(pieces, conventional.values())
        missing = _undefined(text)
        more = {definitions[name] for name in missing if name in definitions} - pieces
        known = {
            n: CONVENTIONAL_IMPORTS[n].format(root=root)
            for n in missing & CONVENTIONAL_IMPORTS.keys() - definitions.keys()
        }
        if not more and not known:
            return text, missing
        pieces |= more
        conventional |= known


def _place_on_lines(pieces: Iterable[CodeBlock], conventional: Iterable[str]) -> str:
    """The pieces at their line numbers, the conventional imports on the first line."""
    placed = {0: "; ".join(conventional)}
    for piece in pieces:
        placed |= dict(enumerate(piece.text.split("\n"), piece.line - 1))
    return "\n".join(placed.get(number, "") for number in range(max(placed) + 1)) + "\n"


def _undefined(text: str) -> set[str]:
    """Global names that functions, decorators and classes use and that are not defined."""
    table = symtable.symtable(text, "page", "exec")
    known = {*vars(builtins), "__file__"}
    known |= {each.get_name() for each in table.get_symbols() if _is_defined(each)}
    outside = [d for node in ast.parse(text).body for d in getattr(node, "decorator_list", [])]
    used = {e.id for each in outside for e in ast.walk(each) if isinstance(e, ast.Name)}
    waiting = [*table.get_children()]
    while waiting:
        inner = waiting.pop()
        used |= {each.get_name() for each in inner.get_symbols() if each.is_global()}
        waiting += inner.get_children()
    return used - known


def _is_defined(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()

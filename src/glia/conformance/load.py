"""Python files of a clone as modules; `nki` and `neuronxcc` are found in the drop-in."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from glia.conformance.errors import DropinMissing
from glia.nki.source.subset_rules import last_name

DECORATORS = ("jit", "nki_jit", "trace", "baremetal", "benchmark", "profile")
DROPIN_PACKAGES = ("nki", "neuronxcc")
MISSING_IMPORTS = (
    "__missing_imports__"  # module attribute: imported names whose packages are not installed
)
FRAMEWORKS = (
    "torch",
    "torch_xla",
    "torch_neuronx",
    "jax",
    "jax_neuronx",
    "transformers",
    "ml_dtypes",
)


def require_dropin() -> None:
    """Import `nki` and `neuronxcc`, before a folder of the clone can shadow them.

    Raises DropinMissing unless they are the drop-in's.
    """
    dropin = importlib.util.find_spec("glia_dropin")
    home = Path(dropin.origin).parents[1] if dropin and dropin.origin else None
    for name in DROPIN_PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None or not found.origin or Path(found.origin).parents[1] != home:
            raise DropinMissing(name=name, place=(found and found.origin) or "nowhere")
        importlib.import_module(name)


def parse_file(path: Path) -> ast.Module | None:
    """The syntax tree of a file; None where it does not parse in this Python version."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return None


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """The modules that a file imports, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def decorated_kernels(tree: ast.Module) -> list[str]:
    """The names of the functions of a file with a kernel decorator."""
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(map(_makes_kernel, node.decorator_list))
    ]


def undecorated_kernels(tree: ast.Module) -> list[str]:
    """Undecorated functions that a file passes to a kernel decorator, as in nki.jit(function)."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = {
        argument.id
        for call in calls
        if _makes_kernel(call.func)
        for argument in call.args[:1]
        if isinstance(argument, ast.Name)
    }
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and node.name in given
    ]


def _makes_kernel(decorator: ast.expr) -> bool:
    root = ast.unparse(decorator).partition(".")[0]  # jax and torch have a jit of their own
    return last_name(decorator) in DECORATORS and root not in FRAMEWORKS


def load(path: Path, tree: ast.Module, *, is_whole: bool) -> types.ModuleType:
    """The file as a module: its definitions, without scripts and frameworks unless it is a test."""
    extend_search_path(path)
    name = _module_name(path, tree)
    if "." in name:
        importlib.import_module(name.rpartition(".")[0])
    loader = _Loader(path, ast.Module(tree.body if is_whole else _definitions(tree), []))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    vars(module)[MISSING_IMPORTS] = {} if is_whole else _missing_imports(tree)
    return module


def _missing_imports(tree: ast.Module) -> dict[str, str]:
    """Imported names whose packages are not installed, each with its package."""
    return {
        alias.asname or alias.name.partition(".")[0]: module.partition(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        for module in ((node.module or "") if isinstance(node, ast.ImportFrom) else alias.name,)
        if module and importlib.util.find_spec(module.partition(".")[0]) is None
    }


def extend_search_path(path: Path) -> None:
    """Add a file's directory and the package roots of its clone to sys.path."""
    clone = next((p for p in path.parents if (p / ".git").exists()), path.parent)
    above = [p for p in path.parents if clone in (p, *p.parents)]
    nearest = [p for p in (path.parent, *(each / "src" for each in above)) if p.is_dir()]
    sys.path[:0] = [str(p) for p in nearest]
    sys.path += [str(p) for p in above]
    examples = next((p for p in path.parents if p.name == "examples"), None)
    if examples is not None:  # importable as part of neuronxcc in the product
        docs = sys.modules["neuronxcc.nki.docs"] = types.ModuleType("neuronxcc.nki.docs")
        docs.__path__ = [str(examples.parent)]


def _module_name(path: Path, tree: ast.Module) -> str:
    """The file's name with its packages: those with `__init__`, under src, or that it reaches."""
    up = max((n.level for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)), default=0)
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    if up and root in path.parents[:up]:
        root = path.parents[up]
    root = next((p for p in path.parents if p.name == "src"), root)
    inside = path.relative_to(root).with_suffix("").parts
    if all(part.isidentifier() for part in inside):
        return ".".join(inside)
    return path.stem.replace("-", "_")


class _Loader(importlib.abc.InspectLoader):
    """Loads a file from a reduced syntax tree."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path = path
        self._tree = tree

    def get_source(self, fullname: str) -> str:
        """The whole text of the file."""
        return self._path.read_text(encoding="utf-8")

    def get_code(self, fullname: str) -> types.CodeType:
        """The code of the reduced tree."""
        return self.source_to_code(self._tree, str(self._path))


def _definitions(tree: ast.Module) -> list[ast.stmt]:
    """Imports, functions, classes and constants, without code that runs kernels or frameworks."""
    avoided = {*decorated_kernels(tree), *FRAMEWORKS, "xm", "xla_model"}
    kept: list[ast.stmt] = []
    for node in tree.body:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        is_constant = isinstance(node, ast.Assign | ast.AnnAssign) and not names & avoided
        if is_constant or (_is_definition(node) and not _base_class_names(node) & avoided):
            kept.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            avoided |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign):
            avoided |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return kept


def _base_class_names(node: ast.stmt) -> set[str]:
    """The names in the base classes of a class definition."""
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return {each.id for base in bases for each in ast.walk(base) if isinstance(each, ast.Name)}


def _is_importable(name: str) -> bool:
    """Whether a module is installed and not a framework, which kernels do not need."""
    root = name.partition(".")[0]
    if root in sys.modules:
        return root not in FRAMEWORKS or root == "torch_neuronx"
    return root not in FRAMEWORKS and importlib.util.find_spec(root) is not None


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return all(_is_importable(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or _is_importable(node.module or "")
    if isinstance(node, ast.FunctionDef):
        annotations = ast.unparse(node.args) + (ast.unparse(node.returns) if node.returns else "")
        return "torch." not in annotations
    return isinstance(node, ast.ClassDef)

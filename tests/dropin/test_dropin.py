"""The packages of the drop-in hold no logic: they only give glia's modules other names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

from house.source import PACKAGE, REPOSITORY, imported, nodes_of, place, python_files

DROPIN = REPOSITORY / "dropin"
OWN = DROPIN / "src" / "glia_dropin"  # what stands behind the names
FILES = sorted(p for p in (DROPIN / "src").rglob("*.py") if OWN not in p.parents)
ROOTS = {"glia", "glia_dropin", "nki", "neuronxcc", "jax_neuronx", "torch_neuronx", "libneuronxla"}


def _project(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def _name(path: Path) -> str:
    parts = path.relative_to(DROPIN / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_thin(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(ast.Constant(str())):
            return True
        case ast.ImportFrom(module=str(module)):
            return module.partition(".")[0] in ROOTS | {"typing"}
        case ast.If(test=ast.UnaryOp(ast.Not(), ast.Name("TYPE_CHECKING")), body=body):
            return all(map(_is_thin, body))
        case ast.Assign([ast.Name("__all__")], ast.List()):
            return True
        case ast.Assign([ast.Name("__getattr__")], ast.Call(ast.Name("missing_kernel"))):
            return True
        case ast.If():  # a module that is a command
            return " ".join(ast.unparse(node).split()) == "if __name__ == '__main__': main()"
    return False


@pytest.mark.parametrize("path", FILES, ids=[_name(path) for path in FILES])
def test_a_module_only_imports(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    assert [ast.unparse(node) for node in tree.body if not _is_thin(node)] == []


@pytest.mark.parametrize("path", FILES, ids=[_name(path) for path in FILES])
def test_checkers_of_types_see_which_names_a_module_does_not_have(path: Path) -> None:
    """A module with a `__getattr__` has every name, as far as they can tell."""
    taken = [
        alias.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert "__getattr__" not in taken


def test_its_version_is_that_of_glia_and_accepts_no_other() -> None:
    own, whole = _project(DROPIN), _project(REPOSITORY)
    assert own["version"] == whole["version"]
    assert own["dependencies"] == [f"glia=={whole['version']}"]


def test_it_ships_every_package_that_it_has() -> None:
    text = tomllib.loads((DROPIN / "pyproject.toml").read_text())
    shipped = text["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(shipped) == sorted(f"src/{p.name}" for p in (DROPIN / "src").iterdir())


def test_every_module_imports_with_the_names_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DROPIN / "src"))
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_own(name)}
    try:
        for path in FILES:
            assert importlib.import_module(_name(path)).__doc__
        kernels = importlib.import_module("neuronxcc.nki.kernels.attention")
        with pytest.raises(ImportError, match="nki-samples"):
            _ = kernels.tiled_attention
        assert kernels.flash_fwd is importlib.import_module("neuronxcc.nki.kernels").flash_fwd
    finally:
        for name in [each for each in sys.modules if _is_own(each)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_own(name: str) -> bool:
    return name.partition(".")[0] in ROOTS - {"glia", "glia_dropin"}


def test_everything_behind_the_names_is_behind_one() -> None:
    """A module that nothing imports, or names to be imported, does nothing."""
    texts = {path: path.read_text() for path in (*FILES, *OWN.rglob("*.py"))}
    texts |= {path: path.read_text() for path in python_files(PACKAGE)}
    texts[DROPIN] = (DROPIN / "pyproject.toml").read_text()
    unused = []
    for path in OWN.rglob("*.py"):
        package, _, module = _name(path).rpartition(".")
        known = (f"{package}.{module}", f"from {package} import {module}")
        others = (text for other, text in texts.items() if other != path)
        if path.stem != "__init__" and not any(name in text for text in others for name in known):
            unused.append(path.name)
    assert unused == []


def test_nothing_of_glia_imports_the_drop_in() -> None:
    wrong = [
        f"{place(path, node.lineno)} imports {name}"
        for path in python_files(PACKAGE)
        for node in nodes_of(path)
        for name in imported(node, "glia")
        if name.partition(".")[0] in ROOTS - {"glia"}
    ]
    assert wrong == []

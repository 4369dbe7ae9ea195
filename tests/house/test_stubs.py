"""What editors and type checkers read of the modules that kernels import is current and whole."""

from __future__ import annotations

import ast
import importlib
import tomllib

import pytest

from house.source import PACKAGE, REPOSITORY
from nki_stubs import MODULES, stubs

STUBS = stubs()


@pytest.mark.parametrize("name", MODULES)
def test_a_stub_has_every_public_name(name: str) -> None:
    tree = ast.parse(STUBS[f"{name.replace('.', '/')}.pyi"])
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            found.update(each.asname or each.name for each in node.names)
    public = set(importlib.import_module(f"glia.nki.{name}").__all__)
    assert public <= found
    assert {each for each in found - public if not each.startswith("_")} == set()


def test_a_function_says_its_parameters_and_what_it_is() -> None:
    tree = ast.parse(STUBS["isa.pyi"])
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    product = functions["nc_matmul"]
    assert [each.arg for each in product.args.args][:3] == ["dst", "stationary", "moving"]
    assert ast.unparse(product.args.args[0].annotation) == "_NkiTensor"
    assert ast.get_docstring(product)


@pytest.mark.parametrize("path", STUBS)
def test_a_stub_imports_nothing_from_itself(path: str) -> None:
    module = f"glia.nki.{path.removesuffix('.pyi').replace('/', '.')}"
    assert f"from {module} import" not in STUBS[path]


def test_enumerations_of_beta1_have_their_members() -> None:
    tree = ast.parse(STUBS["beta1/isa.pyi"])
    classes = {n.name: ast.unparse(n) for n in tree.body if isinstance(n, ast.ClassDef)}
    assert classes["oob_mode"].splitlines()[1:] == ["    error = 0", "    skip = 1"]


def test_every_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
    text = tomllib.loads((REPOSITORY / "dropin" / "pyproject.toml").read_text())
    for package in text["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (REPOSITORY / "dropin" / package / "py.typed").is_file()

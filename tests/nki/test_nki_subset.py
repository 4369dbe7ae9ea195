"""The part of Python that NKI's parser takes: each rule alone, its nearest legal program, and all
that is refused without being read."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.nki.names.errors import BadLaunch
from glia.nki.names.language_errors import KernelAdvice, NotInLanguage
from glia.nki.run.check_kernel import check_kernel
from glia.nki.source.frontend import VARIABLE
from glia.nki.source.subset import findings
from glia.nki.source.subset_rules import RULES, SubsetRule

HEAD = """
from glia import nki
from glia.nki import language as nl

def copied(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out

"""
X = np.ones((2, 4), np.float32)
Ways = tuple[Callable[..., Any], ...]


def program(text: str) -> str:
    """A module with a kernel, of what a rule gives as refused or as legal."""
    if "def kernel(" in text:
        return HEAD + text
    body = textwrap.indent(text, "    ")
    return f"{HEAD}def kernel(x):\n{body}\n    return copied(x)\n"


def kernel_of(text: str, folder: Path) -> Any:
    """The kernel that a module defines, imported from a file as a user's is."""
    path = folder / f"user_kernel{len(list(folder.iterdir()))}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.kernel


def ways(kernel: Any) -> Ways:
    return nki.simulate(kernel), nki.jit(kernel)


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "custom")


ERRORS = [rule for rule in RULES if not rule.is_advice]
ADVICE = [rule for rule in RULES if rule.is_advice]


@pytest.mark.parametrize("rule", ERRORS, ids=lambda rule: rule.name)
@pytest.mark.usefixtures("parser")
def test_a_rule_refuses_its_program_in_both_ways(rule: SubsetRule, tmp_path: Path) -> None:
    text = program(rule.refused)
    messages = set()
    for way in ways(kernel_of(text, tmp_path)):
        with pytest.raises(NotInLanguage) as caught:
            way(X)
        messages.add(str(caught.value))
        assert caught.value.loc.file == str(tmp_path / "user_kernel0.py")
        assert 0 < caught.value.loc.line <= len(text.splitlines())
    (message,) = messages
    assert rule.sentence in message and rule.rewrite in message


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.usefixtures("parser")
def test_the_nearest_legal_program_runs_in_both_ways(rule: SubsetRule, tmp_path: Path) -> None:
    kernel = kernel_of(program(rule.legal), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelAdvice)
        for way in ways(kernel):
            np.testing.assert_array_equal(way(X), X)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_program_breaks_no_other_rule(rule: SubsetRule, tmp_path: Path) -> None:
    expected = [] if rule.scope == "argument" else [rule.name]
    assert [f.rule.name for f in findings(kernel_of(program(rule.refused), tmp_path))] == expected
    assert not list(findings(kernel_of(program(rule.legal), tmp_path)))


@pytest.mark.parametrize("rule", ADVICE, ids=lambda rule: rule.name)
@pytest.mark.usefixtures("parser")
def test_advice_warns_once_at_the_line_and_runs(rule: SubsetRule, tmp_path: Path) -> None:
    kernel = kernel_of(program(rule.refused), tmp_path)
    with pytest.warns(KernelAdvice) as caught:
        for way in ways(kernel):
            way(X)
    (warning,) = caught
    assert rule.sentence in str(warning.message) and warning.filename.endswith("user_kernel0.py")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("word", ["", "tracer"])
def test_python_that_traces_takes_all_of_python(
    rule: SubsetRule, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, word)
    for way in ways(kernel_of(program(rule.refused), tmp_path)):
        np.testing.assert_array_equal(way(X), X)


def test_a_front_end_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "Custom")
    with pytest.raises(BadLaunch, match="custom, parser"):
        nki.simulate(lambda x: x)(X)


HELPERS = """
class Scales(nl.NKIObject):
    factor: int = 1

    def half(self):
        return [n for n in range(2)]

def inner(x):
    return lambda: x

@nki.jit
def decorated(x):
    return inner(x)
"""


@pytest.mark.parametrize(
    ("body", "where"),
    [("decorated(x)", "inner"), ("n = Scales()", "half"), ("n = (copied, inner)", "inner")],
)
@pytest.mark.usefixtures("parser")
def test_what_a_kernel_names_is_read_too(body: str, where: str, tmp_path: Path) -> None:
    kernel = kernel_of(
        program(HELPERS + f"def kernel(x):\n    {body}\n    return copied(x)\n"), tmp_path
    )
    with pytest.raises(NotInLanguage) as caught:
        nki.simulate(kernel)(X)
    assert caught.value.loc.name == where


@pytest.mark.usefixtures("parser")
def test_the_class_of_an_argument_is_read(tmp_path: Path) -> None:
    kernel = kernel_of(
        program("class Sizes:\n    rows = 1\n\ndef kernel(x, sizes):\n    return copied(x)\n"),
        tmp_path,
    )
    with pytest.raises(NotInLanguage, match="inherits from one of NKIObject"):
        nki.simulate(kernel)(X, kernel.__globals__["Sizes"]())


@pytest.mark.usefixtures("parser")
def test_partial_and_wrapped_kernels_are_read(tmp_path: Path) -> None:
    kernel = kernel_of(program("n = [m for m in range(2)]"), tmp_path)
    for each in (functools.partial(kernel), functools.wraps(kernel)(lambda x: kernel(x))):
        with pytest.raises(NotInLanguage):
            nki.simulate(each)(X)


@pytest.mark.usefixtures("parser")
def test_a_kernel_without_source_runs_with_one_warning() -> None:
    names: dict[str, Any] = {}
    exec(program("n = [m for m in range(2)]"), names)
    with pytest.warns(KernelAdvice, match="kernel kernel has no source") as caught:
        for way in ways(names["kernel"]):
            np.testing.assert_array_equal(way(X), X)
    assert len(caught) == 1


@pytest.mark.usefixtures("parser")
def test_a_kernel_of_a_notebook_is_read_from_its_cell() -> None:
    text = program("n = [m for m in range(2)]")
    linecache.cache["<cell 1>"] = (len(text), None, text.splitlines(keepends=True), "<cell 1>")
    names: dict[str, Any] = {}
    exec(compile(text, "<cell 1>", "exec"), names)
    with pytest.raises(NotInLanguage) as caught:
        nki.simulate(names["kernel"])(X)
    assert (caught.value.loc.file, caught.value.loc.name) == ("<cell 1>", "kernel")


def test_a_kernel_ends_where_its_file_says_it_does(tmp_path: Path) -> None:
    """The last lines of a function may leave no instruction behind."""
    text = program("n = 1\nif False:\n    n = [\n        m for m in range(2)\n    ]")
    kernel = kernel_of(text.replace("    return copied(x)\n", ""), tmp_path)
    assert [each.rule.name for each in findings(kernel)] in ([], ["comprehension"])


@pytest.mark.parametrize(
    ("body", "expected"), [("n = 1", "taken"), ("n = [m for m in range(2)]", "no comprehension")]
)
def test_a_check_of_everything_remarks_what_the_parser_says(
    body: str, expected: str, tmp_path: Path
) -> None:
    report = check_kernel(kernel_of(program(body), tmp_path), X, other_targets=True)
    (remark,) = [each for each in report.checks if each.name.startswith("by the parser")]
    assert report.passed and expected in remark.detail

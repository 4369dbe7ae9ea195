"""What can be counted in how the code looks."""

from __future__ import annotations

import ast
import re

from house.source import (
    PACKAGE,
    REPOSITORY,
    TESTS,
    code_lines,
    functions,
    nodes_of,
    place,
    python_files,
    text_of,
    tree_of,
)

WIDEST_LINE = 100
PRAGMA = re.compile(r"\s+# (?:type: ignore|noqa|fmt:).*")
LONGEST_FUNCTION = 80
LONGEST_FILE = 600
EVERYWHERE = (*python_files(PACKAGE), *python_files(TESTS))

PRINTING_HOMES = ("cli",)  # what talks to a user through a terminal
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|mnt|private)/\w")
LEFT_FOR_LATER = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b")


def test_lines_are_at_most_100_columns_wide() -> None:
    wrong = [
        f"{place(path, number)} has {len(line)} columns"
        for path in EVERYWHERE
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if len(PRAGMA.sub("", line)) > WIDEST_LINE
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_functions_are_at_most_80_lines_long() -> None:
    wrong = [
        f"{place(path, node.lineno)} {node.name}: {(node.end_lineno or 0) - node.lineno + 1} lines"
        for path in EVERYWHERE
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_nine_functions_in_ten_fit_in_30_lines() -> None:
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for path in python_files(PACKAGE)
        for node in functions(path)
    ]
    assert sum(length <= 30 for length in lengths) >= 0.9 * len(lengths)


def test_files_hold_at_most_600_lines_of_code() -> None:
    counted = {path: code_lines(path) for path in EVERYWHERE}
    wrong = [f"{place(p, 1)} has {lines}" for p, lines in counted.items() if lines > LONGEST_FILE]
    assert not wrong, "\n".join(["", *wrong])


def test_nothing_is_left_for_later() -> None:
    wrong = [
        f"{place(path, number)} {line.strip()}"
        for path in EVERYWHERE
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if LEFT_FOR_LATER.search(line)
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_nothing_is_declared_without_being_done() -> None:
    wrong = [
        place(path, node.lineno)
        for path in python_files(PACKAGE)
        for node in nodes_of(path)
        if isinstance(node, ast.Name) and node.id in ("NotImplementedError", "NotImplemented")
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_the_library_does_not_print() -> None:
    wrong = [
        place(path, node.lineno)
        for path in python_files(PACKAGE)
        if path.relative_to(PACKAGE).parts[0] not in PRINTING_HOMES
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("print", "breakpoint")
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_nothing_evaluates_or_unpickles_text() -> None:
    wrong = []
    for path in python_files(PACKAGE):
        for node in nodes_of(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in ("eval", "exec", "compile"):
                names.append(called.id)
            if {"pickle", "marshal", "shelve", "eval", "exec", "compile"} & set(names):
                wrong.append(place(path, node.lineno))  # type: ignore[attr-defined]
    assert not wrong, "\n".join(["", *wrong])


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes every failure there is, passes none on and tells nobody."""
    caught = ast.unparse(handler.type) if handler.type else "BaseException"
    inside = list(ast.walk(handler))
    is_passed_on = any(isinstance(node, ast.Raise) for node in inside)
    is_told = any(isinstance(node, ast.Name) and node.id == handler.name for node in inside)
    is_broad = re.search(r"\b(Base)?Exception\b", caught) is not None
    return is_broad and not is_passed_on and not is_told


def test_no_failure_is_swallowed() -> None:
    wrong = [
        place(path, node.lineno)
        for path in python_files(PACKAGE)
        for node in nodes_of(path)
        if isinstance(node, ast.ExceptHandler) and _swallows(node)
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_no_path_of_one_machine_is_written_down() -> None:
    documents = list((REPOSITORY / "docs").rglob("*.md"))
    wrong = [
        f"{place(path, number)} {line.strip()[:80]}"
        for path in (*EVERYWHERE, *documents)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_every_module_class_and_public_function_says_what_it_is() -> None:
    wrong = []
    for path in python_files(PACKAGE):
        tree = tree_of(path)
        if tree.body and not ast.get_docstring(tree):
            wrong.append(place(path, 1))
        for node in tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name[0] == "_":
                continue
            if not ast.get_docstring(node):
                wrong.append(f"{place(path, node.lineno)} {node.name}")
    assert not wrong, "\n".join(["", *wrong])

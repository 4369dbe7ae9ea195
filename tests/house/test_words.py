"""Names and texts use the field's words: none that only the author of a line understands."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from house.source import PACKAGE, REPOSITORY, nodes_of, place, python_files, tree_of
from house.words import forbidden_names

CODE = (*python_files(PACKAGE), *python_files(REPOSITORY / "dropin/src/glia_dropin"))

# Names that a public interface gives, or that are idioms of Python or of the field
PUBLIC = {
    "ones", "where", "take",  # NumPy's and NKI's
    "of",  # constructors: Affine.of, View.of
    "show",  # the command `glia show`
    "less",  # HLO's comparison
    "once",  # JAX and functools say it of functions that run once
}  # fmt: skip

QUAINT = re.compile(
    r"\b(nobody|somebody|anybody|whoever|whom|anew|hitherto|thereof|hears of|is told|are told)\b",
    re.IGNORECASE,
)

# Classes of one name in several modules: the same concept at neighbouring levels or generations
PARALLEL = {
    "Program", "While", "Branch", "Scan",  # levels
    "Collective", "Constant", "DynamicSlice", "Iota",  # of the graph, of the machine or a kernel
    "Buffer", "Index", "Kernel", "Mask",  # the compiler's and NKI's
    "Participant",  # in a collective, of a graph or of cores
}  # fmt: skip


def test_no_helper_is_a_verb_fragment_or_a_function_word() -> None:
    wrong = [
        f"{place(path, node.lineno)} {node.name}"
        for path in CODE
        for node in forbidden_names(tree_of(path))
        if node.name not in PUBLIC
    ]
    assert not wrong, "\n".join(["", *wrong])


def _texts(path: Path) -> list[tuple[int, str]]:
    """(line, text) of every string of a file that is not a key or a name."""
    constants = (node for node in nodes_of(path) if isinstance(node, ast.Constant))
    return [(n.lineno, n.value) for n in constants if isinstance(n.value, str) and " " in n.value]


def test_texts_are_plain() -> None:
    wrong = [
        f"{place(path, line)} {found[0]!r} in {' '.join(text.split())[:70]!r}"
        for path in CODE
        for line, text in _texts(path)
        if (found := QUAINT.search(text))
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_classes_of_one_name_are_one_concept() -> None:
    counted = Counter(
        node.name
        for path in python_files(PACKAGE)
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and node.name[0].isupper()
    )
    assert (
        sorted(name for name, count in counted.items() if count > 1 and name not in PARALLEL) == []
    )

"""docs/architecture.md names every room, and no room is crowded."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from house.source import PACKAGE, REPOSITORY, TESTS, python_files

MOST_FILES = 20
ELSEWHERE = {"contributed", "demo-out"}  # folders of other repositories, and what runs make
PLAN = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")


def rooms(root: Path) -> list[Path]:
    """Every folder below one that holds Python files."""
    return sorted({path.parent for path in root.rglob("*.py")} - {root})


def test_every_room_is_in_the_plan() -> None:
    named = set(re.findall(r"\b(\w+)/", PLAN))
    missing = [str(room.relative_to(PACKAGE)) for room in rooms(PACKAGE) if room.name not in named]
    assert missing == []


def test_every_file_that_the_plan_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.(?:py|txt|md))`", PLAN))
    assert len(named) > 10
    homes = (PACKAGE, REPOSITORY)
    assert [path for path in named if not any((home / path).is_file() for home in homes)] == []


DOCUMENTS = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")),
             *sorted((REPOSITORY / "docs/decisions").glob("*.md")))  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_path_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.(?:py|md|txt))?)`", text))
    homes = (REPOSITORY, PACKAGE, REPOSITORY / "docs", PACKAGE / "nki")
    missing = [path for path in sorted(named) if not any((home / path).exists() for home in homes)]
    assert [path for path in missing if path.split("/")[0] not in ELSEWHERE] == []


def test_no_room_is_crowded() -> None:
    counted = {
        str(room.relative_to(REPOSITORY)): len([*room.glob("*.py")]) for room in rooms(PACKAGE)
    }
    assert {room: files for room, files in counted.items() if files > MOST_FILES} == {}


def test_no_room_of_the_tests_is_crowded() -> None:
    counted = {
        str(room.relative_to(REPOSITORY)): len([*room.glob("*.py")]) for room in rooms(TESTS)
    }
    assert {room: files for room, files in counted.items() if files > MOST_FILES + 5} == {}


# Files that every level, room or generation has under the same name
PARALLEL_FILES = {"__init__.py", "errors.py", "ir.py", "legal.py", "text.py", "evaluate.py"}
MOST_OF_ONE_NAME = 2  # an operation and its expansion, or the two generations of NKI


def test_a_file_name_says_which_file() -> None:
    counted = Counter(path.name for path in python_files(PACKAGE))
    wrong = {n: c for n, c in counted.items() if c > MOST_OF_ONE_NAME and n not in PARALLEL_FILES}
    assert wrong == {}


def test_no_module_of_benchmarks_or_tools_hides_a_package_of_the_tests() -> None:
    # Tests import both by bare name: one of a name hides the other, by which is imported first.
    ours = {path.stem for path in TESTS.iterdir() if path.is_dir() or path.suffix == ".py"}
    scripts = [*(REPOSITORY / "benchmarks").glob("*.py"), *(REPOSITORY / "tools").glob("*.py")]
    assert [path.name for path in scripts if path.stem in ours] == []

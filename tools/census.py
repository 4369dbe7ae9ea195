"""Count what can be counted of the source: files, functions, words, tokens, type errors.

    python tools/census.py [--types] [--json] [ROOT]

ROOT is a checkout, this one unless named. With --types mypy runs too, which takes half a minute.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from house.words import forbidden_names

LONG_LINES = 30
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def census(root: Path) -> dict[str, Any]:
    """The counts of one checkout."""
    package = root / "src" / "glia"
    files = sorted(package.rglob("*.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    folders = Counter(str(path.parent.relative_to(root)) for path in files)
    tokens: Counter[str] = Counter()
    for path in files:
        parts = path.relative_to(package).parts
        tokens[parts[0] if len(parts) > 1 else "(root)"] += _tokens(path)
    return {
        "files": len(files),
        "largest folders": dict(folders.most_common(5)),
        "functions": len(lengths),
        f"functions over {LONG_LINES} lines": sum(length > LONG_LINES for length in lengths),
        "forbidden names": sum(len(forbidden_names(tree)) for tree in trees.values()),
        "tokens": dict(sorted(tokens.items())),
        "all tokens": sum(tokens.values()),
    }


def _tokens(path: Path) -> int:
    """Tokens of code: no comments, no docstrings, no layout."""
    text = path.read_text(encoding="utf-8")
    statement_starts = True
    count = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in NOT_CODE:
            statement_starts = statement_starts or token.type != tokenize.COMMENT
            continue
        count += not (statement_starts and token.type == tokenize.STRING)
        statement_starts = False
    return count


def type_errors(root: Path) -> str:
    """What mypy says last."""
    command = [sys.executable, "-m", "mypy", "--strict", "src/glia"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    """Print the census."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("root", type=Path, nargs="?", default=REPOSITORY)
    parser.add_argument("--types", action="store_true", help="run mypy --strict as well")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    found = census(arguments.root)
    if arguments.types:
        found["types"] = type_errors(arguments.root)
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()

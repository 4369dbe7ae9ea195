"""A process that compiles one collected entry of the compile cache."""

from __future__ import annotations

import sys
from pathlib import Path

from glia.cli.guard import guarded
from glia.compiler import compile_collected


def main() -> int:
    """Compile the entry that the only argument names; the exit status."""
    return guarded(lambda: compile_collected(Path(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(main())

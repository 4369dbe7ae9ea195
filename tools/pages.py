"""Write everything that is generated from declarations: pages under docs/, stubs of NKI's modules.

python tools/pages.py
"""

from __future__ import annotations

from pathlib import Path

import nki_language_page
import nki_stubs
from glia.machine import reference_pages

REPOSITORY = Path(__file__).parents[1]


def generated() -> dict[Path, str]:
    """The text of every generated file by its path in the repository."""
    files = {Path("docs/nki-language.md"): nki_language_page.page()}
    files |= {Path("src/glia/nki", name): text for name, text in nki_stubs.stubs().items()}
    files |= {Path("docs/isa", name): text for name, text in reference_pages.pages().items()}
    return files


def main() -> None:
    """Write the files, and remove pages of instructions that are no more."""
    files = generated()
    for path, text in files.items():
        target = REPOSITORY / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for page in (REPOSITORY / "docs/isa/instructions").iterdir():
        if page.relative_to(REPOSITORY) not in files:
            page.unlink()


if __name__ == "__main__":
    main()

"""An interrupt before a command has loaded ends it without a traceback."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from glia.cli import start


@pytest.mark.parametrize("command", [start.neuronx_cc, start.glia])
def test_an_interrupt_while_modules_load_is_told_in_one_line(
    command: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported = builtins.__import__

    def interrupted(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("glia.cli."):
            raise KeyboardInterrupt
        return imported(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_little_is_imported_before_an_interrupt_is_caught() -> None:
    """What is imported there would fail with a traceback."""
    listing = "import sys, glia.cli.start; print(*sorted(m for m in sys.modules if 'glia' in m))"
    own = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True)
    assert own.stdout.split() == [
        "glia", "glia.base", "glia.base.lazy_imports", "glia.cli", "glia.cli.start",
    ]  # fmt: skip
    listing = "import sys, glia.cli.start; print('typing' in sys.modules)"
    bare = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {listing}"]
    assert subprocess.run(bare, capture_output=True, text=True).stdout == "False\n"

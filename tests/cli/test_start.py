"""An interrupt before a command has loaded ends it without a traceback."""

from __future__ import annotations

import importlib

import pytest

from glia.cli import start


def test_an_interrupt_while_modules_load_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    for command in (start.neuronx_cc, start.glia):
        with pytest.raises(SystemExit) as ended:
            command()
        assert ended.value.code == 130
        assert capsys.readouterr().err == "interrupted\n"

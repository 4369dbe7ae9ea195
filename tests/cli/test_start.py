"""An interrupt before a command has loaded ends it without a traceback."""

from __future__ import annotations

import builtins
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glia.cli import start


@pytest.mark.parametrize(
    "command", [start.neuronx_cc, start.glia, start.neuron_profile, start.neuron_parallel_compile]
)
def test_an_interrupt_while_modules_load_is_told_in_one_line(
    command: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported = builtins.__import__

    def interrupted(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("glia.cli."):
            raise KeyboardInterrupt
        return imported(name, *rest, **options)

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the scripts leave it
    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
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


ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "commands").iterdir())
INTERRUPTED_WHILE_LOADING = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
def _command(): print("went on")
glia = neuronx_cc = neuron_profile = _command
"""


def run_script(name: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script with a package in place of glia that is interrupted while it loads."""
    package = folder / "glia" / "cli"
    package.mkdir(parents=True)
    (folder / "glia" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "start.py").write_text(INTERRUPTED_WHILE_LOADING)
    return subprocess.run(
        [sys.executable, ROOT / "commands" / name],
        env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_interrupt_before_ours_can_be_caught_ends_a_command_without_a_word(
    name: str, tmp_path: Path
) -> None:
    ended = run_script(name, tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_a_command_that_is_to_ignore_interrupts_ignores_them(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    ended = run_script("glia", tmp_path, preexec_fn=ignore)
    assert (ended.returncode, ended.stdout) == (0, "went on\n")


def test_every_script_is_installed_and_can_be_executed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    installed = wheel["shared-scripts"]
    assert installed == {f"commands/{name}": name for name in SCRIPTS}
    assert "scripts" not in project["project"]
    for name in SCRIPTS:
        path = ROOT / "commands" / name
        assert path.stat().st_mode & 0o111 == 0o111
        assert path.read_text().startswith("#!python\n")

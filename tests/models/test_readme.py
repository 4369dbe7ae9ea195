"""What the README shows works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from glia.cli import glia, neuronx_cc

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_runs() -> None:
    for source in blocks("python"):
        namespace: dict[str, object] = {}
        exec(compile(source, "README.md", "exec"), namespace)
        assert namespace["profile"].latency_us > 0  # type: ignore[attr-defined]


def test_every_command_of_the_readme_exists_with_its_options() -> None:
    lines = [line for block in blocks("") for line in block.splitlines()]
    shown = [line.split() for line in lines if line.startswith(("glia ", "neuronx-cc "))]
    assert len(shown) >= 5
    for program, command, *rest in shown:
        group = glia.main if program == "glia" else neuronx_cc.main
        told = CliRunner().invoke(group, [command, "--help"]).output
        assert [word for word in rest if word.startswith("--") and word not in told] == []


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", TEXT, re.MULTILINE)
    assert targets
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_every_file_the_readme_links_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "//" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_importing_glia_imports_no_framework() -> None:
    source = "import glia, sys; glia.compile, glia.load; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    modules = subprocess.check_output([sys.executable, "-c", source], env=environment, text=True)
    loaded = {name.partition(".")[0] for name in modules.split()}
    assert "glia" in loaded
    assert not {"jax", "torch", "tensorflow", "sklearn", "mxnet"} & loaded

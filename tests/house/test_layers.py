"""A folder imports only what stands above it, at the top of the file."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from house.source import PACKAGE, functions, imported, nodes_of, place, python_files

ORDER = (
    "base", "arch", "options", "cc_flags", "isa", "graph", "frontend", "tile", "machine", "neff",
    "custom_call", "pipeline", "pass_runner", "sim", "timing", "tuning", "alternatives",
    "compile_report", "core_programs", "compile_messages", "cache", "compiler", "profile",
    "runtime", "ntff", "triage", "nki", "kernels", "plan", "plugins", "conformance", "cli",
)  # fmt: skip

FRAMEWORKS = {"jax", "jaxlib", "torch", "torch_xla", "tensorflow", "mxnet", "flax", "sklearn"}
FRAMEWORK_HOMES = (
    "frontend",
    "plugins",
    "cli/demo",  # trains a model: a user of the framework that is shipped with the command
)

LAZY = {
    "cli": "a command starts fast when it loads only what it runs",
    "pipeline.py": "`import glia` loads the list of passes, not the passes and what they import",
    "compiler.py": "`import glia` loads what compiles when the first model is compiled",
    "runtime/model.py": "native execution and profiling load when a model is first run or profiled",
    "frontend/hlo_import/hlo_proto.py": "protobuf builds its descriptors on the first read",
    "frontend/stablehlo.py": "the framework is an extra",
    "nki/session/interpreter.py": "LLVM loads in simulations that are long enough for it",
    "ntff/formats.py": "the library that writes Parquet is an extra",
}


# Modules ahead that a file names as text, to import them when they are needed
NAMED = {
    "pipeline.py": "the pass that times what it proposes loads when it runs, as all passes do",
    "plan/part_process.py": "the plugin that writes parts of decoders loads where one is compiled",
    "nki/run/frameworks.py": "a plugin loads when a kernel is given what its framework traces",
    "frontend/exported_program.py": "the plugin that writes HLO loads when PyTorch has exported",
}


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(("glia", *path.relative_to(PACKAGE).with_suffix("").parts))


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, module) of every import in a file, those for type checking included."""
    statements = [n for n in nodes_of(path) if isinstance(n, ast.Import | ast.ImportFrom)]
    return tuple((n.lineno, name) for n in statements for name in imported(n, module_of(path)))


def is_at_home(path: Path, homes: tuple[str, ...]) -> bool:
    inside = path.relative_to(PACKAGE).as_posix()
    return any(inside == home or inside.startswith(f"{home}/") for home in homes)


def test_every_file_belongs_to_a_layer() -> None:
    roots = {"__init__", "__main__"}
    assert {layer(path) for path in python_files(PACKAGE)} <= {*ORDER, *roots}


def test_imports_point_backwards() -> None:
    wrong = []
    for path in python_files(PACKAGE):
        if layer(path) not in ORDER:
            continue
        for line, name in imports(path):
            parts = name.split(".")
            if parts[0] != "glia" or len(parts) < 2 or parts[1].startswith("_"):
                continue  # not ours, or a fact of the package itself such as its version
            if parts[1] not in ORDER or ORDER.index(parts[1]) > ORDER.index(layer(path)):
                wrong.append(f"{place(path, line)} imports {name}")
    assert not wrong, "\n".join(["", *wrong])


def test_modules_named_as_text_stand_above_too() -> None:
    layers = {module_of(path): layer(path) for path in python_files(PACKAGE)}
    ahead = set()
    for path in python_files(PACKAGE):
        texts = (n.value for n in nodes_of(path) if isinstance(n, ast.Constant))
        names = (text.partition(":")[0] for text in texts if isinstance(text, str))
        named = {layers[name] for name in names if name in layers}
        if layer(path) in ORDER and named & {*ORDER[ORDER.index(layer(path)) + 1 :]}:
            ahead.add(path.relative_to(PACKAGE).as_posix())
    assert ahead == NAMED.keys()


def test_frameworks_are_imported_by_front_ends_and_plugins_only() -> None:
    wrong = [
        f"{place(path, line)} imports {name}"
        for path in python_files(PACKAGE)
        if not is_at_home(path, FRAMEWORK_HOMES)
        for line, name in imports(path)
        if name.split(".")[0] in FRAMEWORKS
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_imports_stand_at_the_top() -> None:
    wrong = [
        f"{place(path, node.lineno)} imports inside {function.name}"
        for path in python_files(PACKAGE)
        if not is_at_home(path, tuple(LAZY))
        for function in functions(path)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_every_exception_is_needed() -> None:
    lazy = {
        path.relative_to(PACKAGE).as_posix()
        for path in python_files(PACKAGE)
        for function in functions(path)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Attribute) and node.attr == "import_module")
    }
    spare = [home for home in LAZY if not any(f == home or f.startswith(f"{home}/") for f in lazy)]
    assert spare == []

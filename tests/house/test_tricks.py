"""Tricks with the memory of objects stand in one module, each with a plain twin."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from house.source import PACKAGE, nodes_of, place, python_files

HOME = "base/fast_objects.py"

# (file, trick): why it is none there
ALLOWED = {
    ("nki/tensors/nki_object.py", "__new__"): "a class of a user's, whose initialiser differs",
    ("nki/source/definitions.py", "__dict__"): "attributes of an unknown object, none computed",
    ("runtime/borrowed.py", "ctypes"): "the structure by which DLPack describes an array",
    ("plugins/torch/device/device_module.py", "__new__"): "storages of PyTorch's, made otherwise",
    ("timing/registers.py", "__new__"): "members of an enumeration are given attributes",
    ("base/machine_code/native.py", "ctypes"): "compiled functions are called and given addresses",
    ("nki/beta1/run/while_loop.py", "ctypes"): "a local variable of a running function is set",
}
C_ROOM = "plugins/pjrt/"  # an interface of C: its structures, and the memory they point to
# Dictionaries and sets by identity, of objects that live as long as they do: what hashes by value
# would be slow, or would take two equal objects for one
BY_IDENTITY = {
    "graph/passes/eliminate_common_subexpressions.py": "regions, part of a node's key",
    "graph/text.py": "constants, by array",
    "machine/columns/value_numbering.py": "values without a hash",
    "machine/emit/nest.py": "expressions",
    "machine/emit/selection.py": "expressions",
    "machine/passes/insert_semaphores.py": "instructions",
    "neff/write.py": "arrays of weights",
    "nki/beta1/run/while_loop.py": "storages",
    "nki/back_end/plan.py": "instructions",
    "nki/back_end/unroll_loops.py": "instructions",
    "nki/run/advice.py": "instructions",
    "nki/run/recorded_text.py": "instructions",
    "nki/session/ordering.py": "instructions",
    "nki/session/session.py": "code objects, whose hash reads the whole code",
    "nki/source/subset.py": "syntax nodes",
    "plugins/jax/kernels.py": "arrays",
    "plugins/torch/kernels.py": "arrays",
    "sim/host/host_program.py": "instructions",
    "sim/host/loop_nest.py": "terms of an expression",
    "sim/host/table_file.py": "instructions",
    "sim/host/table.py": "instructions and arrays of registers",
    "sim/host/rewriting/element_moves.py": "instructions and access patterns",
    "sim/host/rewriting/lives.py": "access patterns",
    "sim/last_writer.py": "buffers",
    "sim/order/concurrent_core.py": "instructions and waits",
    "sim/order/happens_before.py": "instructions and buffers",
    "sim/psum_accumulation.py": "buffers",
    "sim/ranks/remote.py": "instructions",
    "sim/uses.py": "instructions and buffers",
    "tile/build/read_cost.py": "values",
    "tile/build/values.py": "values",
    "tile/column_operands.py": "expressions",
    "tile/evaluate.py": "expressions",
    "tile/ir.py": "expressions",
    "tile/legal.py": "expressions",
    "tile/masked_columns.py": "expressions",
    "tile/nest_rewriting.py": "expressions",
    "tile/expand/expand_scalars.py": "expressions",
    "tile/live_values.py": "expressions",
    "tile/passes/schedule.py": "expressions",
    "tile/passes/skip_masked_blocks.py": "expressions",
    "tile/text.py": "expressions",
}
ALL_ALLOWED = {*ALLOWED, *((file, "id") for file in BY_IDENTITY)}


def tricks(path: Path) -> Iterator[tuple[str, int]]:
    """(trick, line) for every use of one in a file."""
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and node.attr in ("__new__", "__dict__", "ctypes"):
            yield node.attr, node.lineno
        elif isinstance(node, ast.Attribute) and node.attr == "__setattr__":
            yield "__setattr__", node.lineno
        elif isinstance(node, ast.Constant) and node.value in ("__new__", "__dict__"):
            yield node.value, node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "id":
                yield "id", node.lineno
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] + [getattr(node, "module", None)]
            if "ctypes" in names:
                yield "ctypes", node.lineno


def found() -> dict[tuple[str, str], str]:
    """Where each trick is used outside its home, by file and trick."""
    return {
        (str(path.relative_to(PACKAGE)), trick): place(path, line)
        for path in python_files(PACKAGE)
        if str(path.relative_to(PACKAGE)) != HOME
        for trick, line in tricks(path)
    }


def test_tricks_with_objects_stand_in_one_module() -> None:
    wrong = {
        where: trick
        for (file, trick), where in found().items()
        if (file, trick) not in ALL_ALLOWED and not (trick == "ctypes" and C_ROOM in file)
    }
    assert not wrong, wrong


def test_what_is_allowed_is_used() -> None:
    assert not ALL_ALLOWED - set(found())

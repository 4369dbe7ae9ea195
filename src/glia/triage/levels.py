"""The values of a program at any level: what it returns, and what it computes on the way.

Inputs and outputs keep their bytes from pass to pass, not their types: complex numbers become pairs
of floats, 64-bit integers pairs of words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import DType
from glia.base.errors import Unspecified
from glia.base.loc import Loc
from glia.graph.evaluate import evaluate as evaluate_graph
from glia.graph.ir import Graph, Parameter, TensorType
from glia.machine.ir import Program as MachineProgram
from glia.sim.run import run
from glia.tile.evaluate import evaluate as evaluate_tiles
from glia.tile.evaluate import memory_of, run_block
from glia.tile.ir import Accumulator, Apply, Expr, Nest, Store
from glia.tile.ir import Program as TileProgram
from glia.triage.kernel_calls import run_kernel, with_kernels

Array = np.ndarray[Any, Any]
MOST_POINTS = 1 << 20  # of a nest whose body is evaluated part by part
PART = "part of a nest"  # no buffer has this name


@dataclass(frozen=True)
class Value:
    """What a node or a nest computes: its name, its place in the user's program, the array."""

    name: str
    loc: Loc
    array: Array


def reinterpret(array: Array, dtype: DType, shape: Sequence[int]) -> Array:
    """The bytes of an array as another type of the same bytes."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if dtype.numpy == np.dtype(bool):
        truth: Array = (data != 0).reshape(shape)
        return truth
    same: Array = data.view(dtype.numpy).reshape(shape)
    return same


def outputs_of(level: str, ir: Any, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a program at a level on the model's inputs, in its own types.

    Raises Unspecified for what only several cores together compute.
    """
    if level == "graph":
        return evaluate_graph(with_kernels(ir), graph_inputs(ir, inputs))
    if level == "tile":
        return evaluate_tiles(ir, tile_inputs(ir, inputs), run_kernel)
    program = single_program(ir)
    found = run(program, machine_inputs(program, inputs))
    return [found[binding.name] for binding in program.outputs]


def single_program(ir: Any) -> MachineProgram:
    """The one program of a machine level; Unspecified for those of several cores."""
    programs = ir if isinstance(ir, tuple) else (ir,)
    if len(programs) != 1:
        raise Unspecified(f"a model on {len(programs)} cores is not followed pass by pass")
    program: MachineProgram = programs[0]
    return program


def graph_inputs(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The model's inputs in the types of a graph's parameters."""
    types = [p.type for p in graph.parameters if isinstance(p.type, TensorType)]
    return [reinterpret(a, t.dtype, t.shape) for a, t in zip(inputs, types, strict=True)]


def tile_inputs(program: TileProgram, inputs: Sequence[Array]) -> list[Array]:
    """The model's inputs in the types of a tile program's buffers."""
    buffers = [program.buffers[name] for name in program.inputs]
    return [reinterpret(a, b.dtype, b.shape) for a, b in zip(inputs, buffers, strict=True)]


def machine_inputs(program: MachineProgram, inputs: Sequence[Array]) -> Mapping[str, Array]:
    """The model's inputs by name in the types of a machine program's bindings."""
    pairs = zip(program.inputs, inputs, strict=True)
    return {b.name: reinterpret(a, b.dtype, b.shape) for b, a in pairs}


def values_of(level: str, ir: Any, inputs: Sequence[Array]) -> list[Value]:
    """What the nodes of a graph or the nests of a tile program compute, in order."""
    if level == "graph":
        return list(_graph_values(with_kernels(ir), graph_inputs(ir, inputs)))
    return list(_tile_values(ir, tile_inputs(ir, inputs)))


def _graph_values(graph: Graph, inputs: Sequence[Array]) -> Iterator[Value]:
    values: dict[Any, Any] = {}
    for number, node in enumerate(graph.nodes):
        if isinstance(node, Parameter):
            values[node] = inputs[node.index]
            continue
        values[node] = node.compute(*(values[operand] for operand in node.operands))
        if isinstance(values[node], np.ndarray):
            yield Value(f"%{number} = {node.opcode}", node.loc, values[node])


def _tile_values(program: TileProgram, inputs: Sequence[Array]) -> Iterator[Value]:
    memory = memory_of(program, inputs)
    with np.errstate(all="ignore"):
        for statement in program.body:
            run_block((statement,), memory, run_kernel)
            inner = TileProgram("", program.buffers, (statement,), (), ())
            for nest in inner.nests():
                yield Value(nest.name, nest.loc, memory[nest.target.buffer].copy())


def intermediate_values(nest: Nest, arrays: Mapping[str, Array]) -> Iterator[Array]:
    """What the parts of a nest's body, and of what finishes its reduction, are at every point."""
    parallel = nest if nest.reduction is None else replace(nest, reduction=None, finish=None)
    if math.prod(axis.extent for axis in nest.axes) <= MOST_POINTS:
        for part in _parts(nest.body):
            yield _evaluate_part(replace(parallel, body=part), part, arrays)
    if nest.reduction is not None:
        reduced = Accumulator(nest.reduction.dtype)
        yield _evaluate_part(replace(nest, finish=reduced), reduced, arrays)
        for part in _parts(nest.finish):
            yield _evaluate_part(replace(nest, finish=part), part, arrays)


def _parts(expression: Expr | None) -> Iterator[Apply]:
    """The applications of functions in an expression, each once."""
    stack: list[Expr | None] = [expression]
    seen: list[Expr] = []
    while stack:
        each = stack.pop()
        if isinstance(each, Apply) and not any(each is known for known in seen):
            seen.append(each)
            stack.extend(each.args)
            yield each


def _evaluate_part(nest: Nest, part: Apply | Accumulator, arrays: Mapping[str, Array]) -> Array:
    axes = nest.parallel_axes
    shape = tuple(axis.extent for axis in axes)
    index = tuple(Affine.of(axis.name) for axis in axes)
    memory = {name: np.asarray(array) for name, array in arrays.items()}
    memory |= {PART: np.empty(shape, part.dtype.numpy)}
    target = Store(PART, index)
    with np.errstate(all="ignore"):
        run_block((replace(nest, target=target),), memory)
    return memory[PART]

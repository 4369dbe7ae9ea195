"""Lower a graph to loop nests.

Every value starts as a function from an index to a scalar expression. Movement changes the index
and vanishes; elementwise operations join their reader's expression; a reduction becomes the nest of
the one reader that covers it, with what follows as the epilogue. A value gets a buffer only when
readers in different nests would compute it twice, or a reader needs plain loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glia.base.dtype import PRED, S32
from glia.frontend.errors import UnsupportedOperator
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops.control import KERNEL
from glia.graph.ops.scalar_regions import identity
from glia.options import CompileOptions
from glia.tile.build.block import Block, Names, whole
from glia.tile.build.indexed import (
    DynamicSliceValue,
    DynamicUpdateSliceValue,
    GatherValue,
    ScatterValue,
)
from glia.tile.build.reduction import (
    ConvolutionValue,
    DotValue,
    ReduceValue,
    ReduceWindowValue,
    monoid_of,
)
from glia.tile.build.sharing import shared_nodes
from glia.tile.build.values import (
    BroadcastScalar,
    BroadcastValue,
    Counted,
    Elementwise,
    Joined,
    PadValue,
    ReshapeValue,
    ReverseValue,
    Scalar,
    SliceValue,
    Stored,
    TransposeValue,
    Value,
)
from glia.tile.errors import UnsupportedDtype
from glia.tile.ir import Branch, Call, Program, While

Values = dict[Node, list[Value]]


def build(graph: Graph, options: CompileOptions | None = None) -> Program:
    """The program that computes `graph`; its inputs and outputs are the graph's, in order.

    No option changes the result. Raises UnsupportedOperator for an operation, UnsupportedDtype for
    an element type that earlier passes should have expanded.
    """
    names = Names()
    inputs = _declare_inputs(names, graph)
    outputs = _declare_outputs(names, graph)
    written = {result for result, _ in graph.aliases}
    homes = {
        node: outputs[i]
        for i, node in reversed(list(enumerate(graph.results)))
        if not isinstance(node, Parameter | ops.Constant) and i not in written
    }
    block = Block(names, homes)
    values = lower(block, graph, inputs)
    _write_results(block, [values[node][0] for node in graph.results], outputs, written)
    pairs = tuple((outputs[result], inputs[parameter]) for result, parameter in graph.aliases)
    body, buffers = tuple(block.body), names.buffers
    return Program(graph.name, buffers, body, inputs, outputs, names.constants, pairs)


def _declare_inputs(names: Names, graph: Graph) -> tuple[str, ...]:
    found = []
    for i, parameter in enumerate(graph.parameters):
        name = names.exactly(parameter.name, f"input{i}")
        found.append(names.buffer(name, parameter.dtype, parameter.shape, "input"))
    return tuple(found)


def _declare_outputs(names: Names, graph: Graph) -> tuple[str, ...]:
    found = []
    wanted = graph.result_names or ("",) * len(graph.results)
    for i, (node, name) in enumerate(zip(graph.results, wanted, strict=True)):
        name = names.exactly(name, f"output{i}")
        found.append(names.buffer(name, node.dtype, node.shape, "output"))
    return tuple(found)


def _write_results(
    block: Block, results: Sequence[Value], outputs: Sequence[str], aliased: set[int]
) -> None:
    """Fill every output; those that share memory with an input last, when nobody reads it."""
    for i, (value, output) in enumerate(zip(results, outputs, strict=True)):
        if i not in aliased and value.buffer != output:
            value.emit_into(whole(output))
    late = [(results[i], outputs[i]) for i in sorted(aliased)]
    copy_together(block, late)


def copy_together(block: Block, moves: Sequence[tuple[Value, str]]) -> None:
    """Write values to buffers that the values themselves may be read from.

    Every value is computed into a buffer of its own before the first write.
    """
    waiting = []
    for value, buffer in moves:
        if value.buffer == buffer:
            continue
        value.materialise()
        if block.names.buffers[value.buffer].role == "input" and len(moves) > 1:
            value = _copied(block, value)
        waiting.append((value, buffer))
    for value, buffer in waiting:
        value.emit_into(whole(buffer))


def _copied(block: Block, value: Value) -> Value:
    name = block.fresh_buffer(value.dtype, value.shape)
    value.emit_into(whole(name))
    return Stored(block, value.node, name, TensorType(value.dtype, value.shape))


def lower(block: Block, graph: Graph, arguments: Sequence[str]) -> Values:
    """The values of every node of `graph`, its parameters being in the buffers `arguments`."""
    values: Values = {}
    shared = shared_nodes(graph)
    for node in graph.nodes:
        _check_dtype(node)
        if isinstance(node, Parameter):
            found = [Stored(block, node, arguments[node.index])]
        else:
            found = _lower_node(block, node, values)
        values[node] = found
        if node in shared and found[0].is_costly:
            found[0].settle()
        found[0].has_several_readers = len(graph.users[node]) > 1
    return values


def _check_dtype(node: Node) -> None:
    """Raise UnsupportedDtype where no engine has the element type."""
    if not isinstance(node.type, TensorType):
        return
    dtype = node.dtype
    if dtype.is_complex or dtype.bits > 32 or dtype.bits < 8:
        kind = node.type
        raise UnsupportedDtype(opcode=node.opcode, type=kind, dtype=dtype, loc=node.loc)


def _lower_node(block: Block, node: Node, values: Values) -> list[Value]:
    if isinstance(node, ops.While):
        return _lower_while(block, node, values)
    if isinstance(node, ops.Conditional):
        return _lower_conditional(block, node, values)
    if isinstance(node, ops.CustomCall):
        return _lower_call(block, node, values)
    if isinstance(node, ops.Get):
        return [values[node.x][node.index]]
    if not isinstance(node.type, TensorType):
        raise UnsupportedOperator(opcode=node.opcode, nearest="", loc=node.loc)
    if node.type.elements == 0:
        buffer = block.homes.get(node) or block.fresh_buffer(node.dtype, node.shape)
        return [Stored(block, node, buffer)]
    lowering = _LOWERINGS.get(type(node))
    if lowering is None:
        raise UnsupportedOperator(opcode=node.opcode, nearest="", loc=node.loc)
    operands = [values[operand][0] for operand in node.operands]
    return [lowering(block, node, operands)]


def _lower_constant(block: Block, node: ops.Constant, _: list[Value]) -> Value:
    array = np.asarray(node.value)
    flat = array.reshape(-1)
    bits = np.ascontiguousarray(flat).view(f"u{flat.dtype.itemsize}")
    if bits[0] == bits[-1] and np.all(bits == bits[0]):
        value = flat[0].item()
        number = value if node.dtype.is_float else int(value)
        return Scalar(block, node, number, node.type)
    name = block.names.buffer(block.names.fresh("c"), node.dtype, node.shape, "constant")
    block.names.constants[name] = array
    return Stored(block, node, name)


def _lower_map(block: Block, node: ops.Map, args: list[Value]) -> Value:
    return args[0] if node.function == "copy" else Elementwise(block, node, node.function, args)


def _lower_convert(block: Block, node: ops.Convert, args: list[Value]) -> Value:
    return args[0] if args[0].dtype is node.to else Elementwise(block, node, "convert", args)


def _lower_bitcast(block: Block, node: ops.Bitcast, args: list[Value]) -> Value:
    if args[0].dtype is node.to:
        return args[0]
    if args[0].dtype.bits != node.to.bits:
        opcode = f"bitcast of {args[0].dtype} to {node.to}"
        raise UnsupportedOperator(opcode=opcode, nearest="", loc=node.loc)
    return Elementwise(block, node, "bitcast", args)


def _lower_precision(block: Block, node: ops.ReducePrecision, args: list[Value]) -> Value:
    bits = (node.exponent_bits, node.mantissa_bits)
    return Elementwise(block, node, "reduce_precision", args, bits)


def _lower_broadcast(block: Block, node: ops.Broadcast, args: list[Value]) -> Value:
    if isinstance(args[0], Scalar):
        return Scalar(block, node, args[0].number, node.type)
    return BroadcastValue(block, node, args[0])


def _moved(kind: Callable[..., Value]) -> Callable[..., Value]:
    def lower_movement(block: Block, node: Node, args: list[Value]) -> Value:
        if isinstance(args[0], Scalar):
            return Scalar(block, node, args[0].number, node.type)
        return kind(block, node, args[0])

    return lower_movement


def _lower_pad(block: Block, node: ops.Pad, args: list[Value]) -> Value:
    if args[0].elements == 0:
        return BroadcastScalar(block, node, args[1])
    return PadValue(block, node, args[0], args[1])


def _lower_concatenate(block: Block, node: ops.Concatenate, args: list[Value]) -> Value:
    parts = [arg for arg in args if arg.elements]
    return parts[0] if len(parts) == 1 else Joined(block, node, parts)


def _lower_dot(block: Block, node: ops.Dot, args: list[Value]) -> Value:
    if 0 in (args[0].elements, args[1].elements):
        return Scalar(block, node, 0, node.type)
    return DotValue(block, node, args[0], args[1])


def _lower_convolution(block: Block, node: ops.Convolution, args: list[Value]) -> Value:
    if 0 in (args[0].elements, args[1].elements):
        return Scalar(block, node, 0, node.type)
    x = _dilated(block, args[0], (1, 1, *node.x_dilation), 0)
    return ConvolutionValue(block, node, x, args[1])


def _dilated(block: Block, x: Value, dilation: tuple[int, ...], fill: float | int) -> Value:
    """x with `dilation - 1` fills between neighbours of each dimension."""
    if all(step == 1 for step in dilation):
        return x
    kind = TensorType(x.dtype, x.shape)
    number = ops.Constant(np.asarray(fill).astype(x.dtype.numpy))
    none = (0,) * len(dilation)
    gaps = tuple(step - 1 for step in dilation)
    node = ops.Pad(Parameter(0, kind), number, none, none, gaps, loc=x.loc)
    return PadValue(block, node, x, Scalar(block, number, fill, TensorType(x.dtype)))


def _lower_reduce(block: Block, node: ops.Reduce | ops.ReduceWindow, args: list[Value]) -> Value:
    if args[0].elements == 0:
        return BroadcastScalar(block, node, args[1])
    if isinstance(node, ops.Reduce):
        return ReduceValue(block, node, args[0], args[1])
    neutral = identity(monoid_of(node.body, node), args[0].dtype).item()
    x = _dilated(block, args[0], node.x_dilation, neutral)
    return ReduceWindowValue(block, node, x, args[1])


def _lower_dynamic_slice(block: Block, node: ops.DynamicSlice, args: list[Value]) -> Value:
    return DynamicSliceValue(block, node, args[0], args[1:])


def _lower_dynamic_update(block: Block, node: ops.DynamicUpdateSlice, args: list[Value]) -> Value:
    return DynamicUpdateSliceValue(block, node, args[0], args[1], args[2:])


_LOWERINGS: dict[type[Node], Callable[..., Value]] = {
    ops.Constant: _lower_constant,
    ops.Map: _lower_map,
    ops.Convert: _lower_convert,
    ops.Bitcast: _lower_bitcast,
    ops.ReducePrecision: _lower_precision,
    ops.Iota: lambda block, node, _: Counted(block, node),
    ops.Broadcast: _lower_broadcast,
    ops.Reshape: _moved(ReshapeValue),
    ops.Transpose: _moved(TransposeValue),
    ops.Slice: _moved(SliceValue),
    ops.Reverse: _moved(ReverseValue),
    ops.Pad: _lower_pad,
    ops.Concatenate: _lower_concatenate,
    ops.Dot: _lower_dot,
    ops.Convolution: _lower_convolution,
    ops.Reduce: _lower_reduce,
    ops.ReduceWindow: _lower_reduce,
    ops.Gather: lambda block, node, args: GatherValue(block, node, *args),
    ops.Scatter: lambda block, node, args: ScatterValue(block, node, *args),
    ops.DynamicSlice: _lower_dynamic_slice,
    ops.DynamicUpdateSlice: _lower_dynamic_update,
}


def _lower_call(block: Block, node: ops.CustomCall, values: Values) -> list[Value]:
    """A program written by hand, between buffers that hold its operands and results whole."""
    if node.target != KERNEL:
        raise UnsupportedOperator(opcode=f"{node.opcode} {node.target}", nearest="", loc=node.loc)
    for operand in node.args:
        values[operand][0].materialise()
    inputs = tuple(values[operand][0].buffer for operand in node.args)
    kinds = [node.type] if isinstance(node.type, TensorType) else list(node.type.elements)
    outputs = tuple(block.fresh_buffer(kind.dtype, kind.shape) for kind in kinds)
    if isinstance(node.type, TensorType) and node in block.homes:
        outputs = (block.homes[node],)
    name = block.names.fresh("call")
    block.body.append(Call(name, node.target, node.config, inputs, outputs, node.loc))
    return [Stored(block, node, o, kind) for o, kind in zip(outputs, kinds, strict=True)]


def _lower_while(block: Block, node: ops.While, values: Values) -> list[Value]:
    """State that changes lives in buffers of its own; what the body returns as it is does not."""
    names, state = block.names, []
    for i, initial in enumerate(node.state):
        value = values[initial][0]
        if node.body.results[i] is node.body.parameters[i]:
            value.materialise()
            state.append(value.buffer)
        else:
            state.append(block.fresh_buffer(value.dtype, value.shape))
            value.emit_into(whole(state[i]))
    predicate = names.buffer(names.fresh("t"), PRED, (), "temporary")
    condition = _lower_region(names, node.condition, state, [predicate])
    body = Block(names, _updated_in_place(node.body, state))
    inside = lower(body, node.body, state)
    results = [inside[result][0] for result in node.body.results]
    changed = [i for i, result in enumerate(node.body.results)
               if result is not node.body.parameters[i]]  # fmt: skip
    _assign_state(body, [(results[i], state[i]) for i in changed])
    name = names.fresh("while")
    block.body.append(While(name, condition, predicate, tuple(body.body)))
    kinds = [initial.type for initial in node.state]
    return [Stored(block, node, s, kind) for s, kind in zip(state, kinds, strict=True)]


def _assign_state(block: Block, moves: Sequence[tuple[Value, str]]) -> None:
    """The parallel assignment of new state, through temporaries."""
    states = {state for _, state in moves}
    waiting = []
    for value, state in moves:
        value.materialise()
        if value.buffer != state:
            value = _copied(block, value) if value.buffer in states else value
            waiting.append((value, state))
    for value, state in waiting:
        value.emit_into(whole(state))


def _updated_in_place(body: Graph, state: Sequence[str]) -> dict[Node, str]:
    """Updates of a state that nobody else reads, which can be written where the state is."""
    found: dict[Node, str] = {}
    for i, result in enumerate(body.results):
        parameter = body.parameters[i]
        if not isinstance(result, ops.DynamicUpdateSlice | ops.Scatter):
            continue
        only_reader = body.users[parameter] == (result,) and parameter not in body.results
        reads_once = list(result.operands).count(parameter) == 1
        returned_once = body.results.count(result) == 1
        if result.operands[0] is parameter and only_reader and reads_once and returned_once:
            found[result] = state[i]
    return found


def _lower_region(
    names: Names, graph: Graph, arguments: Sequence[str], results: Sequence[str]
) -> tuple:
    """The statements of a region that leave its results in given buffers."""
    homes = {
        node: results[i]
        for i, node in reversed(list(enumerate(graph.results)))
        if not isinstance(node, Parameter | ops.Constant)
    }
    block = Block(names, homes)
    values = lower(block, graph, arguments)
    for node, buffer in zip(graph.results, results, strict=True):
        if values[node][0].buffer != buffer:
            values[node][0].emit_into(whole(buffer))
    return tuple(block.body)


def _lower_conditional(block: Block, node: ops.Conditional, values: Values) -> list[Value]:
    names = block.names
    selector = _selector(block, node, values[node.index][0])
    first = node.branches[0]
    results = [block.fresh_buffer(r.dtype, r.shape) for r in first.results]
    arms, position = [], 0
    for branch, count in zip(node.branches, node.operand_counts, strict=True):
        operands = node.branch_operands[position : position + count]
        position += count
        arguments = []
        for operand in operands:
            values[operand][0].materialise()
            arguments.append(values[operand][0].buffer)
        arms.append((branch, arguments))
    lowered = tuple(_lower_region(names, branch, given, results) for branch, given in arms)
    block.body.append(Branch(names.fresh("branch"), selector, lowered))
    kinds = [result.type for result in first.results]
    return [Stored(block, node, r, kind) for r, kind in zip(results, kinds, strict=True)]


def _selector(block: Block, node: ops.Conditional, index: Value) -> str:
    """The s32 scalar buffer that says which arm runs."""
    if index.dtype is PRED:
        number = ops.Convert(ops.Map("not", (node.index,)), S32, loc=node.loc)
        inverted = Elementwise(block, number.x, "not", [index])
        index = Elementwise(block, number, "convert", [inverted])
    index.materialise()
    return index.buffer

"""Lower a graph to loop nests.

Every value starts as a function from an index to a scalar expression. Movement becomes index
arithmetic; elementwise operations fuse into their reader's expression; a reduction becomes the nest
of the reader that covers it, and its readers the epilogue. A value gets a buffer only where several
nests would recompute it, or where a reader needs a plain load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glia.base.dtype import F32, PRED, S32, TF32_BITS, U32, DType
from glia.frontend.errors import UnsupportedOperator
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops.control import KERNEL
from glia.graph.ops.scalar_regions import identity, monoid
from glia.graph.passes.errors import UnsupportedDtype
from glia.graph.recurrences.all_iterations import iterations
from glia.graph.rules.regions import tensor_types
from glia.options import CompileOptions
from glia.tile.build.block import BufferNames, NestBlock, whole_buffer
from glia.tile.build.indexed import (
    DynamicSliceValue,
    DynamicUpdateSliceValue,
    GatherValue,
    ScatterValue,
)
from glia.tile.build.recurrence import ScanValue
from glia.tile.build.reduction import (
    ConvolutionValue,
    DotValue,
    ReduceValue,
    ReduceWindowValue,
    monoid_of,
)
from glia.tile.build.row_values import PickValue, PlacesValue, picks_from_rows
from glia.tile.build.sharing import shared_nodes
from glia.tile.build.values import (
    BroadcastValue,
    BufferValue,
    ConcatenateValue,
    DeferredValue,
    ElementwiseValue,
    FillValue,
    IotaValue,
    PadValue,
    ProgressionValue,
    ReshapeValue,
    ReverseValue,
    RoundedValue,
    ScalarValue,
    SliceValue,
    TransposeValue,
)
from glia.tile.ir import Branch, Call, Exchange, Program, Statement, While

ValueMap = dict[Node, list[DeferredValue]]


def build(graph: Graph, options: CompileOptions | None = None) -> Program:
    """The program that computes `graph`; its inputs and outputs are the graph's, in order.

    Without mixed-precision accumulation reductions of 16-bit floats accumulate in their own dtype,
    and a note says what does not. Raises UnsupportedOperator for an operation, UnsupportedDtype for
    an element type that earlier passes should have expanded.
    """
    is_mixed = options is None or options.mixed_precision_accumulation
    ranks = graph.replicas * graph.partitions
    names = BufferNames(accumulates_in_float32=is_mixed, ranks=ranks)
    inputs = _declare_inputs(names, graph)
    outputs = _declare_outputs(names, graph)
    written = {result for result, _ in graph.aliases}
    homes = {
        node: outputs[i]
        for i, node in reversed(list(enumerate(graph.results)))
        if not isinstance(node, Parameter | ops.Constant) and i not in written
    }
    block = NestBlock(names, homes)
    values = lower(block, graph, inputs)
    _write_results(block, [values[node][0] for node in graph.results], outputs, written)
    pairs = tuple((outputs[result], inputs[parameter]) for result, parameter in graph.aliases)
    body, buffers = tuple(block.body), names.buffers
    notes = () if is_mixed else _accumulation_notes(names)
    return Program(graph.name, buffers, body, inputs, outputs, names.constants, pairs, notes=notes)


def _accumulation_notes(names: BufferNames) -> tuple[str, ...]:
    """What the user should know who asked for sums of 16-bit floats in their own dtype."""
    option = "--disable-mixed-precision-accumulation"
    if names.has_wide_contractions:
        return (f"{option}: contractions of 16-bit floats accumulate in float32, as PSUM does",)
    if not names.has_narrow_reductions:
        return (f"{option}: no effect, the model has no sums or products that it changes",)
    return ()


def _declare_inputs(names: BufferNames, graph: Graph) -> tuple[str, ...]:
    found = []
    for i, parameter in enumerate(graph.parameters):
        name = names.legal_name(parameter.name, f"input{i}")
        found.append(names.buffer(name, parameter.dtype, parameter.shape, "input"))
    return tuple(found)


def _declare_outputs(names: BufferNames, graph: Graph) -> tuple[str, ...]:
    found = []
    wanted = graph.result_names or ("",) * len(graph.results)
    for i, (node, name) in enumerate(zip(graph.results, wanted, strict=True)):
        name = names.legal_name(name, f"output{i}")
        found.append(names.buffer(name, node.dtype, node.shape, "output"))
    return tuple(found)


def _write_results(
    block: NestBlock, results: Sequence[DeferredValue], outputs: Sequence[str], aliased: set[int]
) -> None:
    """Write every output; those that alias an input last, after all reads of it."""
    for i, (value, output) in enumerate(zip(results, outputs, strict=True)):
        if i not in aliased and value.buffer != output:
            value.emit_into(whole_buffer(output))
    late = [(results[i], outputs[i]) for i in sorted(aliased)]
    parallel_copy(block, late)


def parallel_copy(block: NestBlock, moves: Sequence[tuple[DeferredValue, str]]) -> None:
    """Parallel assignment: write values to buffers that the values themselves may read.

    Every value is computed into a temporary before the first write.
    """
    waiting = []
    for value, buffer in moves:
        if value.buffer == buffer:
            continue
        value.materialise()
        if block.names.buffers[value.buffer].role == "input" and len(moves) > 1:
            value = _copy_to_temporary(block, value)
        waiting.append((value, buffer))
    for value, buffer in waiting:
        value.emit_into(whole_buffer(buffer))


def _copy_to_temporary(block: NestBlock, value: DeferredValue) -> DeferredValue:
    name = block.new_temporary(value.dtype, value.shape)
    value.emit_into(whole_buffer(name))
    return BufferValue(block, value.node, name, TensorType(value.dtype, value.shape))


def lower(block: NestBlock, graph: Graph, arguments: Sequence[str]) -> ValueMap:
    """The values of every node of `graph`, whose parameters are in the buffers `arguments`."""
    values: ValueMap = {}
    shared = shared_nodes(graph)
    for node in graph.nodes:
        _check_dtype(node)
        if isinstance(node, Parameter):
            found: list[DeferredValue] = [BufferValue(block, node, arguments[node.index])]
        else:
            found = _lower_node(block, node, values)
        values[node] = found
        if node in shared and found[0].is_costly:
            found[0].materialise_work()
        found[0].has_several_readers = len(graph.users[node]) > 1
    return values


def _tensor_type(node: Node) -> TensorType:
    """The type of a node that is known to be a tensor."""
    assert isinstance(node.type, TensorType)
    return node.type


def _check_dtype(node: Node) -> None:
    """Raise UnsupportedDtype for an element type that no engine computes with."""
    if not isinstance(node.type, TensorType):
        return
    dtype = node.dtype
    if dtype.is_complex or dtype.bits > 32 or dtype.bits < 8:
        kind = node.type
        cure = "cast to float32, bfloat16 or a 32-bit integer before this operation"
        raise UnsupportedDtype(opcode=node.opcode, type=kind, dtype=dtype, cure=cure, loc=node.loc)


def _lower_node(block: NestBlock, node: Node, values: ValueMap) -> list[DeferredValue]:
    if isinstance(node, ops.While):
        return _lower_while(block, node, values)
    if isinstance(node, ops.Conditional):
        return _lower_conditional(block, node, values)
    if isinstance(node, ops.CustomCall):
        return _lower_call(block, node, values)
    if isinstance(node, ops.Collective):
        return _lower_exchange(block, node, values)
    if isinstance(node, ops.Get):
        return [values[node.x][node.index]]
    if not isinstance(node.type, TensorType):
        raise UnsupportedOperator(opcode=node.opcode, nearest="", loc=node.loc)
    if node.type.elements == 0:
        buffer = block.homes.get(node) or block.new_temporary(node.dtype, node.shape)
        return [BufferValue(block, node, buffer)]
    lowering = _LOWERINGS.get(type(node))
    if lowering is None:
        raise UnsupportedOperator(opcode=node.opcode, nearest="", loc=node.loc)
    operands = [values[operand][0] for operand in node.operands]
    return [lowering(block, node, operands)]


def _lower_constant(block: NestBlock, node: ops.Constant, _: list[DeferredValue]) -> DeferredValue:
    array = np.asarray(node.value)
    flat = array.reshape(-1)
    bits = np.ascontiguousarray(flat).view(f"u{flat.dtype.itemsize}")
    if bits[0] == bits[-1] and np.all(bits == bits[0]):
        value = flat[0].item()
        number = value if node.dtype.is_float else int(value)
        return ScalarValue(block, node, number, _tensor_type(node))
    if (found := _progression(array, node.dtype)) is not None:
        return ProgressionValue(block, node, *found)
    name = block.names.buffer(block.names.unique_name("c"), node.dtype, node.shape, "constant")
    block.names.constants[name] = array
    return BufferValue(block, node, name)


def _progression(array: np.ndarray, dtype: DType) -> tuple[int, tuple[int, ...]] | None:
    """(first, step along each dimension) of 32-bit integers that grow evenly; else None.

    What is unsigned and has the uppermost bit is no offset of an index, which has a sign.
    """
    if dtype not in (S32, U32) or int(array.max(initial=0)) > np.iinfo(np.int32).max:
        return None
    start = int(array.flat[0])
    steps = []
    rest = np.full(array.shape, start, np.int64)
    for dimension, extent in enumerate(array.shape):
        second = tuple(int(d == dimension) for d in range(array.ndim))
        step = int(array[second]) - start if extent > 1 else 0
        steps.append(step)
        along = [extent if d == dimension else 1 for d in range(array.ndim)]
        rest += step * np.arange(extent).reshape(along)
    return (start, tuple(steps)) if np.array_equal(rest, array) else None


def _lower_map(block: NestBlock, node: ops.Map, args: list[DeferredValue]) -> DeferredValue:
    return (
        args[0] if node.function == "copy" else ElementwiseValue(block, node, node.function, args)
    )


def _lower_convert(block: NestBlock, node: ops.Convert, args: list[DeferredValue]) -> DeferredValue:
    return args[0] if args[0].dtype is node.to else ElementwiseValue(block, node, "convert", args)


def _lower_bitcast(block: NestBlock, node: ops.Bitcast, args: list[DeferredValue]) -> DeferredValue:
    if args[0].dtype is node.to:
        return args[0]
    if args[0].dtype.bits != node.to.bits:
        opcode = f"bitcast of {args[0].dtype} to {node.to}"
        raise UnsupportedOperator(opcode=opcode, nearest="", loc=node.loc)
    return ElementwiseValue(block, node, "bitcast", args)


def _lower_precision(
    block: NestBlock, node: ops.ReducePrecision, args: list[DeferredValue]
) -> DeferredValue:
    bits = (node.exponent_bits, node.mantissa_bits)
    kind = RoundedValue if bits == TF32_BITS and node.dtype is F32 else ElementwiseValue
    return kind(block, node, "reduce_precision", args, bits)


def _lower_broadcast(
    block: NestBlock, node: ops.Broadcast, args: list[DeferredValue]
) -> DeferredValue:
    if isinstance(args[0], ScalarValue):
        return ScalarValue(block, node, args[0].number, _tensor_type(node))
    return BroadcastValue(block, node, args[0])


def _lower_movement(kind: Callable[..., DeferredValue]) -> Callable[..., DeferredValue]:
    def lower(block: NestBlock, node: Node, args: list[DeferredValue]) -> DeferredValue:
        if isinstance(args[0], ScalarValue):
            return ScalarValue(block, node, args[0].number, _tensor_type(node))
        return kind(block, node, args[0])

    return lower


def _lower_pad(block: NestBlock, node: ops.Pad, args: list[DeferredValue]) -> DeferredValue:
    if args[0].elements == 0:
        return FillValue(block, node, args[1])
    return PadValue(block, node, args[0], args[1])


def _lower_concatenate(
    block: NestBlock, node: ops.Concatenate, args: list[DeferredValue]
) -> DeferredValue:
    parts = [arg for arg in args if arg.elements]
    return parts[0] if len(parts) == 1 else ConcatenateValue(block, node, parts)


def _lower_dot(block: NestBlock, node: ops.Dot, args: list[DeferredValue]) -> DeferredValue:
    if 0 in (args[0].elements, args[1].elements):
        return ScalarValue(block, node, 0, _tensor_type(node))
    return DotValue(block, node, args[0], args[1])


def _lower_convolution(
    block: NestBlock, node: ops.Convolution, args: list[DeferredValue]
) -> DeferredValue:
    if 0 in (args[0].elements, args[1].elements):
        return ScalarValue(block, node, 0, _tensor_type(node))
    x = _dilate(block, args[0], (1, 1, *node.x_dilation), 0)
    return ConvolutionValue(block, node, x, args[1])


def _dilate(
    block: NestBlock, x: DeferredValue, dilation: tuple[int, ...], fill: float | int
) -> DeferredValue:
    """x with `dilation - 1` elements of `fill` between neighbours in each dimension."""
    if all(step == 1 for step in dilation):
        return x
    kind = TensorType(x.dtype, x.shape)
    number = ops.Constant(np.asarray(fill).astype(x.dtype.numpy))
    none = (0,) * len(dilation)
    gaps = tuple(step - 1 for step in dilation)
    node = ops.Pad(Parameter(0, kind), number, none, none, gaps, loc=x.loc)
    return PadValue(block, node, x, ScalarValue(block, number, fill, TensorType(x.dtype)))


def _lower_reduce(
    block: NestBlock, node: ops.Reduce | ops.ReduceWindow, args: list[DeferredValue]
) -> DeferredValue:
    if args[0].elements == 0:
        return FillValue(block, node, args[1])
    if isinstance(node, ops.Reduce):
        return ReduceValue(block, node, args[0], args[1])
    neutral = identity(monoid_of(node.body, node), args[0].dtype).item()
    x = _dilate(block, args[0], node.x_dilation, neutral)
    return ReduceWindowValue(block, node, x, args[1])


def _lower_gather(block: NestBlock, node: ops.Gather, args: list[DeferredValue]) -> DeferredValue:
    kind = PickValue if picks_from_rows(node) else GatherValue
    return kind(block, node, *args)


def _lower_dynamic_slice(
    block: NestBlock, node: ops.DynamicSlice, args: list[DeferredValue]
) -> DeferredValue:
    return DynamicSliceValue(block, node, args[0], args[1:])


def _lower_dynamic_update(
    block: NestBlock, node: ops.DynamicUpdateSlice, args: list[DeferredValue]
) -> DeferredValue:
    return DynamicUpdateSliceValue(block, node, args[0], args[1], args[2:])


_LOWERINGS: dict[type[Node], Callable[..., DeferredValue]] = {
    ops.Constant: _lower_constant,
    ops.Map: _lower_map,
    ops.Convert: _lower_convert,
    ops.Bitcast: _lower_bitcast,
    ops.ReducePrecision: _lower_precision,
    ops.Iota: lambda block, node, _: IotaValue(block, node),
    ops.Broadcast: _lower_broadcast,
    ops.Reshape: _lower_movement(ReshapeValue),
    ops.Transpose: _lower_movement(TransposeValue),
    ops.Slice: _lower_movement(SliceValue),
    ops.Reverse: _lower_movement(ReverseValue),
    ops.Pad: _lower_pad,
    ops.Concatenate: _lower_concatenate,
    ops.Dot: _lower_dot,
    ops.Convolution: _lower_convolution,
    ops.Reduce: _lower_reduce,
    ops.ReduceWindow: _lower_reduce,
    ops.Scan: lambda block, node, args: ScanValue(block, node, *args),
    ops.Gather: _lower_gather,
    ops.Places: lambda block, node, args: PlacesValue(block, node, *args),
    ops.Scatter: lambda block, node, args: ScatterValue(block, node, *args),
    ops.DynamicSlice: _lower_dynamic_slice,
    ops.DynamicUpdateSlice: _lower_dynamic_update,
}


def _lower_call(block: NestBlock, node: ops.CustomCall, values: ValueMap) -> list[DeferredValue]:
    """Lower a kernel call: its operands and results are whole buffers."""
    if node.target != KERNEL:
        raise UnsupportedOperator(opcode=f"{node.opcode} {node.target}", nearest="", loc=node.loc)
    for operand in node.args:
        values[operand][0].materialise()
    inputs = tuple(values[operand][0].buffer for operand in node.args)
    parts = [node.type] if isinstance(node.type, TensorType) else node.type.elements
    types = [kind for kind in parts if isinstance(kind, TensorType)]
    assert len(types) == len(parts), "results of a kernel are tensors"
    outputs = tuple(block.new_temporary(kind.dtype, kind.shape) for kind in types)
    if isinstance(node.type, TensorType) and node in block.homes:
        outputs = (block.homes[node],)
    name = block.names.unique_name("call")
    block.body.append(Call(name, node.target, node.config, inputs, outputs, node.loc))
    return [BufferValue(block, node, o, kind) for o, kind in zip(outputs, types, strict=True)]


def _lower_exchange(
    block: NestBlock, node: ops.Collective, values: ValueMap
) -> list[DeferredValue]:
    """Lower a collective that is an exchange: its operands and results are whole buffers."""
    for operand in node.args:
        values[operand][0].materialise()
    inputs = tuple(values[operand][0].buffer for operand in node.args)
    types = tensor_types(node.type)
    outputs = tuple(block.new_temporary(kind.dtype, kind.shape) for kind in types)
    if isinstance(node.type, TensorType) and node in block.homes:
        outputs = (block.homes[node],)
    found = [BufferValue(block, node, o, kind) for o, kind in zip(outputs, types, strict=True)]
    if node.kind == "collective-permute" and len(node.pairs) != block.names.ranks:
        for output, value in zip(outputs, found, strict=True):
            _clear(block, value, output)
    function = (monoid(node.body[0]) or "") if node.body else ""
    name = block.names.unique_name("exchange")
    groups = node.pairs or node.replica_groups
    block.body.append(Exchange(name, node.kind, function, groups, inputs, outputs, node.loc))
    return list(found)


def _clear(block: NestBlock, value: BufferValue, buffer: str) -> None:
    """Fill a buffer with 0, which a rank keeps that nothing is sent to."""
    kind = TensorType(value.dtype, value.shape)
    ScalarValue(block, value.node, 0, kind).emit_into(whole_buffer(buffer))


def _lower_while(block: NestBlock, node: ops.While, values: ValueMap) -> list[DeferredValue]:
    """Lower a loop: mutable state gets buffers; state the body returns unchanged is not copied."""
    names, state = block.names, []
    for i, initial in enumerate(node.state):
        value = values[initial][0]
        if node.body.results[i] is node.body.parameters[i]:
            value.materialise()
            state.append(value.buffer)
        else:
            state.append(block.new_temporary(value.dtype, value.shape))
            value.emit_into(whole_buffer(state[i]))
    predicate = names.buffer(names.unique_name("t"), PRED, (), "temporary")
    condition = _lower_region(names, node.condition, state, [predicate])
    body = NestBlock(names, _in_place_updates(node.body, state))
    inside = lower(body, node.body, state)
    results = [inside[result][0] for result in node.body.results]
    changed = [i for i, result in enumerate(node.body.results)
               if result is not node.body.parameters[i]]  # fmt: skip
    _assign_state(body, [(results[i], state[i]) for i in changed])
    name = names.unique_name("while")
    times = iterations(node) or 0
    block.body.append(While(name, condition, predicate, tuple(body.body), times))
    types = [_tensor_type(initial) for initial in node.state]
    return [BufferValue(block, node, s, kind) for s, kind in zip(state, types, strict=True)]


def _assign_state(block: NestBlock, moves: Sequence[tuple[DeferredValue, str]]) -> None:
    """The parallel assignment of new state, through temporaries."""
    states = {state for _, state in moves}
    waiting = []
    for value, state in moves:
        value.materialise()
        if value.buffer != state:
            value = _copy_to_temporary(block, value) if value.buffer in states else value
            waiting.append((value, state))
    for value, state in waiting:
        value.emit_into(whole_buffer(state))


def _in_place_updates(body: Graph, state: Sequence[str]) -> dict[Node, str]:
    """Updates of state with no other reader, which can overwrite the state's buffer."""
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
    names: BufferNames, graph: Graph, arguments: Sequence[str], results: Sequence[str]
) -> tuple[Statement, ...]:
    """The statements of a region that writes its results to the buffers `results`."""
    homes = {
        node: results[i]
        for i, node in reversed(list(enumerate(graph.results)))
        if not isinstance(node, Parameter | ops.Constant)
    }
    block = NestBlock(names, homes)
    values = lower(block, graph, arguments)
    for node, buffer in zip(graph.results, results, strict=True):
        if values[node][0].buffer != buffer:
            values[node][0].emit_into(whole_buffer(buffer))
    return tuple(block.body)


def _lower_conditional(
    block: NestBlock, node: ops.Conditional, values: ValueMap
) -> list[DeferredValue]:
    names = block.names
    selector = _selector(block, node, values[node.index][0])
    first = node.branches[0]
    results = [block.new_temporary(r.dtype, r.shape) for r in first.results]
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
    block.body.append(Branch(names.unique_name("branch"), selector, lowered))
    types = [_tensor_type(result) for result in first.results]
    return [BufferValue(block, node, r, kind) for r, kind in zip(results, types, strict=True)]


def _selector(block: NestBlock, node: ops.Conditional, index: DeferredValue) -> str:
    """The s32 scalar buffer that selects the arm."""
    if index.dtype is PRED:
        number = ops.Convert(ops.Map("not", (node.index,)), S32, loc=node.loc)
        inverted = ElementwiseValue(block, number.x, "not", [index])
        index = ElementwiseValue(block, number, "convert", [inverted])
    index.materialise()
    return index.buffer

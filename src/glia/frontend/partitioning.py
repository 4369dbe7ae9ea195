"""The program of one device from one with shardings, by Shardy's passes in jaxlib; without glia.

Loaded by path in the process of `conversion_worker`. A program of many devices says by
`mhlo.num_partitions` and `mhlo.num_replicas` how many there are, and by attributes of Shardy how
its tensors are divided; the body of a `shard_map` is one device's program already. The result has
the shapes of one device, and collectives.
"""

from __future__ import annotations

import importlib
import io
import math
import re
from typing import Any

# The shardings of all values, of parameters and results too; then the program of one device
_PROPAGATION = "builtin.module(symbol-dce,sdy-propagation-pipeline)"
_LOCALIZATION = (
    "builtin.module("
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    "func.func(sdy-reshard-to-collectives),"
    "sdy-convert-global-to-local,sdy-drop-sharding-and-mesh,canonicalize,cse,symbol-dce)"
)
_SHARDING = "sdy.sharding"
_SCATTER_DIMENSIONS = "scatter_dimension_numbers"
# Custom calls that only say how a value is divided
_SHARDING_CALLS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")
_DEEPEST_CALLS = 64
_ARTIFACT, _HEAD_BYTES = b"StableHLO_v", 32  # what the head of a portable artifact holds
_BYTECODE = b"ML\xefR"
_SEVERAL = re.compile(rb"num_(?:replicas|partitions) = (?!1\b)")
_AXIS_SIZE = re.compile(r'"=(\d+)')

# An array's: the axes of a mesh with their sizes, those that divide each dimension, and numbers of
# the devices if they are not in order
Division = tuple[dict[str, int], list[list[str]], list[int]]
Divisions = tuple[list[Division], list[Division]]  # of parameters, of results
_WHOLE: Division = ({}, [], [])
_OTHER_SHARDINGS = (
    "its shardings are mhlo.sharding, not Shardy's; set jax_use_shardy_partitioner, or give the"
    " program of one device"
)


def partitioned(module: bytes) -> tuple[bytes, tuple[int, int], Divisions | None]:
    """A module for one device, and how many replicas and partitions run it; 0 where it is silent.

    Last is how parameters and results are divided, where that was decided here. Raises ValueError,
    which says why, for what cannot be divided.
    """
    if not any(word in module for word in (b"num_partitions", b"num_replicas", b"sdy")):
        return module, (0, 0), None
    if not module.startswith(_BYTECODE) and b"sdy" not in module and not _SEVERAL.search(module):
        return module, (1, 1), None
    ir = importlib.import_module("jaxlib.mlir.ir")
    with _context(ir), ir.Location.unknown():
        try:
            parsed = _parsed(ir, module)
        except ir.MLIRError as error:
            raise ValueError(str(error)) from error
        replicas, partitions = device_counts(parsed.operation)
        if partitions > 1 and b"mhlo.sharding" in module:
            raise ValueError(_OTHER_SHARDINGS)
        is_divided = partitions > 1 and b"sdy" in module
        divisions = _divide(ir, parsed) if is_divided else None
        if not _separate_exchanges(ir, parsed) and not is_divided:
            return module, (replicas, partitions), None
        written = io.BytesIO()
        parsed.operation.write_bytecode(written)
        return written.getvalue(), (replicas, partitions), divisions


def with_whole_windows(module: bytes) -> bytes:
    """A module of many devices whose convolutions say that their windows are not divided.

    Other partitioners divide convolutions along their windows, and some give other values then.
    Raises ValueError for what is no such module.
    """
    if b"convolution" not in module:
        return module
    ir = importlib.import_module("jaxlib.mlir.ir")
    passes = importlib.import_module("jaxlib.mlir.passmanager").PassManager
    with _context(ir), ir.Location.unknown():
        try:
            parsed = _parsed(ir, module)
            inline_calls(ir, parsed)
            passes.parse(_PROPAGATION).run(parsed.operation)
        except ir.MLIRError as error:
            raise ValueError(str(error)) from error
        for op in _operations(_main(parsed)):
            _keep_windows_whole(ir, parsed, op, "sdy.sharding_constraint")
        written = io.BytesIO()
        parsed.operation.write_bytecode(written)
        return written.getvalue()


def _parsed(ir: Any, module: bytes) -> Any:
    """The module of text, bytecode or a portable artifact."""
    if _ARTIFACT in module[:_HEAD_BYTES]:
        mlir = importlib.import_module("jaxlib._jax").mlir
        return mlir.deserialize_portable_artifact(module)
    return ir.Module.parse(module)


def device_counts(module: Any) -> tuple[int, int]:
    """How many replicas and partitions an MLIR module is for: as it says, or as its meshes have."""
    attributes = module.attributes
    replicas, partitions = (
        int(attributes[name].value) if name in attributes else 1
        for name in ("mhlo.num_replicas", "mhlo.num_partitions")
    )
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "sdy.mesh":
            axes = _AXIS_SIZE.findall(str(op.operation.attributes["mesh"]))
            partitions = max(partitions, math.prod(map(int, axes)))
    return replicas, partitions


def _boundary(ir: Any, module: Any) -> Divisions | None:
    """How parameters and results of `main` are divided.

    None where one of them is divided by a part of an axis, is a part of a sum, or on one device.
    """
    meshes = _meshes(module)
    main = _main(module)
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    try:
        parameters = _divisions(ir, main, "arg_attrs", kind.inputs, meshes)
        results = _divisions(ir, main, "res_attrs", kind.results, meshes)
    except _NotDescribed:
        return None
    return parameters, results


def _meshes(module: Any) -> dict[str, Any]:
    """The meshes of a module by name."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    return {
        op.attributes["sym_name"].value: sdy.MeshAttr(op.attributes["mesh"])
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
    }


class _NotDescribed(Exception):
    """A sharding that is not a Division."""


def _divisions(
    ir: Any, function: Any, attributes: str, types: Any, meshes: dict[str, Any]
) -> list[Division]:
    """The divisions of a function's parameters or results, in order."""
    if attributes not in function.attributes:
        return [_WHOLE for _ in types]
    found = []
    for each in ir.ArrayAttr(function.attributes[attributes]):
        named = ir.DictAttr(each)
        found.append(_division(ir, named[_SHARDING], meshes) if _SHARDING in named else _WHOLE)
    return found


def _division(ir: Any, attribute: Any, meshes: dict[str, Any]) -> Division:
    """What a sharding of Shardy says; _NotDescribed."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    sharding = sdy.TensorShardingAttr(attribute)
    mesh = _mesh_of(ir, meshes, sharding)
    sizes = {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, mesh.axes)}
    by_dimension = []
    for dimension in map(sdy.DimensionShardingAttr, sharding.dimension_shardings):
        axes = [sdy.AxisRefAttr(axis) for axis in dimension.axes]
        if any(axis.sub_axis_info for axis in axes):
            raise _NotDescribed
        by_dimension.append([axis.name for axis in axes])
    if not sizes or sharding.unreduced_axes:
        raise _NotDescribed
    return sizes, by_dimension, list(mesh.device_ids)


def _context(ir: Any) -> Any:
    """A context with the dialects of a framework's program."""
    context = ir.Context()
    registry = ir.DialectRegistry()
    importlib.import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for name, register in (
        ("sdy", "register_dialect"),
        ("mhlo", "register_mhlo_dialect"),
        ("chlo", "register_dialect"),
        ("stablehlo", "register_dialect"),
    ):
        getattr(importlib.import_module(f"jaxlib.mlir.dialects.{name}"), register)(context)
    return context


def _divide(ir: Any, module: Any) -> Divisions | None:
    """Make a module with shardings the program of one device; how its boundary is divided."""
    inline_calls(ir, module)
    passes = importlib.import_module("jaxlib.mlir.passmanager").PassManager
    try:
        declared = [_unreduced_axes(ir, each) for each in _parameters(module)]
        passes.parse(_PROPAGATION).run(module.operation)
        _compute_whole(ir, module)
        _refuse_positions(ir, module)
        _reduce_in_two_steps(ir, module)
        _make_parts(ir, module, declared)
        divisions = _boundary(ir, module)
        passes.parse(_LOCALIZATION).run(module.operation)
    except ir.MLIRError as error:
        raise ValueError(f"it cannot be divided among devices: {error}") from error
    return divisions


def _refuse_positions(ir: Any, module: Any) -> None:
    """Raise ValueError for an operation between neighbours along a divided dimension.

    jaxlib's last pass makes such operations local without an exchange, which gives other values:
    each device reverses, or updates, its own part.
    """
    for op in _operations(_main(module)):
        positions = _POSITIONS.get(op.name)
        found = positions(ir, op) & _divided_inside(ir, op.operands[0]) if positions else set()
        if found:
            raise ValueError(f"{op.name} along dimension {min(found)}, which is divided")


def _compute_whole(ir: Any, module: Any) -> None:
    """Have every device compute all of what jaxlib's last pass does not divide rightly.

    Programs of kernels are for whole shapes, and nothing is known of what other custom calls do.
    """
    for op in _operations(_main(module)):
        if op.name != "stablehlo.custom_call":
            _keep_windows_whole(ir, module, op, "sdy.reshard")
        elif op.attributes["call_target_name"].value not in _SHARDING_CALLS:
            _undivide(ir, module, op, "sdy.reshard")


def _keep_windows_whole(ir: Any, module: Any, op: Any, change: str) -> None:
    """Divide a convolution along batches and channels only.

    jaxlib's last pass exchanges no borders of windows, and XLA's partitioner gives other values
    where their kernel is divided too. `change` is the operation that divides a value otherwise.
    """
    if op.name != "stablehlo.convolution":
        return
    image, kernel, result = (_spatial(op, place) for place in range(3))
    divided = [_divided_inside(ir, value) for value in op.operands]
    if divided[0] & image or divided[1] & kernel:
        _undivide(ir, module, op, change, [image, kernel], [result])


def _undivide(
    ir: Any,
    module: Any,
    op: Any,
    change: str,
    operands: list[set[int]] | None = None,
    results: list[set[int]] | None = None,
) -> None:
    """Give an operation operands that are whole along some dimensions, or all; results likewise."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    shardings = [_sharding_inside(ir, value) for value in op.operands]
    for place, (value, sharding) in enumerate(zip(op.operands, shardings, strict=True)):
        dimensions = operands[place] if operands else None
        if _part_counts(ir, module, sharding):
            whole = _whole_along(sdy, sharding, dimensions)
            with ir.InsertionPoint(op), op.location:
                op.operands[place] = ir.Operation.create(
                    change, [value.type], [value], {"sharding": whole}
                ).result
    if _SHARDING in op.attributes:
        listed = sdy.TensorShardingPerValueAttr(op.attributes[_SHARDING]).shardings
        found = [
            _whole_along(sdy, sdy.TensorShardingAttr(each), results[place] if results else None)
            for place, each in enumerate(listed)
        ]
        op.attributes[_SHARDING] = sdy.TensorShardingPerValueAttr.get(found)


def _whole_along(sdy: Any, sharding: Any, dimensions: set[int] | None) -> Any:
    """A sharding by which every device has all of a value along some dimensions, or all."""
    whole = sdy.DimensionShardingAttr.get([], is_closed=True)
    found = [
        whole if dimensions is None or d in dimensions else each
        for d, each in enumerate(sharding.dimension_shardings)
    ]
    return sdy.TensorShardingAttr.get(sharding.mesh_or_ref, found, [], [])


def _reduce_in_two_steps(ir: Any, module: Any) -> None:
    """Have each device reduce its part, then all of them what all parts come to.

    jaxlib's last pass adds what devices have, whatever the reduction: a maximum would become a sum
    of maxima. A sum of one tensor is left to it. Raises ValueError for other operations that
    combine elements along a divided dimension, and for uneven parts.
    """
    for op in _operations(_main(module)):
        if op.name == "stablehlo.scatter" and not _is_sum(op) and _scattered(ir, op):
            raise ValueError(f"{op.name} of divided updates that are not summed")
        if op.name != "stablehlo.reduce" or _is_sum(op):
            continue
        sharding = _sharding_inside(ir, op.operands[0])
        reduced = _integers(op, "dimensions")
        parts = {d: n for d, n in _part_counts(ir, module, sharding).items() if d in reduced}
        if parts:
            _split_reduction(ir, op, sharding, parts)


def _split_reduction(ir: Any, op: Any, sharding: Any, parts: dict[int, int]) -> None:
    """Reduce along what is left of dimensions in so many parts; the parts after a reshard."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    count = len(op.results)
    whole = sdy.DimensionShardingAttr.get([], is_closed=True)
    reduced = _integers(op, "dimensions")
    shape = ir.RankedTensorType(op.operands[0].type).shape
    # Of the operand with its parts apart: extents, how they are divided, places of what is reduced
    extents, divided, inner, among = list[int](), list[Any](), list[int](), list[int]()
    for d, (extent, by) in enumerate(zip(shape, sharding.dimension_shardings, strict=True)):
        if extent % parts.get(d, 1):
            raise ValueError(f"{op.name} along dimension {d} of {extent} in {parts[d]} parts")
        if d in parts:
            among.append(len(extents) - len(inner))
            extents.append(parts[d])
            divided.append(by)
        if d in reduced:
            inner.append(len(extents))
        extents.append(extent // parts.get(d, 1))
        divided.append(whole if d in parts else by)

    def sharded(dimensions: list[Any]) -> Any:
        return sdy.TensorShardingAttr.get(
            sharding.mesh_or_ref, dimensions, sharding.replicated_axes, sharding.unreduced_axes
        )

    left = [i for i in range(len(extents)) if i not in inner]
    kept = [whole if place in among else divided[i] for place, i in enumerate(left)]
    with ir.InsertionPoint(op), op.location:
        apart = [
            _create_operation(ir, "stablehlo.reshape", [x], [extents], [sharded(divided)])[0]
            for x in op.operands[:count]
        ]
        starts = list(op.operands[count:])
        shapes = [[extents[i] for i in left] for _ in apart]
        own = sharded([divided[i] for i in left])
        partial = _create_operation(
            ir, op.name, [*apart, *starts], shapes, [own] * count,
            {"dimensions": ir.DenseI64ArrayAttr.get(inner)}, op.operation.clone(),
        )  # fmt: skip
        known = [
            ir.Operation.create("sdy.reshard", [x.type], [x], {"sharding": sharded(kept)}).result
            for x in partial
        ]
        shapes = [ir.RankedTensorType(x.type).shape for x in op.results]
        shardings = list[Any]()  # a result that is whole on every device says nothing
        if _SHARDING in op.attributes:
            shardings += sdy.TensorShardingPerValueAttr(op.attributes[_SHARDING]).shardings
        results = _create_operation(
            ir, op.name, [*known, *starts], shapes, shardings,
            {"dimensions": ir.DenseI64ArrayAttr.get(among)}, op.operation.clone(),
        )  # fmt: skip
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _create_operation(
    ir: Any,
    name: str,
    operands: list[Any],
    shapes: list[list[int]],
    shardings: list[Any],
    attributes: dict[str, Any] | None = None,
    region_of: Any = None,
) -> list[Any]:
    """Results, of the operands' element types, of a new operation with another one's region."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    types = [
        ir.RankedTensorType.get(shape, ir.RankedTensorType(x.type).element_type)
        for shape, x in zip(shapes, operands, strict=False)
    ]
    given = dict(attributes or {})
    if shardings:
        given[_SHARDING] = sdy.TensorShardingPerValueAttr.get(shardings)
    new = ir.Operation.create(name, types, operands, given, regions=1 if region_of else 0)
    if region_of is not None:
        region_of.regions[0].blocks[0].append_to(new.regions[0])
        region_of.erase()
    return list(new.results)


def _is_sum(op: Any) -> bool:
    """Whether an operation's region adds each of its values to that which it combines with it."""
    block = op.regions[0].blocks[0]
    *inside, last = [each.operation for each in block.operations]
    values = list(block.arguments)
    count = len(values) // 2
    made = [value.owner for value in last.operands]
    return len(inside) == count and all(
        getattr(each, "name", "") == "stablehlo.add" and {*each.operands} == {one, other}
        for each, one, other in zip(made, values[:count], values[count:], strict=True)
    )


def _scattered(ir: Any, op: Any) -> set[int]:
    """The divided dimensions of a scatter's updates that are not those of windows."""
    found = re.search(
        r"update_window_dims = \[([\d, ]*)\]", str(op.attributes[_SCATTER_DIMENSIONS])
    )
    windows = {int(each) for each in found[1].split(",") if each.strip()} if found else set()
    updates = op.operands[len(op.results) + 1]
    return _divided_inside(ir, updates) - windows


def _divided_inside(ir: Any, value: Any) -> set[int]:
    """The dimensions along which a value is divided, in a loop's body too."""
    sharding = _sharding_inside(ir, value)
    if sharding is None:
        return set()
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    dimensions = map(sdy.DimensionShardingAttr, sharding.dimension_shardings)
    return {d for d, each in enumerate(dimensions) if len(each.axes)}


def _part_counts(ir: Any, module: Any, sharding: Any) -> dict[int, int]:
    """How many parts each divided dimension has."""
    if sharding is None:
        return {}
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    axes = map(sdy.MeshAxisAttr, _mesh_of(ir, _meshes(module), sharding).axes)
    sizes = {axis.name: axis.size for axis in axes}

    counts = []
    for each in map(sdy.DimensionShardingAttr, sharding.dimension_shardings):
        counts.append(1)
        for axis in map(sdy.AxisRefAttr, each.axes):
            part = axis.sub_axis_info
            counts[-1] *= sdy.SubAxisInfoAttr(part).size if part else sizes[axis.name]
    return {d: count for d, count in enumerate(counts) if count > 1}


def _sharding_inside(ir: Any, value: Any) -> Any:
    """How a value is divided, that of a loop's body too; None where nothing says it."""
    if not isinstance(value, ir.BlockArgument):
        return _sharding_of(ir, value)
    around, place = value.owner.owner.operation, value.arg_number
    if around.name == "func.func":
        return _sharding_of(ir, value)
    if around.name == "stablehlo.while":
        return _sharding_of(ir, around.results[place])
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    if around.name != "sdy.manual_computation":
        return None
    listed = sdy.TensorShardingPerValueAttr(around.attributes["in_shardings"]).shardings
    given = sdy.TensorShardingAttr(listed[place])
    manual = {*sdy.ManualAxesAttr(around.attributes["manual_axes"])}
    dimensions = [
        sdy.DimensionShardingAttr.get(
            [axis for axis in each.axes if sdy.AxisRefAttr(axis).name not in manual], each.is_closed
        )
        for each in map(sdy.DimensionShardingAttr, given.dimension_shardings)
    ]
    return sdy.TensorShardingAttr.get(
        given.mesh_or_ref, dimensions, given.replicated_axes, given.unreduced_axes
    )


def _make_parts(ir: Any, module: Any, declared: list[set[str]]) -> None:
    """Have one device keep what shall be parts of a sum, and is whole where it comes from.

    jaxlib moves `unreduced`, by which a value is the sum of what devices have, from the value to
    what makes it, and its last pass gives every device the whole of that: the sum would be a
    multiple of the value. `declared` are the axes that parameters had before. Raises ValueError for
    operations that sum, whose devices may have parts (at those jaxlib's last pass ends the
    process), and for what is in a loop or a branch.
    """
    for value, given in zip(_parameters(module), declared, strict=True):
        _keep_on_one_device(ir, module, value, _unreduced_axes(ir, value) - given)
    for op in _operations(_main(module)):
        if op.name.startswith("sdy.") and op.name != "sdy.constant":
            continue
        given = {axis for value in op.operands for axis in _unreduced_axes(ir, value)}
        for value in op.results:
            axes = _unreduced_axes(ir, value) - given
            if axes and (op.name in _SUMS or op.parent.name != "func.func"):
                raise ValueError(f"{op.name} in parts that are summed along the axis {min(axes)}")
            _keep_on_one_device(ir, module, value, axes)


# Operations whose results on each device are parts where a dimension that they sum is divided
_SUMS = {f"stablehlo.{name}" for name in ("convolution", "dot_general", "reduce", "reduce_window",
                                          "scatter", "select_and_scatter")}  # fmt: skip
_ONE_DEVICE = """func.func private @one_device(%x: {kind}) -> {kind} {{
  %0 = sdy.manual_computation(%x) in_shardings=[{whole}] out_shardings=[{parts}]
      manual_axes={{{names}}} (%local: {local}) {{
    %false = stablehlo.constant dense<false> : tensor<i1>
    %zero = stablehlo.convert %false : (tensor<i1>) -> tensor<{element}>
    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<{element}>) -> {local}
    %firsts = stablehlo.constant dense<{firsts}> : tensor<{count}xi1>
    %device = stablehlo.partition_id : tensor<ui32>
    %mine = stablehlo.dynamic_slice %firsts, %device, sizes = [1]
      : (tensor<{count}xi1>, tensor<ui32>) -> tensor<1xi1>
    %is_first = stablehlo.reshape %mine : (tensor<1xi1>) -> tensor<i1>
    %part = stablehlo.select %is_first, %local, %zeros : tensor<i1>, {local}
    sdy.return %part : {local}
  }} : ({kind}) -> {kind}
  return %0 : {kind}
}}"""


def _keep_on_one_device(ir: Any, module: Any, value: Any, axes: set[str]) -> None:
    """Make a value, for what reads it, zero on devices that are not the first along the axes."""
    if not axes:
        return
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    parts = _sharding_of(ir, value)
    left = [axis for axis in parts.unreduced_axes if sdy.AxisRefAttr(axis).name not in axes]
    whole = sdy.TensorShardingAttr.get(
        parts.mesh_or_ref, parts.dimension_shardings, parts.replicated_axes, left
    )
    _set_sharding(ir, value, whole)
    helper = ir.Module.parse(_one_device(ir, module, ir.RankedTensorType(value.type), whole, parts))
    inlined = importlib.import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").inlined_func_call
    if isinstance(value, ir.BlockArgument):
        place = ir.InsertionPoint.at_block_begin(value.owner)
    else:
        place = ir.InsertionPoint.after(value.owner)
    with place:
        (made,) = inlined(_functions(helper)["one_device"], [value], ir.Location.unknown())
    value.replace_all_uses_except(made, made.owner.operation)


def _one_device(ir: Any, module: Any, kind: Any, whole: Any, parts: Any) -> str:
    """A module's text, whose function makes a value with one sharding one with the other."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    mesh = _mesh_of(ir, _meshes(module), parts)
    sizes = {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, mesh.axes)}
    dimensions = map(sdy.DimensionShardingAttr, parts.dimension_shardings)
    divided = [[sizes[sdy.AxisRefAttr(axis).name] for axis in each.axes] for each in dimensions]
    shape = [n // math.prod(by) for n, by in zip(kind.shape, divided, strict=True)]
    axes = _names(sdy, parts.unreduced_axes) - _names(sdy, whole.unreduced_axes)
    firsts = _first_devices(sizes, list(mesh.device_ids), axes)
    function = _ONE_DEVICE.format(
        kind=kind,
        element=kind.element_type,
        local=ir.RankedTensorType.get(shape, kind.element_type),
        whole=str(whole).removeprefix("#sdy.sharding"),
        parts=str(parts).removeprefix("#sdy.sharding"),
        names=", ".join(f'"{name}"' for name in sizes),
        firsts=str(firsts).lower(),
        count=len(firsts),
    )
    meshes = [str(op) for op in module.body.operations if op.operation.name == "sdy.mesh"]
    return "\n".join([*meshes, function])


def _names(sdy: Any, axes: Any) -> set[str]:
    return {sdy.AxisRefAttr(axis).name for axis in axes}


def _first_devices(sizes: dict[str, int], devices: list[int], axes: set[str]) -> list[bool]:
    """For each device of a mesh, whether it is the first along all of the axes."""
    count = math.prod(sizes.values())
    found = [False] * count
    for place in range(count):
        is_first, rest = True, place
        for name, extent in reversed(sizes.items()):
            rest, coordinate = divmod(rest, extent)
            is_first &= name not in axes or coordinate == 0
        found[devices[place] if devices else place] = is_first
    return found


def _mesh_of(ir: Any, meshes: dict[str, Any], sharding: Any) -> Any:
    """The mesh that a sharding has or names."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    named = sharding.mesh_or_ref
    if not str(named).startswith("@"):
        return sdy.MeshAttr(named)
    return meshes[ir.FlatSymbolRefAttr(named).value]


def _unreduced_axes(ir: Any, value: Any) -> set[str]:
    """The axes of the mesh along which the devices' parts are summed to have a value."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    sharding = _sharding_of(ir, value)
    return _names(sdy, sharding.unreduced_axes) if sharding else set()


def _sharding_of(ir: Any, value: Any) -> Any:
    """How a value is divided; None where nothing says it."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    if isinstance(value, ir.BlockArgument):
        attributes = value.owner.owner.attributes
        if "arg_attrs" not in attributes:
            return None
        named = ir.DictAttr(attributes["arg_attrs"][value.arg_number])
        return sdy.TensorShardingAttr(named[_SHARDING]) if _SHARDING in named else None
    attributes = value.owner.attributes
    for name in (_SHARDING, "out_shardings"):
        if name in attributes:
            listed = sdy.TensorShardingPerValueAttr(attributes[name]).shardings
            return sdy.TensorShardingAttr(listed[value.result_number])
    for name in ("sharding", "out_sharding"):
        if name in attributes:
            return sdy.TensorShardingAttr(attributes[name])
    return None


def _set_sharding(ir: Any, value: Any, sharding: Any) -> None:
    """Say how a parameter, or a result of an operation that says it already, is divided."""
    sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
    if isinstance(value, ir.BlockArgument):
        attributes = value.owner.owner.attributes
        listed = list(attributes["arg_attrs"])
        named = {each.name: each.attr for each in ir.DictAttr(listed[value.arg_number])}
        listed[value.arg_number] = ir.DictAttr.get(named | {_SHARDING: sharding})
        attributes["arg_attrs"] = ir.ArrayAttr.get(listed)
        return
    attributes = value.owner.attributes
    of_results = list(sdy.TensorShardingPerValueAttr(attributes[_SHARDING]).shardings)
    of_results[value.result_number] = sharding
    attributes[_SHARDING] = sdy.TensorShardingPerValueAttr.get(of_results)


def _parameters(module: Any) -> list[Any]:
    return list(_main(module).regions[0].blocks[0].arguments)


def _integers(op: Any, name: str) -> list[int]:
    """The integers of an attribute that is an array; none where there is no such attribute."""
    text = str(op.attributes[name]) if name in op.attributes else ""
    return [int(each) for each in text.partition(":")[2].rstrip(">").split(",") if each.strip()]


def _windowed(ir: Any, op: Any) -> set[int]:
    return {i for i, extent in enumerate(_integers(op, "window_dimensions")) if extent > 1}


def _indexed(ir: Any, op: Any) -> set[int]:
    found = re.search(r"start_index_map = \[([\d, ]*)\]", str(op.attributes["dimension_numbers"]))
    return {int(each) for each in found[1].split(",") if each.strip()} if found else set()


def _updated(ir: Any, op: Any) -> set[int]:
    whole, part = (ir.RankedTensorType(op.operands[i].type).shape for i in (0, 1))
    return {i for i, (n, m) in enumerate(zip(whole, part, strict=True)) if n != m}


def _spatial(op: Any, place: int) -> set[int]:
    """The dimensions along which windows lie: of a convolution's image, kernel or result."""
    found = re.findall(r"\[([^\]]*)\]", str(op.attributes["dimension_numbers"]))
    names = found[place].split(",") if place < len(found) else []
    return {i for i, name in enumerate(names) if name.strip().isdigit()}


# The dimensions of the first operand along which elements depend on their neighbours' places
_POSITIONS = {
    "stablehlo.reverse": lambda ir, op: set(_integers(op, "dimensions")),
    "stablehlo.dynamic_update_slice": _updated,
    "stablehlo.gather": _indexed,
    "stablehlo.reduce_window": _windowed,
    "stablehlo.select_and_scatter": _windowed,
}


def _main(module: Any) -> Any:
    """The function `main`."""
    return _functions(module)["main"]


def _functions(module: Any) -> dict[str, Any]:
    """The functions of a module by name."""
    return {
        op.attributes["sym_name"].value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def _separate_exchanges(ir: Any, module: Any) -> bool:
    """Make an all_to_all of several tensors one of each, as HLO has none; whether there was one."""
    found = [
        op
        for op in _operations(module.operation)
        if op.name == "stablehlo.all_to_all" and len(op.operands) > 1
    ]
    for op in found:
        attributes = {name: op.attributes[name] for name in op.attributes}
        for operand, result in zip(op.operands, op.results, strict=True):
            with ir.InsertionPoint(op), op.location:
                new = ir.Operation.create(op.name, [result.type], [operand], attributes)
            result.replace_all_uses_with(new.results[0])
        op.erase()
    return bool(found)


def inline_calls(ir: Any, module: Any) -> None:
    """Inline every call in `main`, those in regions too: Shardy divides functions one by one."""
    inlined = importlib.import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").inlined_func_call
    functions = _functions(module)
    for _ in range(_DEEPEST_CALLS):
        calls = [op for op in _operations(functions["main"]) if op.name == "func.call"]
        if not calls:
            break
        for call in calls:
            callee = functions[call.attributes["callee"].value]
            with ir.InsertionPoint(call):
                results = inlined(callee, list(call.operands), call.location)
            for old, new in zip(call.results, results, strict=True):
                old.replace_all_uses_with(new)
            call.erase()
    else:
        raise ValueError(f"its functions call each other more than {_DEEPEST_CALLS} deep")


def _operations(root: Any) -> list[Any]:
    """The operations in the regions of one, at any depth."""
    found, waiting = [], [root]
    while waiting:
        for region in waiting.pop().regions:
            for block in region.blocks:
                inside = [op.operation for op in block.operations]
                found += inside
                waiting += inside
    return found

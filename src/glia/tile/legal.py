"""The verifier of the tile level: the rules of every program between two passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from glia.base.affine import Affine
from glia.base.dtype import F32, PRED, S32, TF32
from glia.base.errors import InternalError
from glia.graph.ops.scalar_regions import MONOIDS
from glia.graph.scalar import FUNCTIONS
from glia.tile.group_legal import why_illegal
from glia.tile.ir import (
    EXCHANGES,
    PLACES,
    SCANS,
    Accumulator,
    Apply,
    Buffer,
    Dynamic,
    Exchange,
    Expr,
    Group,
    Guard,
    Index,
    Load,
    Nest,
    Program,
    Reduction,
    Scan,
    Statement,
    Store,
    While,
    WholeBuffers,
)
from glia.tile.text import print_nest

SPECIAL = ("convert", "bitcast", "reduce_precision")


def verify(program: Program) -> None:
    """Raise InternalError, with the nest's text, for the first rule that does not hold.

    Accesses stay inside their buffers for every point where their guards hold and every value that
    run-time offsets may take; loads have their buffer's dtype; nothing is read before it is
    written; names are unique; groups are legal and share no nest; a store without `combine` writes
    no element twice, where the index alone decides that.
    """
    for bound in (*program.inputs, *program.outputs):
        _require(bound in program.buffers, f"buffer {bound} is not declared")
    for name, buffer in program.buffers.items():
        _require(buffer.name == name, f"buffer {buffer.name} is entered as {name}")
        _require(min(buffer.shape, default=0) >= 0, f"buffer {name} has a negative extent")
        has_value = name in program.constants
        _require(has_value == (buffer.role == "constant"), f"{name}: only constants have values")
    seen: set[str] = set()
    for nest in program.nests():
        _require(nest.name not in seen, f"two nests are called {nest.name}")
        seen.add(nest.name)
    written = {*program.inputs, *program.constants, *dict(program.aliases)}
    written |= {name for name, buffer in program.buffers.items() if buffer.elements == 0}
    _verify_block(program, program.body, written)
    _verify_groups(program)
    missing = set(program.outputs) - written
    _require(not missing, f"nothing writes the outputs {sorted(missing)}")


def _verify_groups(program: Program) -> None:
    nests = {nest.name for nest in program.nests()}
    grouped: set[str] = set()
    known: dict[str, Group] = {}
    for group in program.groups:
        names = {member.nest for _, member in group.members()}
        _require(bool(names) and names <= nests, f"group {group.name} names a nest that is missing")
        _require(not names & grouped, f"a nest of group {group.name} is in another group")
        grouped |= names
        _require(known.setdefault(group.name, group) is group, f"two groups are named {group.name}")
        reason = why_illegal(group, program)
        _require(not reason, f"group {group.name} is illegal: {reason}")


def _require(holds: bool, message: str, nest: Nest | None = None) -> None:
    if not holds:
        raise InternalError(message + (f" in\n{print_nest(nest)}" if nest else ""))


def _verify_block(program: Program, body: Sequence[Statement], written: set[str]) -> None:
    """Verify statements; `written` grows by the buffers they write."""
    for statement in body:
        if isinstance(statement, Nest):
            _verify_nest(program, statement, written)
            written.add(statement.target.buffer)
        elif isinstance(statement, While):
            _verify_block(program, statement.condition, written)
            _require(statement.predicate in written, f"{statement.name}: predicate is not written")
            predicate = program.buffers[statement.predicate]
            is_pred = predicate.dtype is PRED and predicate.elements == 1
            _require(is_pred, f"{statement.name}: {predicate.name} is not a pred scalar")
            is_run = statement.iterations > 0
            _verify_block(program, statement.body, written if is_run else set(written))
        elif isinstance(statement, WholeBuffers):
            unwritten = set(statement.inputs) - written
            _require(not unwritten, f"{statement.name}: {sorted(unwritten)} are not written")
            for name in statement.outputs:
                role = program.buffers[name].role
                _require(
                    role not in ("input", "constant"), f"{statement.name}: {name} is read-only"
                )
            written.update(statement.outputs)
            if isinstance(statement, Exchange):
                _verify_exchange(program, statement)
        else:
            _require(statement.selector in written, f"{statement.name}: selector is not written")
            after = []
            for arm in statement.arms:
                after.append(set(written))
                _verify_block(program, arm, after[-1])
            written |= set.intersection(*after)


def _verify_exchange(program: Program, exchange: Exchange) -> None:
    """As many elements go out as come in, in equal groups; those of a gather times the group."""
    _require(exchange.kind in EXCHANGES, f"{exchange.name}: no exchange is a {exchange.kind}")
    if exchange.kind in ("rank-id", "barrier"):
        return
    sizes = {len(group) for group in exchange.groups}
    _require(len(sizes) == 1, f"{exchange.name}: groups of {sorted(sizes)}")
    count = sizes.pop()
    factors = {"all-gather": (count, 1), "reduce-scatter": (1, count)}
    more, less = factors.get(exchange.kind, (1, 1))
    for given, made in zip(exchange.inputs, exchange.outputs, strict=True):
        source, target = program.buffers[given], program.buffers[made]
        fits = source.dtype is target.dtype and source.elements * more == target.elements * less
        _require(fits, f"{exchange.name}: {source} cannot give {target}")


def _verify_nest(program: Program, nest: Nest, written: set[str]) -> None:
    names = [axis.name for axis in nest.axes]
    _require(len(set(names)) == len(names), "two axes have one name", nest)
    _require(all(axis.extent > 0 for axis in nest.axes), "an axis is empty", nest)
    if nest.reduction is not None:
        _verify_reduction(nest, nest.reduction)
    _require(nest.finish is None or nest.reduction is not None, "finish without reduction", nest)
    parallel = {axis.name: axis.extent for axis in nest.parallel_axes}
    rank = nest.reduction.rank if nest.reduction else ""
    in_body = {name: extent for name, extent in nest.extents.items() if name != rank}
    _verify_expression(program, nest, nest.body, in_body, written)
    if nest.finish is not None:
        _verify_expression(program, nest, nest.finish, parallel, written)
    target = nest.target
    _require(target.buffer in program.buffers, "the target is not declared", nest)
    buffer = program.buffers[target.buffer]
    _require(buffer.role not in ("input", "constant"), "the target is read-only", nest)
    _verify_access(nest, buffer, target, (), parallel)
    for offset in target.dynamic:
        _verify_expression(program, nest, offset.load, parallel, written)
    if not target.combine and not target.dynamic:
        _require(_is_injective(target, parallel, buffer), "an element is written twice", nest)
    _require(nest.dtype is buffer.dtype, f"{nest.dtype} is stored to {buffer.dtype}", nest)


def _verify_expression(
    program: Program, nest: Nest, root: Expr, extents: Mapping[str, int], written: set[str]
) -> None:
    for expression in _parts(root):
        if isinstance(expression, Load):
            _require(expression.buffer in program.buffers, f"no buffer {expression.buffer}", nest)
            buffer = program.buffers[expression.buffer]
            _require(buffer.name in written, f"{buffer.name} is read before it is written", nest)
            is_rounded = expression.dtype is TF32 and buffer.dtype is F32
            is_typed = is_rounded or expression.dtype is buffer.dtype
            _require(is_typed, f"a load of {buffer.name} mistypes it", nest)
            _verify_access(nest, buffer, expression, expression.guards, extents)
        elif isinstance(expression, Index):
            known = set(expression.expression.variables) <= set(extents)
            _require(known, "an index names an axis it cannot", nest)
        elif isinstance(expression, Apply):
            _verify_apply(nest, expression)
        elif isinstance(expression, Accumulator):
            fits = nest.reduction is not None and expression.dtype is nest.reduction.dtype
            _require(fits and root is nest.finish, "an accumulator without its reduction", nest)


def _verify_reduction(nest: Nest, reduction: Reduction) -> None:
    _require(set(reduction.axes) <= set(nest.extents), "a reduced axis is missing", nest)
    if not reduction.rank:
        _require(reduction.function in MONOIDS, "the reduction is not a monoid", nest)
        return
    is_typed = (nest.body.dtype, reduction.dtype) == (F32, S32)
    _require(reduction.function == PLACES and is_typed, "no ranks are like this", nest)
    parallel = {axis.name for axis in nest.parallel_axes}
    _require(reduction.rank in parallel, "ranks are along no axis that stays", nest)
    _require(len(reduction.axes) == 1, "places are along one axis", nest)
    fits = nest.extents[reduction.rank] <= nest.extents[reduction.axes[0]]
    _require(fits, "there are more ranks than elements", nest)


def _verify_scan(nest: Nest, scan: Scan) -> None:
    _require(scan.function in SCANS and len(scan.args) == 2, "no scan is like this", nest)
    _require(scan.dtype is F32, "the state of a scan is float32", nest)
    parallel = {axis.name for axis in nest.parallel_axes}
    _require(scan.axis in parallel, "a scan runs along no axis that stays", nest)
    _require(nest.reduction is None and not nest.target.combine, "a scan is alone", nest)
    inner = (part for argument in scan.args for part in _parts(argument))
    _require(not any(isinstance(part, Scan) for part in inner), "a scan is in a scan", nest)


def _verify_apply(nest: Nest, expression: Apply) -> None:
    name = expression.function
    if isinstance(expression, Scan):
        _verify_scan(nest, expression)
        return
    if name in SPECIAL:
        count = 3 if name == "reduce_precision" else 1
        _require(len(expression.args) == count, f"{name} has {len(expression.args)} args", nest)
        return
    _require(name in FUNCTIONS, f"no scalar function is named {name}", nest)
    function = FUNCTIONS[name]
    _require(len(expression.args) == function.arity, f"{name} takes {function.arity} args", nest)
    if function.result == "pred":
        _require(expression.dtype is PRED, f"{name} gives pred", nest)


def _parts(expression: Expr) -> Iterator[Expr]:
    """Every sub-expression, the loads of run-time offsets included; each object once."""
    stack: list[Expr] = [expression]
    seen: set[int] = set()
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, Apply):
            stack.extend(part.args)
        elif isinstance(part, Load):
            stack.extend(offset.load for offset in part.dynamic)


def _verify_access(
    nest: Nest,
    buffer: Buffer,
    access: Load | Store,
    guards: Sequence[Guard],
    extents: Mapping[str, int],
) -> None:
    rank = len(buffer.shape)
    _require(len(access.index) == rank, f"{buffer.name} has rank {rank}", nest)
    reach = _reach(access.dynamic)
    for d, part in enumerate(access.index):
        known = set(part.variables) <= set(extents)
        _require(known, f"the index of {buffer.name} names an axis it cannot", nest)
        low, high = _guarded_bounds(part, guards, extents)
        inside = low > high or (low >= 0 and high + reach.get(d, 0) < buffer.shape[d])
        _require(inside, f"{part} leaves dimension {d} of {buffer.name}", nest)
    for guard in guards:
        is_index = guard.expression in access.index
        _require(is_index, f"no index of {buffer.name} is {guard.expression}, its guard's", nest)
    for offset in access.dynamic:
        _require(0 <= offset.dimension < rank, "an offset names no dimension", nest)
        _require(offset.load.dtype.is_integer, "an offset is not an integer", nest)
        drops = isinstance(access, Store) or offset.clamps
        _require(drops, f"a read of {buffer.name} must clamp its offset", nest)


def _reach(dynamic: Sequence[Dynamic]) -> dict[int, int]:
    """The greatest run-time offset of each dimension."""
    found: dict[int, int] = {}
    for offset in dynamic:
        found[offset.dimension] = found.get(offset.dimension, 0) + offset.limit
    return found


def _guarded_bounds(
    part: Affine, guards: Sequence[Guard], extents: Mapping[str, int]
) -> tuple[int, int]:
    """The bounds of an index where the guards hold."""
    low, high = part.bounds(extents)
    for guard in guards:
        if guard.expression == part:
            low, high = max(low, 0), min(high, guard.extent - 1)
    return low, high


def _is_injective(target: Store, extents: Mapping[str, int], buffer: Buffer) -> bool:
    """Whether different points write different elements, by the mixed-radix strides of axes."""
    coefficients: dict[str, int] = {}
    step = 1
    for part, extent in reversed(list(zip(target.index, buffer.shape, strict=True))):
        for axis, coefficient in part.terms:
            coefficients[axis] = coefficients.get(axis, 0) + coefficient * step
        step *= extent
    reach = 0
    for axis, coefficient in sorted(coefficients.items(), key=lambda term: abs(term[1])):
        if abs(coefficient) <= reach:
            return False
        reach += abs(coefficient) * (extents[axis] - 1)
    return set(coefficients) == set(extents)

"""Shrinking an HLO module while something stays true of it.

A candidate keeps some outputs, has parameters or operands in place of some instructions, or smaller
extents.
Instructions that nothing needs are dropped, and with them weights: constants of several elements
are the first to become parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from glia.base.errors import CompileError
from glia.frontend.hlo import import_hlo
from glia.frontend.hlo_import.hlo_proto import parse_module
from glia.triage.errors import NotReproduced

Keep = Callable[[bytes], bool]
SMALLEST_EXTENTS = (1, 2, 3)
MOST_ROUNDS = 8


@dataclass
class Shrinking:
    """The smallest module so far, and how many candidates were tried."""

    module: bytes
    instructions: int
    tried: int = 0
    kept: int = 0
    seen: set[bytes] = field(default_factory=set)


def reduce_module(
    data: bytes, keep: Keep, progress: Callable[[Shrinking], object] = lambda _: None
) -> Shrinking:
    """The smallest module found for which `keep` holds, as it does for the given one.

    `progress` is called with every smaller one. Raises NotReproduced where it does not hold of the
    module as it is, and NotAnHloModule for other bytes.
    """
    module = parse_module(data)
    if not keep(module.SerializeToString()):
        raise NotReproduced()
    reducer = _Reducer(keep, progress, module)
    for _ in range(MOST_ROUNDS):
        before = reducer.found.module
        for attempt in (
            _without_metadata, _without_weights, _single_outputs, _earlier_roots,
            _cut_instructions, _forward_operands, _smaller_extents,
        ):  # fmt: skip
            attempt(reducer)
        if reducer.found.module == before:
            break
    return reducer.found


class _Reducer:
    """The current module; `tries` replaces it by a candidate for which `keep` holds."""

    def __init__(self, keep: Keep, progress: Callable[[Shrinking], object], module: Any) -> None:
        self._keep, self._progress = keep, progress
        self.module = module
        self._must_import = _imports(module.SerializeToString())
        self.found = Shrinking(module.SerializeToString(), _count(module))

    def tries(self, candidate: Any) -> bool:
        """Whether a candidate, of which it drops what nothing needs, is smaller and kept."""
        _drop_dead(candidate)
        data = candidate.SerializeToString(deterministic=True)
        if data in self.found.seen or data == self.found.module:
            return False
        self.found.seen.add(data)
        if self._must_import and not _imports(data):
            return False
        self.found.tried += 1
        if not self._keep(data):
            return False
        self.module = candidate
        self.found.module, self.found.instructions = data, _count(candidate)
        self.found.kept += 1
        self._progress(self.found)
        return True

    def copy(self) -> Any:
        """A copy of the current module, to change."""
        copied = type(self.module)()
        copied.CopyFrom(self.module)
        return copied


def _imports(data: bytes) -> bool:
    """Whether a module is legal, as far as the importer tells."""
    with contextlib.suppress(Exception):  # the failure that is looked for may be the importer's
        try:
            import_hlo(data)
        except CompileError:
            return False
    return True


def _count(module: Any) -> int:
    return sum(len(each.instructions) for each in module.computations)


def _entry(module: Any) -> Any:
    """The entry computation, the last one where none is named."""
    for computation in module.computations:
        if computation.id == module.entry_computation_id:
            return computation
    return module.computations[-1]


def _without_metadata(reducer: _Reducer) -> None:
    """Source locations, names of inputs and outputs, and aliases."""
    candidate = reducer.copy()
    for name in ("stack_frames", "frontend_attributes", "aliases"):
        candidate.ClearField(name)
    for computation in candidate.computations:
        for instruction in computation.instructions:
            instruction.ClearField("metadata")
    reducer.tries(candidate)


def _without_weights(reducer: _Reducer) -> None:
    """Constants of several elements become parameters: all, else as many as may."""
    large = [
        each.id
        for each in _entry(reducer.module).instructions
        if each.opcode == "constant" and _elements(each.shape) > 1
    ]
    _replace_subsets(reducer, large)


def _single_outputs(reducer: _Reducer) -> None:
    """One element of a tuple that is returned, else half of them."""
    root = _root(_entry(reducer.module))
    if root.opcode != "tuple":
        return
    operands = list(root.operand_ids)
    for operand in dict.fromkeys(operands):
        candidate = reducer.copy()
        _entry(candidate).root_id = operand
        if reducer.tries(candidate):
            return
    for part in _chunks(operands, 2):
        candidate = reducer.copy()
        _set_tuple(
            _root(_entry(candidate)), _entry(candidate), [o for o in operands if o not in part]
        )
        if reducer.tries(candidate):
            _single_outputs(reducer)
            return


def _earlier_roots(reducer: _Reducer) -> None:
    """An instruction that the result needs in place of the result: those that need least first."""
    entry = _entry(reducer.module)
    needs = {each.id: len(_needed(entry, each.id)) for each in entry.instructions}
    roots = sorted((needs[i], i) for i in needs if needs[i] < needs[entry.root_id])
    step = max(1, len(roots) // 8)
    for place in (*range(0, len(roots), step), *range(len(roots))):
        candidate = reducer.copy()
        if place < len(roots):
            _entry(candidate).root_id = roots[place][1]
            if reducer.tries(candidate):
                _earlier_roots(reducer)
                return


def _cut_instructions(reducer: _Reducer) -> None:
    """Instructions become parameters, many at a time and then fewer."""
    entry = _entry(reducer.module)
    others = [
        each.id
        for each in entry.instructions
        if each.opcode not in ("parameter", "tuple") and each.id != entry.root_id
        and not each.shape.tuple_shapes and each.operand_ids
    ]  # fmt: skip
    _replace_subsets(reducer, others[::-1])


def _forward_operands(reducer: _Reducer) -> None:
    """An operand of an instruction's shape in its place, one instruction at a time."""
    for number in [each.id for each in _entry(reducer.module).instructions]:
        by_id = {each.id: each for each in _entry(reducer.module).instructions}
        if number not in by_id:
            continue
        alike = (i for i in by_id[number].operand_ids if by_id[i].shape == by_id[number].shape)
        for operand in dict.fromkeys(alike):
            candidate = reducer.copy()
            for each in _entry(candidate).instructions:
                each.operand_ids[:] = [operand if i == number else i for i in each.operand_ids]
            if reducer.tries(candidate):
                break


def _replace_subsets(reducer: _Reducer, ids: Sequence[int]) -> None:
    """Replace instructions by parameters: all of them, halves, quarters, down to single ones."""
    parts = 1
    left = list(ids)
    while left and parts <= 2 * len(left):
        for part in _chunks(left, parts):
            present = {each.id for each in _entry(reducer.module).instructions}
            chosen = [each for each in part if each in present]
            candidate = reducer.copy()
            _to_parameters(candidate, chosen)
            if chosen and reducer.tries(candidate):
                left = [each for each in left if each not in part]
        parts *= 2


def _smaller_extents(reducer: _Reducer) -> None:
    """Every extent of the module becomes a small one, alone and with its multiples."""
    extents = sorted({*_extents(reducer.module)}, reverse=True)
    for extent in extents:
        sizes = dict.fromkeys((*SMALLEST_EXTENTS, extent // 4, extent // 2))
        for smaller in (each for each in sizes if 0 < each < extent):
            scaled = {e: e // extent * smaller for e in extents if e % extent == 0}
            if any(_tries_extents(reducer, each) for each in ({extent: smaller}, scaled)):
                break


def _tries_extents(reducer: _Reducer, sizes: dict[int, int]) -> bool:
    candidate = reducer.copy()
    for computation in candidate.computations:
        shapes = [computation.program_shape.result, *computation.program_shape.parameters]
        for shape in shapes:
            _resize(shape, sizes)
        for each in computation.instructions:
            _resize(each.shape, sizes)
            for piece in each.slice_dimensions:
                piece.limit = sizes.get(piece.limit, piece.limit)
            each.dynamic_slice_sizes[:] = [sizes.get(n, n) for n in each.dynamic_slice_sizes]
            each.gather_slice_sizes[:] = [sizes.get(n, n) for n in each.gather_slice_sizes]
            for window in each.window.dimensions:
                window.size = sizes.get(window.size, window.size)
    return reducer.tries(candidate)


def _resize(shape: Any, sizes: dict[int, int]) -> None:
    shape.dimensions[:] = [sizes.get(extent, extent) for extent in shape.dimensions]
    for inner in shape.tuple_shapes:
        _resize(inner, sizes)


def _extents(module: Any) -> Iterator[int]:
    for computation in module.computations:
        for each in computation.instructions:
            yield from (extent for extent in each.shape.dimensions if extent > 1)


def _elements(shape: Any) -> int:
    count = 1
    for extent in shape.dimensions:
        count *= extent
    return count


def _chunks(items: Sequence[int], parts: int) -> Iterable[Sequence[int]]:
    size = max(1, -(-len(items) // parts))
    return [items[at : at + size] for at in range(0, len(items), size)]


def _root(computation: Any) -> Any:
    return next(each for each in computation.instructions if each.id == computation.root_id)


def _set_tuple(root: Any, computation: Any, operands: Sequence[int]) -> None:
    """Make a tuple of these operands."""
    by_id = {each.id: each for each in computation.instructions}
    root.operand_ids[:] = operands
    del root.shape.tuple_shapes[:]
    for each in operands:
        root.shape.tuple_shapes.add().CopyFrom(by_id[each].shape)


def _needed(computation: Any, root: int) -> set[int]:
    """The instructions that one needs, itself included."""
    by_id = {each.id: each for each in computation.instructions}
    needed, stack = set(), [root]
    while stack:
        each = stack.pop()
        if each not in needed and each in by_id:
            needed.add(each)
            stack += by_id[each].operand_ids
    return needed


def _to_parameters(module: Any, ids: Sequence[int]) -> None:
    """Replace instructions of the entry by parameters of their shapes."""
    for each in _entry(module).instructions:
        if each.id in ids:
            name, number, shape = each.name, each.id, each.shape
            fresh = type(each)(name=name, opcode="parameter", id=number, shape=shape)
            fresh.parameter_number = 1 << 20  # numbered again below
            each.CopyFrom(fresh)


def _drop_dead(module: Any) -> None:
    """Drop instructions and computations that nothing needs, and number parameters again."""
    entry = _entry(module)
    needed = _needed(entry, entry.root_id)
    kept = [each for each in entry.instructions if each.id in needed]
    parameters = [each for each in kept if each.opcode == "parameter"]
    parameters.sort(key=lambda each: each.parameter_number)
    for number, each in enumerate(parameters):
        each.parameter_number = number
    _keep_messages(entry.instructions, kept)
    shape = entry.program_shape
    del shape.parameters[:]
    del shape.parameter_names[:]
    for each in parameters:
        shape.parameters.add().CopyFrom(each.shape)
        shape.parameter_names.append(each.name)
    shape.result.CopyFrom(_root(entry).shape)
    module.host_program_shape.CopyFrom(shape)
    by_id = {each.id: each for each in module.computations}
    reached, stack = set(), [entry.id]
    while stack:
        number = stack.pop()
        if number not in reached and number in by_id:
            reached.add(number)
            for each in by_id[number].instructions:
                stack += each.called_computation_ids
    _keep_messages(module.computations, [c for c in module.computations if c.id in reached])


def _keep_messages(field_of: Any, kept: Sequence[Any]) -> None:
    """Leave these messages of a repeated field, in their order."""
    copies = []
    for each in kept:
        copied = type(each)()
        copied.CopyFrom(each)
        copies.append(copied)
    del field_of[:]
    field_of.extend(copies)

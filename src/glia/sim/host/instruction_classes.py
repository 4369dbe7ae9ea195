"""From a class of instructions to calls of machine code, by tracing its declared meaning once.

A class is everything that an instruction says but where its operands begin: its kind, engine,
attributes, and each operand's dtype, dimensions and pitch. Instructions of one class share the
trace; those whose loops differ in extents only share code as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.base.affine import Affine
from glia.base.dtype import PRED, DType, from_numpy
from glia.base.errors import Unspecified
from glia.isa.kit import Instr
from glia.isa.numerics import narrow, widen
from glia.isa.operand import Pattern
from glia.sim.host.classes.calls import HostCall, Lowered, OperandPlace, RowAccess, RowsCall
from glia.sim.host.classes.class_keys import ALL_RESULTS, Choices, Operands, has_variables
from glia.sim.host.classes.row_functions import NANOSECONDS, RowFunctionCode
from glia.sim.host.library import Code, host_library
from glia.sim.host.loop_nest import (
    Destination,
    LoopNest,
    Slot,
    build_nest,
    is_parallel,
    nest_nanoseconds,
    simplified,
)
from glia.sim.host.nest_code import nest_code
from glia.sim.host.packing import (
    FLOAT_BYTES,
    PackingCode,
    Side,
    are_paired,
    host_block,
    left_words,
    packing_parts,
)
from glia.sim.host.product_code import ProductCode, is_turned, scratch_bytes
from glia.sim.host.row_product_code import RowProductCode, row_scratch_bytes
from glia.sim.host.scalar_code import item_bytes
from glia.sim.host.threads.pool import SHARED_NANOSECONDS, lanes
from glia.sim.host.traced import (
    ArrayTerm,
    CastTerm,
    ConstantTerm,
    HeldArray,
    LoadTerm,
    NotTraceable,
    ProductTerm,
    RowFunctionTerm,
    Shape,
    TracedArray,
    TracedView,
    UfuncTerm,
    cast,
    parts_of,
    recorded_decisions,
    term_of,
    with_parts,
)
from glia.sim.memory import storage_dtype
from glia.sim.run import arrival_shape, fill_value, immediate_operand

PRODUCT_NANOSECONDS = 1 / 64  # of a multiplication and addition, in one thread
ROW_NANOSECONDS = 0.8  # of a multiplication in a product of one row: the other operand is read once
PACKING_NANOSECONDS = 0.3  # of an element that is packed
LEAST_OF_ROW = 8  # elements of a row; shorter rows are computed one by one
MOST_SHORT_ROWS = 256
NOT_UNDERSTOOD = (TypeError, ValueError, AttributeError, LookupError, OverflowError)
REGISTER = np.dtype(np.int64)  # of loop variables and registers
POISON = 0xFF  # of uninitialized memory, as `Policy` has it by default


def lower(
    instr: Instr, arch: Arch, operands: Operands, choices: Choices, is_staged: bool
) -> Lowered:
    """The calls of an instruction's class; NotTraceable or NotLowered where there are none.

    `is_staged` writes results by way of scratch, for operands that overlap others.
    """
    return _ClassLowering(instr, arch, operands, choices).lower(is_staged)


def lower_rows(
    instr: Instr, arch: Arch, operands: Operands, choices: Choices, far: frozenset[str]
) -> RowsCall | None:
    """The call of an instruction that computes row by row, or None for others.

    `far` are operands that are read from tensors larger than caches. NotTraceable as of `lower`.
    """
    return _ClassLowering(instr, arch, operands, choices).lower_rows(far)


def traced_writes(
    instr: Instr, arch: Arch, operands: Operands, choices: Choices = ALL_RESULTS
) -> tuple[list[tuple[Destination, ArrayTerm]], list[OperandPlace]]:
    """What an instruction's meaning writes where, and the operands that its terms number.

    To be called inside of `recorded_decisions`, which has what that depends on besides.
    """
    lowering = _ClassLowering(instr, arch, operands, choices)
    with np.errstate(all="ignore"):
        return lowering.traced_writes(), lowering.places


class _ClassLowering:
    def __init__(self, instr: Instr, arch: Arch, operands: Operands, choices: Choices) -> None:
        self.instr, self.arch, self.operands = instr, arch, operands
        self.sums, self.unread, self.large = choices.sums, choices.unread, choices.large
        self.places: list[OperandPlace] = []
        self.scratch = 0

    def lower(self, is_staged: bool) -> Lowered:
        with np.errstate(all="ignore"), recorded_decisions() as decisions:
            writes = self.traced_writes()
            decisions += self._index_decisions()
        if is_staged and any(store.rows for store, _ in writes):
            raise NotTraceable("rows are stored to an operand that overlaps others")
        calls, writes = self._row_function_calls(writes)
        if calls:
            calls += self._write_calls([[each] for each in writes], is_staged)
        elif len(writes) == 1 and _product_in(writes[0][1]) is not None:
            calls = self._product_calls(*writes[0], is_staged=is_staged)
        elif writes:
            calls = self._write_calls([writes], is_staged)
        for name, kept, access in self.instr.states_touched():
            if access == "forgets" and name not in self.unread:
                calls.append(self._forgetting_call(name, kept))
        guards = tuple(self._guard(term) for term in decisions)
        return Lowered(tuple(calls), self.scratch, guards)

    def _write_calls(
        self, groups: Sequence[Sequence[tuple[Destination, ArrayTerm]]], is_staged: bool
    ) -> list[HostCall]:
        """A nest for each group of writes; all by way of scratch where they are staged."""
        if not is_staged:
            return [self._nest_call(writes) for writes in groups]
        staged = [[(self._scratch_store(store), n) for store, n in writes] for writes in groups]
        calls = [self._nest_call(writes) for writes in staged]
        for writes, inside in zip(groups, staged, strict=True):
            for (store, _), (held, _) in zip(writes, inside, strict=True):
                calls.append(self._nest_call([(store, _load(held))]))
        return calls

    def _row_function_calls(
        self, writes: list[tuple[Destination, ArrayTerm]]
    ) -> tuple[list[HostCall], list[tuple[Destination, ArrayTerm]]]:
        """Calls of all functions of rows into scratch, and what is written with that loaded."""
        calls: list[HostCall] = []
        known: dict[ArrayTerm, ArrayTerm] = {}

        def loaded(term: ArrayTerm) -> ArrayTerm:
            if term not in known:
                known[term] = with_parts(term, loaded)
                if isinstance(term, RowFunctionTerm):
                    known[term] = self._row_function(known[term], calls)
            return known[term]

        return calls, [(store, loaded(node)) for store, node in writes]

    def _row_function(self, term: Any, calls: list[HostCall]) -> LoadTerm:
        """Add a call of a function to calls; what loads its result."""
        words, addresses, dtypes = list[int](), list[tuple[int, OperandPlace]](), list[str]()
        for argument in term.arguments:
            place, step = self._row_argument(argument, calls)
            addresses.append((len(words), place))
            words += [0, step, argument.shape[1]]
            dtypes.append(argument.dtype.name)
        result = self._scratch_store(Destination(0, term.shape, (), term.dtype))
        addresses.append((len(words), self.places[result.operand]))
        words += [0, result.steps[0], term.shape[1]]
        name, rows = term.meaning.__name__, term.shape[0]
        code = RowFunctionCode(name, tuple(dtypes), term.options)
        elements = rows * max(term.shape[1], term.arguments[0].shape[1])
        time = elements * NANOSECONDS.get(name, 1.0)
        calls.append(HostCall(code, tuple(words), tuple(addresses), rows, time))
        return _load(result)

    def _row_argument(self, term: ArrayTerm, calls: list[HostCall]) -> tuple[OperandPlace, int]:
        """Where an argument of a function of rows lies, its elements neighbours; and its step."""
        width = term.dtype.itemsize
        if isinstance(term, LoadTerm) and term.rows is None and term.steps[1] == width:
            if isinstance(term.operand, HeldArray):
                return OperandPlace("array", held=term.operand), term.steps[0]
            return self.places[term.operand], term.steps[0]
        inside = self._scratch_store(Destination(0, term.shape, (), term.dtype))
        calls.append(self._nest_call([(inside, term)]))
        return self.places[inside.operand], inside.steps[0]

    def lower_rows(self, far: frozenset[str]) -> RowsCall | None:
        with np.errstate(all="ignore"), recorded_decisions() as decisions:
            writes = self.traced_writes()
        if decisions or not writes or self.instr.index_checks() or has_variables(self.instr):
            return None
        nest = build_nest(writes)
        if not nest.outer or simplified(nest).transposes:
            return None
        nest = simplified(nest, keeps_first=True)
        elements = math.prod((*nest.outer[1:], *nest.inner))
        if elements < LEAST_OF_ROW and nest.outer[0] > MOST_SHORT_ROWS:
            return None
        call = self._call_of(nest)
        written = {number for number, _ in (*nest.stores, *nest.results)}
        accesses = tuple(
            _row_access(slot, nest, self._place_of_slot(slot), number in written)
            for number, slot in enumerate(nest.slots)
        )
        if not call.is_parallel:
            return None
        ahead = [
            number
            for number, (slot, access) in enumerate(zip(nest.slots, accesses, strict=True))
            if access.place.name in far and slot.steps[-1] == item_bytes(slot.dtype)
        ]
        call_ahead = self._call_of(nest, ahead) if ahead else None
        return RowsCall(call, accesses, call_ahead, tuple(accesses[n] for n in ahead))

    def _guard(self, decision: ArrayTerm) -> HostCall:
        place = self._place(OperandPlace("decision"))
        word = np.dtype(np.int64)
        store = Destination(place, decision.shape, (0,) * len(decision.shape), word)
        return self._nest_call([(store, CastTerm(decision.shape, word, decision))])

    def _forgetting_call(self, name: str, kept: Any) -> HostCall:
        """Fill a state that is no longer known with the bits of uninitialized memory."""
        store = self._state_store(name, kept)
        poison = np.full(store.dtype.itemsize, POISON, np.uint8).view(store.dtype)[0]
        return self._nest_call([(store, ConstantTerm((), store.dtype, poison))])

    def _place_of_slot(self, slot: Slot) -> OperandPlace:
        if isinstance(slot.operand, HeldArray):
            return OperandPlace("array", held=slot.operand)
        return self.places[slot.operand]

    def _place(self, place: OperandPlace) -> int:
        if place not in self.places:
            self.places.append(place)
        return self.places.index(place)

    def _scratch(self, count: int) -> OperandPlace:
        place = OperandPlace("scratch", number=self.scratch)
        self.scratch += -(-count // 64) * 64
        return place

    def _scratch_store(self, store: Destination) -> Destination:
        count = math.prod(store.shape) * store.dtype.itemsize
        steps = _row_major(store.shape, store.dtype.itemsize)
        return Destination(self._place(self._scratch(count)), store.shape, steps, store.dtype)

    def traced_writes(self) -> list[tuple[Destination, ArrayTerm]]:
        """What `compute` returns, or writes, for each operand and state that is written."""
        instr = self.instr
        if instr.arrives == "participants":
            raise NotTraceable("it meets other cores")
        if instr.arrives == "memory":
            return self._written_by_itself()
        given = self._operand_values() | self._attribute_values() | self._state_values()
        try:
            result = type(instr).compute(**given)
        except (Unspecified, *NOT_UNDERSTOOD) as problem:
            raise NotTraceable(str(problem)) from problem
        if instr.sets_register is not None:
            return self._register_writes(result)
        results = result if isinstance(result, tuple) else (result,)
        stores = list(self._stores())
        if not stores and result is None:
            return []
        return [
            (store, _stored(value, store, pattern))
            for (store, pattern), value in zip(stores, results, strict=True)
            if store is not None and value is not None
        ]

    def _register_writes(self, value: Any) -> list[tuple[Destination, ArrayTerm]]:
        """The register's value, and that it has one."""
        found = []
        is_traced = isinstance(value, TracedArray)
        new = cast(value.term, REGISTER) if is_traced else ConstantTerm((), REGISTER, value)
        for kind, term in (("register", new), ("is set", ConstantTerm((), REGISTER, 1))):
            found.append((Destination(self._place(OperandPlace(kind)), (), (), REGISTER), term))
        return found

    def _written_by_itself(self) -> list[tuple[Destination, ArrayTerm]]:
        """What a meaning writes that is given its operands as views of memory."""
        instr = self.instr
        views = {
            name: TracedView(self._load_term(name, pattern, 0))
            for name in instr.operand_declarations
            if name not in instr.hints and isinstance(pattern := getattr(instr, name), Pattern)
        }
        try:
            type(instr).compute(**views, **self._attribute_values())
        except (Unspecified, *NOT_UNDERSTOOD) as problem:
            raise NotTraceable(str(problem)) from problem
        found = []
        for view in views.values():
            for place, value in view.written:
                if value.dtype != place.dtype:
                    raise NotTraceable(f"{value.dtype} stored as {place.dtype}")
                own = slice(1 if place.rows else 0, None)  # rows are stored one after the other
                if _shares_bytes(place.shape[own], place.steps[own], place.dtype.itemsize):
                    raise NotTraceable("it writes elements that share bytes")
                assert isinstance(place.operand, int)
                store = Destination(
                    place.operand, place.shape, place.steps, place.dtype, place.rows
                )
                found.append((store, value))
        if not found:
            raise NotTraceable("it reads and writes memory by itself")
        return found

    def _index_decisions(self) -> list[ArrayTerm]:
        """Whether all indices are such as are not reported."""
        places = [
            (pattern, name, number)
            for name in self.instr.operand_declarations
            for number, pattern in enumerate(_patterns_of(getattr(self.instr, name)))
        ]
        found = []
        for check in self.instr.index_checks():
            name, number = next(
                (name, n) for pattern, name, n in places if pattern is check.indices
            )
            indices = TracedArray(self._load_term(name, check.indices, number)).astype(REGISTER)
            found.append(((indices >= 0) & (indices <= check.limit)).all().term)
        return found

    def _load_term(self, name: str, pattern: Pattern, number: int) -> LoadTerm:
        """The elements of an operand, as they are stored."""
        dtype = storage_dtype(pattern.dtype)
        if dtype.names:
            raise NotTraceable(f"{pattern.dtype} operands")
        place = self._place(OperandPlace("pattern", name, number))
        return LoadTerm(pattern.shape, dtype, place, self.operands.steps(name, pattern))

    def _operand_values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, declared in self.instr.operand_declarations.items():
            value = getattr(self.instr, name)
            if declared.is_several:
                each = [self._pattern_value(name, declared, p, i) for i, p in enumerate(value)]
                values[name] = tuple(each)
            elif isinstance(value, Pattern):
                if declared.access != "writes":
                    values[name] = self._pattern_value(name, declared, value, 0)
            elif declared.access != "writes":
                values[name] = self._number_value(name, value)
        return values

    def _pattern_value(self, name: str, declared: Any, pattern: Pattern, number: int) -> Any:
        instr = self.instr
        if instr.access(name) == "writes" or (self.sums is False and name in instr.read_when):
            return None
        array = TracedArray(self._load_term(name, pattern, number))
        shape = arrival_shape(instr, declared, pattern)
        is_exact = declared.is_raw or instr.is_exact or pattern.dtype.name == "f32"
        wide: Any = array if is_exact else widen(array)  # type: ignore[arg-type]
        return wide.reshape(shape)

    def _number_value(self, name: str, value: float | None) -> Any:
        number = immediate_operand(self.instr, value)
        if number is None:
            return None
        dtype = np.asarray(number).dtype
        if dtype.names:
            raise NotTraceable(f"{dtype} numbers")
        return TracedArray(LoadTerm((), dtype, self._place(OperandPlace("immediate", name)), ()))

    def _attribute_values(self) -> dict[str, Any]:
        instr = self.instr
        values: dict[str, Any] = {}
        for name, value in instr.attributes().items():
            if name in instr.hints:
                continue
            if name in instr.sums.values() and value is None:
                raise NotTraceable("sums that only a run tells apart")
            if isinstance(value, Affine):
                if name in instr.read_when.values() and self.sums is not None:
                    value = self.sums
                else:
                    value = self._expression(name, value)
            values[name] = value
        for name in instr.takes_capabilities:
            values[name] = getattr(self.arch.capabilities, name)
        return values

    def _expression(self, name: str, value: Affine) -> Any:
        """The value of an attribute: a number, or what records its loop variables and registers."""
        total: Any = value.constant
        for number, (_, factor) in enumerate(value.terms):
            place = self._place(OperandPlace("term", name, number))
            total = total + factor * TracedArray(LoadTerm((), REGISTER, place, ()))
        return total

    def _state_values(self) -> dict[str, Any]:
        values: dict[str, Any] = dict.fromkeys(self.instr.states)
        for name, kept, access in self.instr.states_touched():
            if access in ("reads", "updates"):
                store = self._state_store(name, kept)
                values[name] = TracedArray(
                    LoadTerm(store.shape, store.dtype, store.operand, store.steps)
                )
        return values

    def _state_store(self, name: str, kept: Any) -> Destination:
        lanes = self.arch.partitions
        if kept.lanes:
            lanes = getattr(self.instr, kept.lanes).partitions
        shape = (lanes, kept.state.words[self.instr.runs_on])
        dtype = kept.state.dtype.numpy
        place = self._place(OperandPlace("state", name))
        return Destination(place, shape, _row_major(shape, dtype.itemsize), dtype)

    def _stores(self) -> Iterator[tuple[Destination | None, Pattern | None]]:
        """Where each result goes, in the order in which `compute` returns them."""
        instr = self.instr
        for name, declared in instr.operand_declarations.items():
            value = getattr(instr, name)
            if declared.access == "reads":
                continue
            if declared.is_several:
                raise NotTraceable("several written operands")
            if not isinstance(value, Pattern) or name in self.unread:
                yield None, None
                continue
            dtype = storage_dtype(value.dtype)
            if dtype.names:
                raise NotTraceable(f"{value.dtype} operands")
            place = self._place(OperandPlace("pattern", name))
            yield Destination(place, value.shape, self.operands.steps(name, value), dtype), value
        for name, kept in instr.states.items():
            is_set = instr.state_access(name) in ("writes", "updates") and name not in self.unread
            yield (self._state_store(name, kept) if is_set else None), None

    def _nest_call(self, writes: Sequence[tuple[Destination, ArrayTerm]]) -> HostCall:
        return self._call_of(simplified(build_nest(writes)))

    def _call_of(self, nest: LoopNest, ahead: Sequence[int] = ()) -> HostCall:
        words = [*nest.outer, *nest.inner]
        addresses = []
        for slot in nest.slots:
            addresses.append((len(words), self._place_of_slot(slot)))
            words += [0, *slot.steps]
        parts = nest.outer[0] if nest.outer else 1
        large = [n for n, s in enumerate(nest.slots) if self._place_of_slot(s).name in self.large]
        words += [0] * len(ahead)
        words += [slot.rows[1] for slot in nest.slots if slot.rows]
        return HostCall(
            nest_code(nest, large, ahead), tuple(words), tuple(addresses), parts,
            nest_nanoseconds(nest), is_parallel=is_parallel(nest),
        )  # fmt: skip

    def _product_calls(
        self, store: Destination, node: ArrayTerm, *, is_staged: bool
    ) -> list[HostCall]:
        """A product straight into its destination, or through scratch and what follows it."""
        product = _product_in(node)
        assert product is not None
        m, n = product.shape
        sides = [self._side(product.left, turned=True), self._side(product.right, turned=False)]
        calls = [call for _, made in sides for call in made]
        target, sums = self._direct_target(store, node, product)
        (left, _), (right, _) = sides
        if is_staged and self._share_memory(store, left, right):
            target, sums = None, False
        shape = (m, n)
        if target is None:
            place, steps = self._place(self._scratch(4 * m * n)), (4 * n, 4)
        else:
            place, steps = target[0], target[1:]
        if is_turned(m, n):
            (left, right), shape = (right, left), (n, m)
            steps = (steps[1], steps[0])
        k = product.left.shape[1]
        calls += self._products(shape, k, (left, right), (place, *steps), sums=sums)
        if target is None:
            result = LoadTerm((m, n), product.dtype, place, (4 * n, 4))
            calls.append(self._nest_call([(store, _replaced(node, product, result))]))
        return calls

    def _products(
        self, shape: Shape, k: int, sides: tuple[Slot, Slot], target: Shape, *, sums: bool
    ) -> list[HostCall]:
        """The product of [k, m] and [k, n] into an operand with these steps of rows and columns.

        Where threads share it the left side is packed before, once for all of its parts.
        """
        (m, n), (left, right), (place, row, column) = shape, sides, target
        codes, nanoseconds = (_side_code(left), _side_code(right)), m * n * k * PRODUCT_NANOSECONDS
        code: Code
        if m == 1 and codes[1][1] != "none":
            code, own, calls = RowProductCode(left.dtype, codes[1]), row_scratch_bytes(n, k), []
            nanoseconds = k * n * ROW_NANOSECONDS
        else:
            is_packed = lanes() > 1 and nanoseconds >= SHARED_NANOSECONDS
            code, own = ProductCode(*codes, is_packed), scratch_bytes(m, k, is_packed=is_packed)
            is_paired = are_paired(*codes)
            calls = [self._packing_call(m, k, left, is_paired=is_paired)] if is_packed else []
        left_place = calls[0].addresses[0][1] if calls else self._place_of_slot(left)
        words = (m, n, k, int(sums), 0, own, 0, *left.steps, 0, *right.steps, 0, row, column)
        where = (
            (4, self._scratch(own * lanes())), (6, left_place), (9, self._place_of_slot(right)),
            (12, self.places[place]),
        )  # fmt: skip
        blocks = -(-n // host_block().width)
        return [*calls, HostCall(code, words, where, blocks, nanoseconds)]

    def _packing_call(self, m: int, k: int, left: Slot, *, is_paired: bool) -> HostCall:
        """Pack [k, m] into scratch."""
        target = self._scratch(FLOAT_BYTES * left_words(m, k))
        where = ((2, target), (3, self._place_of_slot(left)))
        code, time = PackingCode(_side_code(left), is_paired), m * k * PACKING_NANOSECONDS
        return HostCall(code, (k, m, 0, 0, *left.steps), where, packing_parts(m), time)

    def _share_memory(self, written: Destination, *read: Slot) -> bool:
        """Whether a written operand lies in a memory of those that are read."""
        places = [self.places[written.operand], *map(self._place_of_slot, read)]
        patterns = [getattr(self.instr, place.name, None) for place in places]
        memories = [getattr(each, "memory", None) for each in patterns]
        return memories[0] in memories[1:]

    def _side(self, node: ArrayTerm, *, turned: bool) -> tuple[Slot, list[HostCall]]:
        """An operand of a product, [k, columns], as steps; packed first where it is not affine."""
        shape = tuple(reversed(node.shape)) if turned else node.shape
        matrix = TracedArray(node).T.term if turned else node
        dtype = np.dtype(np.float32)
        inside = self._scratch_store(Destination(0, shape, (), dtype))
        nest = build_nest([(inside, matrix)])
        value = nest.stores[0][1]
        if value[0] == "cast" and value[3][0] == "load":
            value = value[3]
        extents = nest.outer
        if value[0] == "load" and len(extents) == sum(extent > 1 for extent in shape):
            slot = nest.slots[value[1]]
            steps = iter(slot.steps)
            found = tuple(next(steps) if extent > 1 else 0 for extent in shape)
            return Slot(slot.operand, slot.dtype, found), []
        return Slot(inside.operand, "float32", inside.steps), [self._nest_call([(inside, matrix)])]

    def _direct_target(
        self, store: Destination, node: ArrayTerm, product: ProductTerm
    ) -> tuple[tuple[int, int, int] | None, bool]:
        """(operand, steps of rows and columns) of a destination that holds sums as they are."""
        sums = False
        if node is not product:
            match node:
                case UfuncTerm(function="add", arguments=(LoadTerm() as before, last)) if (
                    last is product
                ):
                    same = (before.operand, before.steps) == (store.operand, store.steps)
                    sums = same and before.dtype == store.dtype
                case _:
                    pass
            if not sums:
                return None, False
        if store.dtype != np.float32:
            return None, False
        inside = LoadTerm(store.shape, store.dtype, store.operand, store.steps)
        flat = TracedArray(inside).reshape(product.shape).term
        nest = build_nest([(Destination(0, product.shape, (0, 0), store.dtype), flat)])
        slot = nest.slots[nest.stores[0][1][1]]
        if len(nest.outer) != sum(extent > 1 for extent in product.shape):
            return None, False
        steps = iter(slot.steps)
        rows, columns = (next(steps) if extent > 1 else 4 for extent in product.shape)
        is_near = columns == 4 or is_turned(*product.shape)
        return ((store.operand, rows, columns), sums) if is_near else (None, False)


def _stored(value: Any, store: Destination, pattern: Pattern | None) -> ArrayTerm:
    """A result in the dtype of where it goes, as the executor stores it."""
    if pattern is None:
        dtype = from_numpy(store.dtype)
    else:
        dtype = pattern.dtype
        if not isinstance(value, TracedArray | np.ndarray):
            value = np.asarray(fill_value(value, dtype), storage_dtype(dtype))
            return ConstantTerm((), value.dtype, value[()])
    if not isinstance(value, TracedArray):
        value = TracedArray(term_of(value))
    if pattern is not None and value.shape == () and value.dtype.kind in "iu":
        return _wrapped(value, dtype, store.dtype)
    narrowed: Any = narrow(value, dtype)
    node: ArrayTerm = narrowed.term
    if node.dtype == np.bool_ and store.dtype == np.uint8:
        node = CastTerm(node.shape, store.dtype, node)
    if node.dtype != store.dtype:
        raise NotTraceable(f"{node.dtype} stored as {store.dtype}")
    return node


def _wrapped(value: TracedArray, dtype: DType, stored: np.dtype[Any]) -> ArrayTerm:
    """One integer as it is stored: with the bits for which there is room; see `fill_value`."""
    return cast((value != 0).term if dtype is PRED else value.term, stored)


def _patterns_of(value: Any) -> list[Pattern]:
    several = value if isinstance(value, tuple) else (value,)
    return [each for each in several if isinstance(each, Pattern)]


def _shares_bytes(shape: Shape, steps: Shape, width: int) -> bool:
    """Whether elements of an array of these steps, in bytes, share some with each other."""
    span = width
    for step, extent in sorted((abs(step), n) for step, n in zip(steps, shape, strict=True)):
        if extent > 1 and step < span:
            return True
        span += step * (extent - 1)
    return False


def _load(store: Destination) -> LoadTerm:
    return LoadTerm(store.shape, store.dtype, store.operand, store.steps)


def _row_major(shape: Shape, width: int) -> Shape:
    return tuple(width * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _product_in(node: ArrayTerm) -> ProductTerm | None:
    """The one product that an expression has, or None."""
    if isinstance(node, ProductTerm):
        return node
    found = [each for part in parts_of(node) if (each := _product_in(part))]
    if len(set(map(id, found))) > 1:
        raise NotTraceable("several products")
    return found[0] if found else None


def _replaced(node: ArrayTerm, product: ProductTerm, result: ArrayTerm) -> ArrayTerm:
    """The expression with a product's result in its place."""
    if node is product:
        return result
    match node:
        case UfuncTerm(shape, dtype, function, arguments):
            parts = tuple(_replaced(each, product, result) for each in arguments)
            return UfuncTerm(shape, dtype, function, parts)
        case CastTerm(shape, dtype, argument):
            return CastTerm(shape, dtype, _replaced(argument, product, result))
    if _product_in(node) is not None:
        raise NotTraceable(f"{type(node).__name__} of a product")
    return node


def _row_access(slot: Slot, nest: LoopNest, place: OperandPlace, is_written: bool) -> RowAccess:
    """What an iteration of a nest's first loop accesses by a slot."""
    step, *inner_steps = slot.steps
    loops = list(zip(inner_steps, (*nest.outer[1:], *nest.inner), strict=True))
    width = item_bytes(slot.dtype)
    low = sum(each * (extent - 1) for each, extent in loops if each < 0)
    high = width + sum(each * (extent - 1) for each, extent in loops if each > 0)
    touched = width * math.prod(extent for each, extent in loops if each)
    return RowAccess(place, step, low, high, touched, is_written)


def _side_code(slot: Slot) -> Side:
    """The dtype of a side of a product, and which of its neighbours follow each other."""
    along_rows, along_columns = (step == item_bytes(slot.dtype) for step in reversed(slot.steps))
    return slot.dtype, "rows" if along_rows else "columns" if along_columns else "none"


def refusal(lowered: Lowered) -> str:
    """Why some of the calls have no machine code; "" where all have."""
    library = host_library()
    return next((found for call in lowered.all_calls if (found := library.refusal(call.code))), "")

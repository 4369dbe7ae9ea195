"""The reference executor: a machine program in program order, instruction by instruction.

Each instruction is compiled once to a step function (views, attributes, conversions bound), which
is called for every execution. The semantics are those of the instruction's `compute`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from glia.arch import Arch
from glia.base.affine import Affine
from glia.base.dtype import PRED, DType, from_numpy
from glia.base.errors import InternalError, Unspecified
from glia.isa.activation import ACTIVATIONS
from glia.isa.instructions.dma import OutOfBounds
from glia.isa.instructions.scalar import TableFunction
from glia.isa.kit import IndexCheck, Instr, Operand, register_variable
from glia.isa.numerics import bits_of, narrow, widen
from glia.isa.operand import Memory, Pattern
from glia.isa.rendezvous import Participant
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While, walk
from glia.machine.merge_cores import arch_of
from glia.machine.text import print_instruction
from glia.sim.engine_state import EngineStates
from glia.sim.float32_mode import apply_precision
from glia.sim.last_writer import InitializationTracker, WriterTable, touched_rows
from glia.sim.memory import (
    DeviceMemory,
    Environment,
    Memories,
    OutOfTile,
    elements_message,
    evaluator,
    oversized,
    storage_dtype,
)
from glia.sim.notifications import Notifications
from glia.sim.policy import (
    AccessOutOfBounds,
    ArgumentOutOfRange,
    ExecutionFault,
    MalformedProgram,
    Policy,
    UninitializedRead,
)
from glia.sim.psum_accumulation import AccumulationShadow
from glia.sim.psum_banks import bank_checks
from glia.sim.uses import UseLog
from glia.sim.watchdog import RunLimits, Watchdog, fewest_executions

Array = np.ndarray[Any, Any]
Step = Callable[[Environment], None]
Fetch = Callable[[Environment], Any]
Exchange = Callable[[Any, Participant], tuple[Any, ...]]  # (instruction, own operands) -> results


def run(
    program: Program,
    inputs: Mapping[str, Array],
    *,
    policy: Policy | None = None,
    states: EngineStates | None = None,
    notifications: Notifications | None = None,
    uses: UseLog | None = None,
) -> dict[str, Array]:
    """Run a program on named inputs and return its named outputs.

    `notifications` takes what the run reports without stopping, `uses` what became of results.
    `states` are the engine registers that persist between runs; by default they are reset.

    Inputs must have the shapes and dtypes of `program.inputs` (InternalError). An access outside
    a tile, and what `policy` forbids, raises an ExecutionFault. A policy that is not precise gives
    outputs of low precision in float32.
    """
    (program,), (inputs,) = apply_precision([program], [inputs], policy)
    executor = Executor(program, policy=policy, uses=uses)
    executor.states = states or executor.states
    executor.notifications = executor.notifications if notifications is None else notifications
    executor.set_inputs(inputs)
    executor.execute()
    if uses is not None:
        uses.finish(executor.memories, [binding.tile for binding in program.outputs])
    return executor.outputs()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread: products of one instruction's size are slower on several."""
    limit: AbstractContextManager[Any] = _blas().limit(limits=1, user_api="blas")
    return limit


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class Executor:
    """One core with one program loaded: set the inputs, execute, read the outputs."""

    def __init__(
        self,
        program: Program,
        *,
        arch: Arch | None = None,
        policy: Policy | None = None,
        hbm: DeviceMemory | None = None,
        writers: WriterTable | None = None,
        core: int = 0,
        uses: UseLog | None = None,
    ) -> None:
        self.program = program
        self.policy = policy or Policy()
        self.arch = arch or arch_of(program)
        self.memories = Memories(self.arch, program, self.policy, hbm)
        self.states = EngineStates(self.arch, self.policy)
        self.limits = RunLimits(self.policy)
        self.indices = {
            "cores": 0,
            "ranks": 0,
        }  # this core's, by `CrossCoreInstr.among`
        self.exchange: Exchange = single_core_exchange
        self.core, self.notifications = core, Notifications()
        self._initialization: InitializationTracker | None = None
        if self.policy.check_initialized:
            writers = writers or WriterTable([program])
            self._initialization = InitializationTracker(self.memories, writers, core)
        self._uses = uses
        follows = self.policy.check_initialized
        follows = follows or any(_accumulates_dynamically(i) for i in walk(program.body))
        self._accumulation = AccumulationShadow(self.memories, program.tiles) if follows else None
        self._written_tiles = {
            pattern.tile.name for i in walk(program.body) for pattern in i.written_patterns()
        }
        for name, array in program.constants.items():
            self._bind(program.tiles[name], np.asarray(array))

    def set_inputs(self, arrays: Mapping[str, Array]) -> None:
        """Set every input by name; InternalError for one that is missing or of wrong type."""
        for binding in self.program.inputs:
            if binding.name not in arrays:
                raise InternalError(f"input {binding.name} is missing")
            self.set_input(binding, arrays[binding.name])

    def set_input(self, binding: Binding, array: Array, *, is_copied: bool = False) -> None:
        """Set one input; InternalError when its shape or dtype differs from the binding's.

        Its tile stays where it is with `is_copied`, else it may become the array itself.
        """
        array = np.asarray(array)
        if array.shape != binding.shape or from_numpy(array.dtype) is not binding.dtype:
            raise InternalError(
                f"input {binding.name} is {array.dtype}{array.shape}, "
                f"not {binding.dtype}{binding.shape}"
            )
        self._bind(binding.tile, array, is_copied=is_copied)

    def execute(self) -> None:
        """Run the program once, from its first instruction."""
        environment: Environment = {}
        self.limits = RunLimits(self.policy)
        self.limits.spend(fewest_executions(self.program.body))
        with np.errstate(all="ignore"), one_blas_thread():
            self._block_step(self.program.body)(environment)

    def outputs(self) -> dict[str, Array]:
        """Copies of the outputs, by name."""
        read = self.memories.read
        return {b.name: read(b.tile, b.dtype, b.shape) for b in self.program.outputs}

    def step(self, instr: Instr, environment: Environment) -> None:
        """Execute one instruction by itself, with these registers and loop variables."""
        self.reporting_step(instr)(environment)

    def _bind(self, tile: Any, array: Array, *, is_copied: bool = False) -> None:
        is_shared = not is_copied and tile.name not in self._written_tiles
        self.memories.bind(tile, array, is_shared=is_shared)
        if self._initialization is not None:
            self._initialization.mark_tile(tile)

    def _block_step(self, body: tuple[Statement, ...]) -> Step:
        steps = [self._statement_step(statement) for statement in body]

        def block(environment: Environment) -> None:
            for step in steps:
                step(environment)

        return block

    def _statement_step(self, statement: Statement) -> Step:
        if isinstance(statement, Loop):
            return self._loop_step(statement)
        if isinstance(statement, While):
            return self._while_step(statement)
        if isinstance(statement, Branch):
            return self._branch_step(statement)
        return self.reporting_step(statement)

    def _loop_step(self, loop: Loop) -> Step:
        steps = [self._statement_step(statement) for statement in loop.body]
        variable, trips = loop.variable, loop.trips
        if self.limits.has_deadline:
            steps.append(lambda _: self.limits.check_time())

        def run_loop(environment: Environment) -> None:
            for index in range(trips):
                environment[variable] = index
                for step in steps:
                    step(environment)

        return run_loop

    def _while_step(self, loop: While) -> Step:
        condition, body = self._block_step(loop.condition), self._block_step(loop.body)
        register = register_variable(loop.register)
        executions = fewest_executions((*loop.condition, *loop.body))

        def run_while(environment: Environment) -> None:
            watchdog = Watchdog(loop, self.policy)
            condition(environment)
            while register_value(environment, register) != 0:
                watchdog.count()
                self.limits.spend(executions)
                body(environment)
                condition(environment)

        return run_while

    def _branch_step(self, branch: Branch) -> Step:
        arms = [self._block_step(arm) for arm in branch.arms]
        register = register_variable(branch.register)

        def run_branch(environment: Environment) -> None:
            arms[branch.arm(register_value(environment, register))](environment)

        return run_branch

    def reporting_step(self, instr: Instr) -> Step:
        """The instruction's step; its exceptions name the instruction and its source line."""
        try:
            step = self._instruction_step(instr)
        except (KeyError, TypeError, ValueError) as error:
            raise InternalError(f"cannot prepare {print_instruction(instr)}: {error}") from error

        def guarded(environment: Environment) -> None:
            try:
                step(environment)
            except (OutOfTile, OutOfBounds) as error:
                raise AccessOutOfBounds(
                    str(error), instruction=print_instruction(instr), loc=instr.loc
                ) from error
            except Unspecified as error:
                raise Unspecified(f"{error}\n  instruction: {print_instruction(instr)}") from error
            except KeyError as error:
                raise MalformedProgram(
                    f"register {error} is not set before it is read",
                    instruction=print_instruction(instr),
                    loc=instr.loc,
                ) from error

        return guarded

    def _instruction_step(self, instr: Instr) -> Step:
        if instr.arrives == "memory":
            return self._memory_step(instr)
        if instr.arrives == "participants":
            return self._rendezvous_step(instr)
        fetches = self._fetches(instr) | self._attribute_fetches(instr)
        fetches |= self._state_fetches(instr)
        stores, forgets = self._stores(instr), self._state_invalidations(instr)
        compute = type(instr).compute
        checks = self._operand_checks(instr)

        def step(environment: Environment) -> None:
            for check in checks:
                check(environment)
            result = compute(**{name: fetch(environment) for name, fetch in fetches.items()})
            results = result if isinstance(result, tuple) else (result,)
            for store, value in zip(stores, results, strict=True):
                if value is not None:
                    store(environment, value)
            for forget in forgets:
                forget(environment)

        return step

    def _memory_step(self, instr: Instr) -> Step:
        """The step of an instruction whose `compute` reads and writes memory views itself."""
        views: dict[str, Fetch] = {
            name: self.memories.viewer(pattern)
            for name, _, pattern in instr.operands()
            if name not in instr.hints
        }
        fetches = views | self._attribute_fetches(instr)
        compute = type(instr).compute
        checks = self._operand_checks(instr)
        marks = self._write_markers(instr)

        def step(environment: Environment) -> None:
            for check in checks:
                check(environment)
            compute(**{name: fetch(environment) for name, fetch in fetches.items()})
            for mark in marks:
                mark(environment)

        return step

    def _rendezvous_step(self, instr: Any) -> Step:
        """The step of a cross-core instruction: `self.exchange` gives this core's results."""
        participant, result_store, checks = (
            self.participant(instr),
            self.result_store(instr),
            self._operand_checks(instr),
        )

        def step(environment: Environment) -> None:
            for check in checks:
                check(environment)
            result_store(environment, self.exchange(instr, participant(environment)))

        return step

    def participant(self, instr: Any) -> Callable[[Environment], Participant]:
        """A function that gives this core's side of a rendezvous: operand copies, attributes."""
        views: dict[str, list[Callable[[Environment], Array]]] = {}
        for name, _, pattern in instr.operands():
            views.setdefault(name, []).append(self.memories.viewer(pattern))
        several = {n for n, declared in instr.operand_declarations.items() if declared.is_several}
        attributes = {name: _attribute_fetch(value) for name, value in instr.attributes().items()}

        def gathered_operands(environment: Environment) -> Participant:
            arrays = {n: tuple(np.array(v(environment)) for v in vs) for n, vs in views.items()}
            operands = {n: each if n in several else each[0] for n, each in arrays.items()}
            given = {name: fetch(environment) for name, fetch in attributes.items()}
            return Participant(self.indices[instr.among], operands, given)

        return gathered_operands

    def result_store(self, instr: Instr) -> Callable[[Environment, tuple[Any, ...]], None]:
        """A function that stores this core's results of a rendezvous."""
        return _store_each(self._stores(instr))

    def _attribute_fetches(self, instr: Instr) -> dict[str, Fetch]:
        """A function for each attribute that `compute` takes, from environment to value."""
        fetches: dict[str, Fetch] = {
            name: _attribute_fetch(value)
            for name, value in instr.attributes().items()
            if name not in instr.hints
        }
        for operand, name in instr.sums.items():
            if getattr(instr, name) is None and self._accumulation is not None:
                pattern = getattr(instr, operand)
                flat = (pattern.partitions, pattern.free)
                fetches[name] = self._accumulation.accumulating_mask(pattern, flat)
        for name in instr.takes_capabilities:
            fetches[name] = _constant_fetch(getattr(self.arch.capabilities, name))
        return fetches

    def _fetches(self, instr: Instr) -> dict[str, Fetch]:
        """A function for each operand that `compute` takes: reads, converts and reshapes it."""
        fetches: dict[str, Fetch] = {}
        for name, declared in instr.operand_declarations.items():
            value = getattr(instr, name)
            if declared.is_several:
                fetches[name] = _tuple_fetch([self._fetch(instr, name, declared, p) for p in value])
            elif isinstance(value, Pattern):
                if declared.access != "writes":
                    fetches[name] = self._fetch(instr, name, declared, value)
            elif declared.access != "writes":
                fetches[name] = _constant_fetch(immediate_operand(instr, value))
        return fetches

    def _fetch(self, instr: Instr, name: str, declared: Operand, pattern: Pattern) -> Fetch:
        if instr.access(name) == "writes":
            return _constant_fetch(None)  # declared as updated, but this instruction overwrites it
        view = self.memories.viewer(pattern)
        shape = arrival_shape(instr, declared, pattern)
        is_exact = declared.is_raw or instr.is_exact or pattern.dtype.name == "f32"
        if is_exact and shape == pattern.shape:
            return view
        if is_exact:
            return lambda environment: view(environment).reshape(shape)
        return lambda environment: widen(view(environment)).reshape(shape)

    def _stores(self, instr: Instr) -> list[Callable[[Environment, Any], None]]:
        stores: list[Callable[[Environment, Any], None]] = []
        for name, declared in instr.operand_declarations.items():
            value = getattr(instr, name)
            if declared.access == "reads":
                continue
            if declared.is_several:
                stores.append(_store_each([self._store(instr, name, each) for each in value]))
                continue
            is_here = isinstance(value, Pattern)
            stores.append(self._store(instr, name, value) if is_here else _discard)
        if instr.sets_register is not None:
            stores.append(_register_store(instr.sets_register))
        stores += [self._state_store(instr, name) for name in instr.states]
        return stores or [_discard]

    def _state_fetches(self, instr: Instr) -> dict[str, Fetch]:
        fetches: dict[str, Fetch] = {name: _constant_fetch(None) for name in instr.states}
        for name, kept, access in instr.states_touched():
            if access != "forgets":
                fetches[name] = self.states.fetch(instr, kept)
        return fetches

    def _state_store(self, instr: Instr, name: str) -> Callable[[Environment, Any], None]:
        is_set = instr.state_access(name) in ("writes", "updates")
        return self.states.store(instr, instr.states[name]) if is_set else _discard

    def _state_invalidations(self, instr: Instr) -> list[Step]:
        return [
            self.states.invalidate(instr, kept)
            for _, kept, access in instr.states_touched()
            if access == "forgets"
        ]

    def _store(
        self, instr: Instr, name: str, pattern: Pattern
    ) -> Callable[[Environment, Any], None]:
        view, dtype, shape = self.memories.viewer(pattern), pattern.dtype, pattern.shape
        is_sum = name in instr.sums and instr.is_sum
        marks = self._pattern_markers(instr, name, pattern, is_sum)

        def store(environment: Environment, value: Any) -> None:
            target = view(environment)
            if isinstance(value, np.ndarray):
                target[...] = narrow(value, dtype).reshape(shape)
            else:
                target[...] = fill_value(value, dtype)
            for mark in marks:
                mark(environment)

        return store

    def _pattern_markers(
        self, instr: Instr, name: str, pattern: Pattern, is_sum: bool = False
    ) -> list[Step]:
        """Steps that record a write of the pattern in the shadow memories."""
        markers: list[Step] = []
        if self._initialization is not None:
            rows = touched_rows(self.memories, instr, name)
            markers.append(self._initialization.marker(pattern, instr, rows))
        if self._accumulation is not None and pattern.memory is Memory.PSUM:
            markers.append(self._accumulation.marker(pattern, is_sum))
        if self._uses is not None:
            rows = touched_rows(self.memories, instr, name)
            markers.append(self._uses.writing(self.memories, pattern, instr, rows))
        return markers

    def _write_markers(self, instr: Instr) -> list[Step]:
        return [
            mark
            for name, _, pattern in instr.operands()
            if instr.access(name) != "reads"
            for mark in self._pattern_markers(instr, name, pattern)
        ]

    def _operand_checks(self, instr: Instr) -> list[Step]:
        if (pattern := oversized(instr)) is not None:
            return [_refusal(pattern)]
        checks: list[Step] = bank_checks(instr, self.memories, self.arch)
        if self._initialization is not None:
            for name, _, pattern in instr.operands():
                if instr.access(name) != "writes" and not instr.may_be_fresh(name):
                    rows = touched_rows(self.memories, instr, name)
                    checks.append(self._initialization.checker(pattern, instr, name, rows))
            checks += self._accumulator_checks(instr)
            for name, kept, access in instr.states_touched():
                if access in ("reads", "updates"):
                    checks.append(
                        _state_check(instr, name, self.states.unknown_lane_counter(instr, kept))
                    )
        checks += [self._index_check(instr, each) for each in instr.index_checks()]
        if self.policy.check_activation_range and isinstance(instr, TableFunction):
            checks.append(self._range_check(instr))
        return [*checks, *self._use_steps(instr)]

    def _use_steps(self, instr: Instr) -> list[Step]:
        """Steps that record what an execution reads, and that it begins to write."""
        if self._uses is None:
            return []
        steps = []
        for name, _, pattern in instr.operands():
            if instr.access(name) != "writes":
                sums = None
                if name in instr.sums and getattr(instr, instr.sums[name]) is None:
                    assert self._accumulation is not None
                    sums = self._accumulation.accumulating_mask(pattern, pattern.shape)
                steps.append(self._uses.reading(self.memories, pattern, instr, name, sums))
        return [*steps, self._uses.beginning(instr)]

    def _accumulator_checks(self, instr: Instr) -> list[Step]:
        """Checks that products accumulate onto products only, where the core requires it."""
        if self._accumulation is None or self.arch.capabilities.has_accumulation_on_any_value:
            return []
        return [
            _accumulator_check(
                instr, name, self._accumulation.idle_element_counter(getattr(instr, name))
            )
            for name in instr.sums
            if instr.access(name) == "updates"
        ]

    def _index_check(self, instr: Instr, check: IndexCheck) -> Step:
        """A step that reports indices outside their table, each once for an execution."""
        view = self.memories.viewer(check.indices)

        def report(environment: Environment) -> None:
            found = view(environment)
            wrong = found[(found < 0) | (found > check.limit)]
            for index in np.unique(wrong).tolist():
                self.notifications.add(instr, index, check, self.core)

        return report

    def _range_check(self, instr: TableFunction) -> Step:
        function = ACTIVATIONS[getattr(instr, "function")]  # noqa: B009
        fetches = self._fetches(instr) | self._attribute_fetches(instr)

        def check(environment: Environment) -> None:
            operands = {name: fetch(environment) for name, fetch in fetches.items()}
            argument = instr.argument(operands)
            if function.is_magnitude:
                argument = np.abs(argument)
            wrong = (argument < function.low) | (argument > function.high)
            if np.any(wrong):
                raise ArgumentOutOfRange(
                    f"{function.name}({argument[wrong][0]}) is outside "
                    f"{function.low:g}..{function.high:g}",
                    instruction=print_instruction(instr),
                    loc=instr.loc,
                )

        return check


def _accumulates_dynamically(instr: Instr) -> bool:
    """Whether the instruction accumulates depending on what PSUM holds at run time."""
    return any(getattr(instr, name) is None for name in instr.sums.values())


def _accumulator_check(instr: Instr, name: str, missing: Callable[[Environment], int]) -> Step:
    condition = evaluator(instr.read_condition(name))

    def check(environment: Environment) -> None:
        if condition(environment) and (count := missing(environment)):
            raise UninitializedRead(
                f"a product is added to {count} elements of {name} that hold no product",
                instruction=print_instruction(instr),
                loc=instr.loc,
            )

    return check


def _refusal(pattern: Pattern) -> Step:
    """A step that refuses a pattern of too many elements."""

    def refuse(environment: Environment) -> None:
        raise OutOfTile(elements_message(pattern))

    return refuse


def _state_check(instr: Instr, name: str, unknown: Callable[[Environment], int]) -> Step:
    def check(environment: Environment) -> None:
        if count := unknown(environment):
            raise UninitializedRead(
                f"the {name} of {count} lanes of {instr.runs_on} is uninitialized",
                instruction=print_instruction(instr),
                loc=instr.loc,
            )

    return check


def _attribute_fetch(value: Any) -> Fetch:
    """A function from the environment to the attribute's value."""
    return evaluator(value) if isinstance(value, Affine) else _constant_fetch(value)


def _constant_fetch(value: Any) -> Fetch:
    return lambda _: value


def single_core_exchange(instr: Any, own: Participant) -> tuple[Any, ...]:
    """The results of a rendezvous of this core only; ExecutionFault when it needs others."""
    ranks = instr.ranks(own.rank)
    if ranks != (own.rank,):
        raise ExecutionFault(
            f"{instr.among} {', '.join(map(str, ranks))} synchronize here, this run has only one",
            instruction=print_instruction(instr),
            loc=instr.loc,
        )
    return tuple(type(instr).compute([own])[0])


def _tuple_fetch(fetches: list[Fetch]) -> Fetch:
    return lambda environment: tuple(fetch(environment) for fetch in fetches)


def _store_each(
    stores: list[Callable[[Environment, Any], None]],
) -> Callable[[Environment, Any], None]:
    def store(environment: Environment, values: Any) -> None:
        for each, value in zip(stores, values, strict=True):
            if value is not None:
                each(environment, value)

    return store


def immediate_operand(instr: Instr, value: float | None) -> Any:
    """An immediate operand as a scalar of the dtype in which `compute` takes the others."""
    if value is None:
        return None
    if not instr.is_exact:
        return np.float32(value)
    pattern = next(instr.read_patterns())
    return bits_of(value, storage_dtype(pattern.dtype))


def fill_value(value: Any, dtype: DType) -> Any:
    """A scalar result as stored to every element: integers wrap to the dtype's width."""
    if dtype is PRED:
        return value != 0
    return bits_of(value, dtype.numpy)


def arrival_shape(instr: Instr, declared: Operand, pattern: Pattern) -> tuple[int, ...]:
    """The shape in which `compute` takes an operand."""
    if instr.arrives == "natural":
        return pattern.shape
    if instr.arrives == "flat":
        return (pattern.partitions, pattern.free)
    shape: tuple[int, ...] = getattr(instr, "dst").shape  # noqa: B009
    return (shape[0], *(1 for _ in shape[1:])) if declared.is_column else shape


def register_value(environment: Environment, register: str) -> int:
    """What a register holds; MalformedProgram when nothing has set it."""
    if register not in environment:
        raise MalformedProgram(f"register {register} is not set before it is read")
    return environment[register]


def _discard(environment: Environment, value: Any) -> None:
    """The store of an operand that the instruction does not have."""


def _register_store(variable: str) -> Callable[[Environment, Any], None]:
    def store(environment: Environment, value: Any) -> None:
        environment[variable] = int(value)

    return store

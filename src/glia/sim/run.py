"""The reference executor: a machine program in program order, instruction by instruction.

Each instruction is prepared once (views, attributes, conversions) and then called for every
execution; the meaning itself is the instruction's `compute`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from glia.arch import Arch, get_target
from glia.base.affine import Affine
from glia.base.dtype import PRED, DType, from_numpy
from glia.base.errors import InternalError, Unspecified
from glia.isa.activation import ACTIVATIONS
from glia.isa.instructions.dma import OutOfBounds
from glia.isa.instructions.scalar import TableFunction
from glia.isa.kit import Instr, Operand, register_variable
from glia.isa.numerics import bits_of, narrow, widen
from glia.isa.operand import Memory, Pattern
from glia.isa.rendezvous import Participant
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While, walk
from glia.machine.text import print_instruction
from glia.sim.engine_state import EngineStates
from glia.sim.float32_mode import as_held
from glia.sim.last_writer import Writers, WrittenBytes, rows_of
from glia.sim.memory import (
    DeviceMemory,
    Environment,
    Memories,
    OutOfTile,
    evaluator,
    storage_dtype,
)
from glia.sim.policy import (
    AccessOutOfBounds,
    ArgumentOutOfRange,
    ExecutionFault,
    Policy,
    UninitializedRead,
)
from glia.sim.psum_accumulation import Sums
from glia.sim.psum_banks import bank_checks
from glia.sim.watchdog import Watchdog

Array = np.ndarray[Any, Any]
Step = Callable[[Environment], None]
Fetch = Callable[[Environment], Any]
Meet = Callable[[Any, Participant], tuple[Any, ...]]  # (instruction, what this core brings)


def run(
    program: Program,
    inputs: Mapping[str, Array],
    *,
    policy: Policy | None = None,
    states: EngineStates | None = None,
) -> dict[str, Array]:
    """Run a program on named inputs and return its named outputs.

    `states` is what the engines keep, before and after; without it every run starts afresh.

    Inputs must have the shapes and dtypes of `program.inputs` (InternalError). An access outside
    a tile, and what `policy` forbids, raises an ExecutionFault. A policy that is not precise gives
    outputs of low precision in float32.
    """
    (program,), (inputs,) = as_held([program], [inputs], policy)
    executor = Executor(program, policy=policy)
    executor.states = states or executor.states
    executor.set_inputs(inputs)
    executor.execute()
    return executor.outputs()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Products in one thread: those the size of an instruction lose by being split over several."""
    return _blas().limit(limits=1, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class Executor:
    """One core with one program loaded: bind the inputs, execute, read the memories."""

    def __init__(
        self,
        program: Program,
        *,
        arch: Arch | None = None,
        policy: Policy | None = None,
        hbm: DeviceMemory | None = None,
        writers: Writers | None = None,
        core: int = 0,
    ) -> None:
        self.program = program
        self.policy = policy or Policy()
        self._arch = arch or get_target(program.target).arch
        self.memories = Memories(self._arch, program, self.policy, hbm)
        self.states = EngineStates(self._arch, self.policy)
        self.numbers = {"cores": 0, "ranks": 0}  # of this core, see `Meeting.among`
        self.meet: Meet = meet_alone
        writers = writers or Writers([program])
        written = WrittenBytes(self.memories, writers, core)
        self._written = written if self.policy.check_initialized else None
        follows = any(_follows_sums(i) for i in walk(program.body))
        follows = follows or self.policy.check_initialized
        self._sums = Sums(self.memories, program.tiles) if follows else None
        self._stored = {
            pattern.tile.name for i in walk(program.body) for pattern in i.written_patterns()
        }
        for name, array in program.constants.items():
            self._bind(program.tiles[name], np.asarray(array))

    def set_inputs(self, arrays: Mapping[str, Array]) -> None:
        """Give every input its value, by name; InternalError for one that is missing or wrong."""
        for binding in self.program.inputs:
            if binding.name not in arrays:
                raise InternalError(f"input {binding.name} is missing")
            self.set_input(binding, arrays[binding.name])

    def set_input(self, binding: Binding, array: Array) -> None:
        """Give an input its value; InternalError when shape or dtype differ."""
        array = np.asarray(array)
        if array.shape != binding.shape or from_numpy(array.dtype) is not binding.dtype:
            raise InternalError(
                f"input {binding.name} is {array.dtype}{array.shape}, "
                f"not {binding.dtype}{binding.shape}"
            )
        self._bind(binding.tile, array)

    def execute(self) -> None:
        """Run the program once, from its first instruction."""
        environment: Environment = {}
        with np.errstate(all="ignore"), one_blas_thread():
            self._block(self.program.body)(environment)

    def outputs(self) -> dict[str, Array]:
        """What the outputs hold, by name."""
        read = self.memories.read
        return {b.name: read(b.tile, b.dtype, b.shape) for b in self.program.outputs}

    def step(self, instr: Instr, environment: Environment) -> None:
        """Execute one instruction by itself, with these registers and loop variables."""
        self._guarded(instr)(environment)

    def _bind(self, tile: Any, array: Array) -> None:
        self.memories.bind(tile, array, is_shared=tile.name not in self._stored)
        if self._written is not None:
            self._written.mark_tile(tile)

    def _block(self, body: tuple[Statement, ...]) -> Step:
        steps = [self._statement(statement) for statement in body]

        def block(environment: Environment) -> None:
            for step in steps:
                step(environment)

        return block

    def _statement(self, statement: Statement) -> Step:
        if isinstance(statement, Loop):
            return self._loop(statement)
        if isinstance(statement, While):
            return self._while(statement)
        if isinstance(statement, Branch):
            return self._branch(statement)
        return self._guarded(statement)

    def _loop(self, loop: Loop) -> Step:
        steps = [self._statement(statement) for statement in loop.body]
        variable, trips = loop.variable, loop.trips

        def run_loop(environment: Environment) -> None:
            for index in range(trips):
                environment[variable] = index
                for step in steps:
                    step(environment)

        return run_loop

    def _while(self, loop: While) -> Step:
        condition, body = self._block(loop.condition), self._block(loop.body)
        register = register_variable(loop.register)

        def run_while(environment: Environment) -> None:
            watchdog = Watchdog(loop, self.policy)
            condition(environment)
            while environment[register] != 0:
                watchdog.count()
                body(environment)
                condition(environment)

        return run_while

    def _branch(self, branch: Branch) -> Step:
        arms = [self._block(arm) for arm in branch.arms]
        register = register_variable(branch.register)

        def run_branch(environment: Environment) -> None:
            arms[branch.arm(environment[register])](environment)

        return run_branch

    def _guarded(self, instr: Instr) -> Step:
        """The instruction's step, with what goes wrong in it told in its own terms."""
        try:
            step = self._instruction(instr)
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
                raise InternalError(
                    f"{error} is not set before {print_instruction(instr)}"
                ) from error

        return guarded

    def _instruction(self, instr: Instr) -> Step:
        if instr.arrives == "memory":
            return self._in_memory(instr)
        if instr.arrives == "participants":
            return self._at_meeting(instr)
        fetches = self._fetches(instr) | self._attribute_fetches(instr)
        fetches |= self._state_fetches(instr)
        stores, forgets = self._stores(instr), self._forgets(instr)
        compute = type(instr).compute
        checks = self._checks(instr)

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

    def _in_memory(self, instr: Instr) -> Step:
        """An instruction whose `compute` reads and writes the views itself."""
        views: dict[str, Fetch] = {
            name: self.memories.viewer(pattern) for name, _, pattern in instr.operands()
        }
        fetches = views | self._attribute_fetches(instr)
        compute = type(instr).compute
        checks = self._checks(instr)
        marks = self._marks(instr)

        def step(environment: Environment) -> None:
            for check in checks:
                check(environment)
            compute(**{name: fetch(environment) for name, fetch in fetches.items()})
            for mark in marks:
                mark(environment)

        return step

    def _at_meeting(self, instr: Any) -> Step:
        """An instruction at which cores meet: `self.meet` waits for them and gives the results."""
        bring, take, checks = self.bring(instr), self.take(instr), self._checks(instr)

        def step(environment: Environment) -> None:
            for check in checks:
                check(environment)
            take(environment, self.meet(instr, bring(environment)))

        return step

    def bring(self, instr: Any) -> Callable[[Environment], Participant]:
        """What this core brings to a meeting: copies of its operands, and the attributes."""
        views: dict[str, list[Callable[[Environment], Array]]] = {}
        for name, _, pattern in instr.operands():
            views.setdefault(name, []).append(self.memories.viewer(pattern))
        several = {n for n, declared in instr.operand_declarations.items() if declared.is_several}
        attributes = {name: _fetched(value) for name, value in instr.attributes().items()}

        def brought(environment: Environment) -> Participant:
            arrays = {n: tuple(np.array(v(environment)) for v in vs) for n, vs in views.items()}
            operands = {n: each if n in several else each[0] for n, each in arrays.items()}
            given = {name: fetch(environment) for name, fetch in attributes.items()}
            return Participant(self.numbers[instr.among], operands, given)

        return brought

    def take(self, instr: Instr) -> Callable[[Environment, tuple[Any, ...]], None]:
        """Store what a meeting gave this core."""
        return _store_each(self._stores(instr))

    def _attribute_fetches(self, instr: Instr) -> dict[str, Fetch]:
        """How each attribute that `compute` takes gets its value."""
        fetches: dict[str, Fetch] = {
            name: _fetched(value)
            for name, value in instr.attributes().items()
            if name not in instr.hints
        }
        for operand, name in instr.sums.items():
            if getattr(instr, name) is None and self._sums is not None:
                pattern = getattr(instr, operand)
                flat = (pattern.partitions, pattern.free)
                fetches[name] = self._sums.holder(pattern, flat)
        for name in instr.takes_capabilities:
            fetches[name] = _constant(getattr(self._arch.capabilities, name))
        return fetches

    def _fetches(self, instr: Instr) -> dict[str, Fetch]:
        """How each operand that `compute` takes is read, converted and shaped."""
        fetches: dict[str, Fetch] = {}
        for name, declared in instr.operand_declarations.items():
            value = getattr(instr, name)
            if declared.is_several:
                fetches[name] = _together([self._fetch(instr, name, declared, p) for p in value])
            elif isinstance(value, Pattern):
                if declared.access != "writes":
                    fetches[name] = self._fetch(instr, name, declared, value)
            elif declared.access != "writes":
                fetches[name] = _constant(_immediate(instr, value))
        return fetches

    def _fetch(self, instr: Instr, name: str, declared: Operand, pattern: Pattern) -> Fetch:
        if instr.access(name) == "writes":
            return _constant(None)  # declared as updated, but this one overwrites
        view = self.memories.viewer(pattern)
        shape = _arrival_shape(instr, declared, pattern)
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
            stores.append(self._store(instr, name, value) if is_here else _no_store)
        if instr.sets_register is not None:
            stores.append(_register_store(instr.sets_register))
        stores += [self._state_store(instr, name) for name in instr.states]
        return stores or [_no_store]

    def _state_fetches(self, instr: Instr) -> dict[str, Fetch]:
        fetches: dict[str, Fetch] = {name: _constant(None) for name in instr.states}
        for name, kept, access in instr.states_touched():
            if access != "forgets":
                fetches[name] = self.states.fetch(instr, kept)
        return fetches

    def _state_store(self, instr: Instr, name: str) -> Callable[[Environment, Any], None]:
        is_set = instr.state_access(name) in ("writes", "updates")
        return self.states.store(instr, instr.states[name]) if is_set else _no_store

    def _forgets(self, instr: Instr) -> list[Step]:
        return [
            self.states.forget(instr, kept)
            for _, kept, access in instr.states_touched()
            if access == "forgets"
        ]

    def _store(
        self, instr: Instr, name: str, pattern: Pattern
    ) -> Callable[[Environment, Any], None]:
        view, dtype, shape = self.memories.viewer(pattern), pattern.dtype, pattern.shape
        is_sum = name in instr.sums and instr.is_sum
        marks = self._markers(instr, name, pattern, is_sum)

        def store(environment: Environment, value: Any) -> None:
            target = view(environment)
            if isinstance(value, np.ndarray):
                target[...] = narrow(value, dtype).reshape(shape)
            else:
                target[...] = _scalar(value, dtype)
            for mark in marks:
                mark(environment)

        return store

    def _markers(
        self, instr: Instr, name: str, pattern: Pattern, is_sum: bool = False
    ) -> list[Step]:
        """What must be noted when the pattern has been written."""
        markers: list[Step] = []
        if self._written is not None:
            rows = rows_of(self.memories, instr, name)
            markers.append(self._written.marker(pattern, instr, rows))
        if self._sums is not None and pattern.memory is Memory.PSUM:
            markers.append(self._sums.marker(pattern, is_sum))
        return markers

    def _marks(self, instr: Instr) -> list[Step]:
        return [
            mark
            for name, _, pattern in instr.operands()
            if instr.access(name) != "reads"
            for mark in self._markers(instr, name, pattern)
        ]

    def _checks(self, instr: Instr) -> list[Step]:
        checks: list[Step] = bank_checks(instr, self.memories, self._arch)
        if self._written is not None:
            for name, _, pattern in instr.operands():
                if instr.access(name) != "writes" and not instr.may_be_fresh(name):
                    rows = rows_of(self.memories, instr, name)
                    checks.append(self._written.checker(pattern, instr, name, rows))
            checks += self._sum_checks(instr)
            for name, kept, access in instr.states_touched():
                if access in ("reads", "updates"):
                    checks.append(_known(instr, name, self.states.unknown(instr, kept)))
        if self.policy.check_activation_range and isinstance(instr, TableFunction):
            checks.append(self._range_check(instr))
        return checks

    def _sum_checks(self, instr: Instr) -> list[Step]:
        """That a product is added to nothing but products, where the core allows nothing else."""
        if self._sums is None or self._arch.capabilities.has_accumulation_on_any_value:
            return []
        return [
            _begun(instr, name, self._sums.counter(getattr(instr, name)))
            for name in instr.sums
            if instr.access(name) == "updates"
        ]

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


def _follows_sums(instr: Instr) -> bool:
    """Whether only a run tells where the instruction continues a sum."""
    return any(getattr(instr, name) is None for name in instr.sums.values())


def _begun(instr: Instr, name: str, missing: Callable[[Environment], int]) -> Step:
    condition = evaluator(instr.read_condition(name))

    def check(environment: Environment) -> None:
        if condition(environment) and (count := missing(environment)):
            raise UninitializedRead(
                f"a product is added to {count} elements of {name} that hold no product",
                instruction=print_instruction(instr),
                loc=instr.loc,
            )

    return check


def _known(instr: Instr, name: str, unknown: Callable[[Environment], int]) -> Step:
    def check(environment: Environment) -> None:
        if count := unknown(environment):
            raise UninitializedRead(
                f"the {name} of {count} lanes of {instr.runs_on} is not known",
                instruction=print_instruction(instr),
                loc=instr.loc,
            )

    return check


def _fetched(value: Any) -> Fetch:
    """How an attribute gets its value."""
    return evaluator(value) if isinstance(value, Affine) else _constant(value)


def _constant(value: Any) -> Fetch:
    return lambda _: value


def meet_alone(instr: Any, own: Participant) -> tuple[Any, ...]:
    """The results of a meeting with nobody else; ExecutionFault when others should come."""
    ranks = instr.ranks(own.rank)
    if ranks != (own.rank,):
        raise ExecutionFault(
            f"{instr.among} {', '.join(map(str, ranks))} meet here, and this run has only one",
            instruction=print_instruction(instr),
            loc=instr.loc,
        )
    return tuple(type(instr).compute([own])[0])


def _together(fetches: list[Fetch]) -> Fetch:
    return lambda environment: tuple(fetch(environment) for fetch in fetches)


def _store_each(
    stores: list[Callable[[Environment, Any], None]],
) -> Callable[[Environment, Any], None]:
    def store(environment: Environment, values: Any) -> None:
        for each, value in zip(stores, values, strict=True):
            if value is not None:
                each(environment, value)

    return store


def _immediate(instr: Instr, value: float | None) -> Any:
    """A number operand as a scalar of the dtype that the other operands arrive in."""
    if value is None:
        return None
    if not instr.is_exact:
        return np.float32(value)
    pattern = next(instr.read_patterns())
    return bits_of(value, storage_dtype(pattern.dtype))


def _scalar(value: Any, dtype: DType) -> Any:
    """A number that fills a pattern: integers wrap to the width of the dtype."""
    if dtype is PRED:
        return value != 0
    return bits_of(value, dtype.numpy)


def _arrival_shape(instr: Instr, declared: Operand, pattern: Pattern) -> tuple[int, ...]:
    if instr.arrives == "natural":
        return pattern.shape
    if instr.arrives == "flat":
        return (pattern.partitions, pattern.free)
    shape: tuple[int, ...] = getattr(instr, "dst").shape  # noqa: B009
    return (shape[0], *(1 for _ in shape[1:])) if declared.is_column else shape


def _no_store(environment: Environment, value: Any) -> None:
    """An operand that is absent takes no result."""


def _register_store(variable: str) -> Callable[[Environment, Any], None]:
    def store(environment: Environment, value: Any) -> None:
        environment[variable] = int(value)

    return store

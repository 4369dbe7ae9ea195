"""The engines, queues and semaphores of one core, moved through time by one step after another.

Program order is a valid order for one pass: a wait only refers to signals of earlier steps. What
steps take from each other beyond order (DMA engines, HBM, a shared port) is taken from the
earliest time that is still free, so a transfer that stands later in the program and is ready
earlier is not held up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from glia.base.errors import CompileError, InternalError
from glia.sim.timing_costs import DMA_ENGINES, HBM_LANE, PS, TransferCost, cycles_to_ps
from glia.sim.timing_lanes import Lane, place
from glia.sim.timing_plan import (
    PSUM_PORT,
    BranchStep,
    LoopStep,
    Plan,
    PlanItem,
    PlannedWait,
    Step,
    WhileStep,
)
from glia.sim.timing_semaphores import SemaphoreHistory

if TYPE_CHECKING:
    from glia.arch import Arch

TENSOR, VECTOR, SCALAR, GPSIMD = range(4)

PORT_ENGINES = (VECTOR, SCALAR, GPSIMD)

Trips = Mapping[int, Sequence[int]]


class Deadlock(CompileError):
    """An engine waits for a semaphore count that nothing before it in the program can reach.

    Cause: A wait names a semaphore that no earlier instruction signals often enough: a missing
        signal, a wrong count, or two engines that wait for each other.
    Fix: Signal the semaphore before the wait in program order, or lower the count waited for.
    Example: a program whose only instruction waits for semaphore "ready" to be at least 1
    """

    code = "GLIA401"
    message = (
        "deadlock: {engine} waits for semaphore {semaphore} to reach {needed},"
        " but it stops at {reached}"
    )
    help = "{signallers}"


class Machine:
    """State of one simulated core; all times in picoseconds."""

    def __init__(self, plan: Plan, arch: Arch, trips: Trips, most_events: int) -> None:
        self.plan, self.trips, self.most_events = plan, trips, most_events
        names = plan.engines
        zero = _ps(arch.preamble_ns)
        self.begin = zero
        self.free = [zero] * len(names)  # when each engine can start its next instruction
        self.visible = [0] * len(plan.steps)  # when each step's latest result can be read
        self.queue_ready = [zero] * max(1, len(plan.queues))
        self.lanes: list[Lane] = [[zero]] * (DMA_ENGINES + 1)
        self.generators = [zero] * len(names)  # when each engine's descriptor hardware is free
        self.ports: list[Lane] = [[zero]] * (PSUM_PORT + arch.psum_banks)
        self.histories = [SemaphoreHistory() for _ in plan.semaphores]
        self.variables = [0] * plan.slots
        self.latency = [_latency(arch, name) for name in names]
        self.wake = _ps(arch.semaphore_wake_ns)
        # dma_completion_ns reaches to the consumer's start, whose wake is added when it waits
        self.dma_start, self.dma_completion = (
            _ps(arch.dma_start_ns),
            _ps(arch.dma_completion_ns) - self.wake,
        )
        self.table_load = _ps(arch.activation_table_load_ns)
        self.warm_up = _ps(arch.tensor_ramp_ns)
        self.ramp = arch.tensor_ramp_rate
        self.swap = zero  # when the array took its stationary matrix: the next may be loaded
        self.tensor_end = zero
        self.heat, self.is_warm = 0, self.warm_up == 0
        self.held: tuple[str, int] = ("", 0)  # stationary matrix in the array
        self.held_tile = ""
        self.held_terms: tuple[tuple[int, int], ...] = ()
        self.table = ""
        self.transfer_engines = tuple({s.engine for s in plan.steps if s.kind == "transfer"})
        self.port_engines: tuple[int, ...] = PORT_ENGINES
        self.last = zero
        self.depth = 0
        self.counts = [0] * len(plan.steps)
        self.busy = [0] * len(plan.steps)
        self.table_loads = [0] * len(plan.steps)
        self.throttled = [0] * len(plan.steps)
        self.stalled = [0] * len(plan.planned_waits)
        self.executed, self.checksum = 0, 0
        self.events: list[tuple[int, int, int]] = []  # step, start, end
        self.skips: list[tuple[str, int, int, int]] = []  # variable, start, end, iterations
        self.fruitless: dict[int, int] = {}  # runs of a loop, by slot, in which nothing repeated
        self.assumed_trips: set[int] = set()
        self.outcomes: dict[int, int] = {}
        self.skip_iterations: Callable[[Machine, LoopStep], None] | None = None
        self.handlers: dict[str, Callable[[Any], None]] = {
            "compute": self.compute,
            "activation": self.activation,
            "matmul": self.matmul,
            "transfer": self.transfer,
            "barrier": self.barrier,
            "loop": self.loop,
            "while": self.repeat,
            "branch": self.branch,
        }

    def run(self, items: tuple[PlanItem, ...]) -> None:
        """Execute a block once."""
        handlers = self.handlers
        for item in items:
            handlers[item.kind](item)

    def loop(self, loop: LoopStep) -> None:
        """Execute a counted loop; gaps before its engines' present are forgotten inside."""
        outer = self.transfer_engines, self.port_engines
        if loop.steps[0] == loop.steps[1]:
            return
        if not self.depth:
            self.transfer_engines = loop.transfer_engines
        self.depth += 1
        self.port_engines = tuple(e for e in PORT_ENGINES if e in loop.engines)
        if self.skip_iterations is not None and loop.is_regular:
            self.skip_iterations(self, loop)
        else:
            for index in range(loop.trips):
                self.variables[loop.slot] = index
                self.run(loop.body)
        self.depth -= 1
        self.transfer_engines, self.port_engines = outer

    def repeat(self, loop: WhileStep) -> None:
        """Execute a run-time loop: every engine in it waits for each condition."""
        for _ in range(self._outcome(loop.ordinal, 1)):
            self._decide(loop)
            self.run(loop.body)
        self._decide(loop)

    def _decide(self, loop: WhileStep) -> None:
        self.run(loop.condition)
        known = max(
            (self.visible[i.number] for i in loop.condition if isinstance(i, Step)), default=0
        )
        for engine in loop.engines:
            self.free[engine] = max(self.free[engine], known)

    def branch(self, branch: BranchStep) -> None:
        """Execute the arm that was taken."""
        arm = self._outcome(branch.ordinal, 0)
        self.run(branch.arms[min(arm, len(branch.arms) - 1)])

    def _outcome(self, ordinal: int, default: int) -> int:
        position = self.outcomes.get(ordinal, 0)
        self.outcomes[ordinal] = position + 1
        known = self.trips.get(ordinal, ())
        if position < len(known):
            return known[position]
        self.assumed_trips.add(ordinal)
        return default

    def waited(self, step: Step) -> int:
        """When the step's engine is free and its waits and operands are ready."""
        free = start = self.free[step.engine]
        binding = -1
        for wait in step.waits:
            units = self.units_of(wait)
            if units <= 0:
                continue
            try:
                moment = self.histories[wait.semaphore].moment(units) + self.wake
            except IndexError:
                raise self._deadlock(step, wait) from None
            if moment > start:
                start, binding = moment, wait.number
        if binding >= 0:
            self.stalled[binding] += start - free
        for number in step.reads:
            if self.visible[number] > start:
                start = self.visible[number]
        return start

    def units_of(self, wait: PlannedWait) -> int:
        """The count waited for now, in the semaphore's units."""
        if wait.is_unknown:
            return self.histories[wait.semaphore].count
        value = wait.constant
        for slot, coefficient in wait.terms:
            value += coefficient * self.variables[slot]
        return -(-value // self.plan.units[wait.semaphore])

    def finish(self, step: Step, start: int, end: int, done: int) -> None:
        """Record a step that ran from start to end and whose results count from `done` on."""
        number = step.number
        self.visible[number] = done
        for semaphore, units in step.signals:
            self.histories[semaphore].add(done, units)
        self.counts[number] += 1
        self.busy[number] += end - start
        self.executed += 1
        self.checksum += done
        if done > self.last:
            self.last = done
        if step.spoils and step.spoils == self.held_tile:
            self.held, self.held_tile = ("", 0), ""
        if len(self.events) < self.most_events:
            self.events.append((number, start, end))

    def compute(self, step: Step) -> None:
        """One instruction on an in-order engine."""
        engine = step.engine
        start = self.waited(step)
        if engine == TENSOR:
            end = start + self._throttle(step, start)
        else:
            start, end = self.streamed(step, start)
        self.free[engine] = end
        self.finish(step, start, end, end + self.latency[engine])

    def streamed(self, step: Step, start: int) -> tuple[int, int]:
        """First and last moment of an instruction ready at `start`, given its memory ports."""
        end = start + step.busy
        if step.ports:
            horizon = min(self.free[e] for e in self.port_engines)
            for port in step.ports:
                self.ports[port], start, done = place(self.ports[port], start, step.busy, horizon)
                end = max(end, done)
        return start, end

    def barrier(self, step: Step) -> None:
        """All engines continue when everything before is complete, and counts start again."""
        start = max(self.waited(step), self.last, *self.free)
        end = start + step.busy
        self.free = [end] * len(self.free)
        self.histories = [SemaphoreHistory() for _ in self.plan.semaphores]
        self.finish(step, start, end, end)

    def activation(self, step: Step) -> None:
        """An instruction of the Scalar Engine, after loading its table set where it changes."""
        start = self.waited(step)
        if step.table != self.table:
            self.table = step.table
            start += self.table_load
            self.table_loads[step.number] += 1
        start, end = self.streamed(step, start)
        self.free[SCALAR] = end
        self.finish(step, start, end, end + self.latency[SCALAR])

    def matmul(self, step: Step) -> None:
        """A matrix product: its stationary matrix is loaded behind the product before it."""
        start = self.waited(step)
        name, address, terms = step.stationary
        for slot, coefficient in terms:
            address += coefficient * self.variables[slot]
        if (name, address) != self.held:
            self.held, self.held_terms = (name, address), terms
            self.held_tile = step.instr.stationary.tile.name  # type: ignore[attr-defined]
            ready = self.swap
            for wait in step.waits:
                if (units := self.units_of(wait)) > 0:
                    ready = max(ready, self.histories[wait.semaphore].moment(units) + self.wake)
            start = max(start, ready + step.load)
        busy = self._throttle(step, start)
        end = start + busy
        self.swap = start
        self.free[TENSOR] = end
        self.finish(step, start, end, end + self.latency[TENSOR])

    def _throttle(self, step: Step, start: int) -> int:
        """Picoseconds the product takes: at the ramp's rate until the array has been busy enough.

        Busy time fills and idle time empties a store of `warm_up`; the array is at full rate from
        the moment it is full to the moment it is empty.
        """
        if not self.warm_up:
            return step.busy
        heat = max(0, self.heat - (start - self.tensor_end))
        if heat == 0:
            self.is_warm = False
        busy = step.busy
        if not self.is_warm:
            busy = int(busy / self.ramp)
            self.throttled[step.number] += busy - step.busy
        self.heat = min(self.warm_up, heat + busy)
        self.is_warm = self.is_warm or self.heat == self.warm_up
        self.tensor_end = start + busy
        return busy

    def transfer(self, step: Step) -> None:
        """A DMA transfer: issued by its engine, in order on its queue, served by DMA engines."""
        transfer = step.transfer
        if transfer is None:
            raise InternalError(f"step {step.number} has no transfer")
        issued = self.waited(step)
        self.free[step.engine] = issued + step.busy
        if step.generation:
            issued = max(issued, self.generators[step.engine])
            self.generators[step.engine] = issued + step.generation
        ready = max(issued + self.dma_start, self.queue_ready[step.queue])
        self.queue_ready[step.queue] = ready
        horizon = min(self.free[e] for e in self.transfer_engines)
        first, end = self._serve(transfer, ready, horizon)
        end += transfer.skew
        self.finish(step, first, end, end + self.dma_completion)

    def _serve(self, transfer: TransferCost, ready: int, horizon: int) -> tuple[int, int]:
        """Take time on the lanes; lanes in the same state share one list and are served once."""
        lanes, served = self.lanes, []
        first, end = -1, ready
        for work, members in transfer.lanes:
            for lane in members:
                before = lanes[lane]
                for earlier, amount, after in served:
                    if earlier is before and amount == work:
                        lanes[lane] = after
                        break
                else:
                    after, begun, ended = place(before, ready, work, horizon)
                    served.append((before, work, after))
                    lanes[lane] = after
                    end = max(end, ended)
                    if lane != HBM_LANE:
                        first = begun if first < 0 else min(first, begun)
        return max(first, ready), end

    def _deadlock(self, step: Step, wait: PlannedWait) -> Deadlock:
        name, unit = self.plan.semaphores[wait.semaphore], self.plan.units[wait.semaphore]
        signalling = [s for s in self.plan.steps if any(n == wait.semaphore for n, _ in s.signals)]
        where = "; ".join(
            f"{self.plan.engines[s.engine]}: {s.instr.mnemonic()}" for s in signalling[:4]
        )
        cure = f"its signals come from {where}" if where else "no instruction signals it"
        return Deadlock(
            loc=step.instr.loc,
            instruction=step.instr.mnemonic(),
            engine=self.plan.engines[step.engine],
            semaphore=name,
            needed=self.units_of(wait) * unit,
            reached=self.histories[wait.semaphore].count * unit,
            signallers=cure + "; signal it often enough before the wait, or wait for less",
        )


def _latency(arch: Arch, engine: str) -> int:
    """From the end of an instruction's cycles, which include the gap to the next, to its result."""
    cycles = arch.latency_cycles.get(engine, 0) - arch.issue_gap_cycles.get(engine, 0)
    return cycles_to_ps(max(0, cycles), engine, arch)


def _ps(nanoseconds: float) -> int:
    return round(nanoseconds * PS)

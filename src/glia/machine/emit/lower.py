"""Lower scheduled nests to a machine program: buffers become tiles, statements become blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from glia.arch import get_target
from glia.base.affine import ZERO, Affine
from glia.base.dtype import PRED, S32
from glia.base.errors import InternalError, Misfit
from glia.isa.instructions.sync import RegisterAlu, RegisterLoad, RegisterMove
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.columns.legal_columns import has_legal_instructions
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.box import storage_dtype
from glia.machine.emit.covering import InstructionCosts
from glia.machine.emit.fitting import emit_nest
from glia.machine.emit.groups.group import emit_group
from glia.machine.emit.layout import Dim, Home
from glia.machine.emit.nest import EmitContext
from glia.machine.emit.refusal import Refusal
from glia.machine.emit.splice_kernels import splice
from glia.machine.emit.staging import Source
from glia.machine.emit.work import work_of
from glia.machine.ir import Binding, Branch, EmittedWork, Program, Statement, While, walk
from glia.machine.passes.on_chip_space import ON_CHIP_ALIGNMENT
from glia.machine.queues import QUEUE_OWNERS
from glia.machine.shared_places import shared_places
from glia.options import CompileOptions
from glia.tile import ir as tile
from glia.tile.contraction import PARTITIONS
from glia.tile.exchanges.exchange_instructions import exchange_instructions
from glia.tile.model_families import FAMILIES

QUEUE = "exchange"


def emit(program: tile.Program, options: CompileOptions) -> Program:
    """Emit a machine program for one core of the target; tiles are not placed yet.

    Misfit names resident buffers whose layout is in the way of a nest.
    """
    found = ProgramEmitter(program, options).emit()
    if has_legal_instructions(found, get_target(options.target).arch):
        return found
    return ProgramEmitter(program, options, is_checked=True).emit()


class ProgramEmitter:
    """Lowers one tile program, statement by statement; `is_checked` verifies each nest."""

    def __init__(
        self, program: tile.Program, options: CompileOptions, *, is_checked: bool = False
    ) -> None:
        self.program = program
        self.target = options.target
        self.places, _ = shared_places(program)
        self.builder = BlockBuilder()
        self.groups = {next(g.members())[1].nest: g for g in program.groups}  # by its first nest
        shared = dict(program.aliases)
        own = [each for name, each in program.buffers.items() if name not in shared]
        sources = {buffer.name: self._source(buffer) for buffer in own}
        sources |= {output: sources[source] for output, source in shared.items()}
        self.context = EmitContext(
            self.builder,
            InstructionCosts(get_target(options.target).arch),
            options.target,
            dict(program.buffers),
            sources,
            {name: layout.partition_dim for name, layout in program.layouts.items()},
            _resident_bytes(program, sources),
            tile.buffers_across_groups(program) if program.groups else frozenset(),
            options.saturate_infinity,
            FAMILIES[options.model_type],
            is_checked,
        )

    def emit(self) -> Program:
        body = self._block(self.program.body)
        if self.context.misfits:
            listed = ", ".join(sorted(self.context.misfits))
            raise Misfit(f"{listed} cannot be as chosen", self.context.misfits)
        tiles = self._used_tiles(body)
        constants = self.builder.constants | {
            self._tile(name).name: value for name, value in self.program.constants.items()
        }
        return Program(
            self.program.name,
            self.target,
            tiles,
            tuple(self._binding(name) for name in self.program.inputs),
            tuple(self._binding(name) for name in self.program.outputs),
            {name: value for name, value in constants.items() if name in tiles},
            body,
            {self._tile(name).name: at for name, at in self.places.items()},
            notes=(*self.program.notes, *self.context.notes),
            emitted={n: dict(sorted(each.items())) for n, each in self.context.emitted.items()},
            works=self._works_by_buffer(),
        )

    def _works_by_buffer(self) -> dict[str, EmittedWork]:
        """What groups and nests do, with traffic by the buffers that tiles in HBM hold."""
        buffers = {each.tile.name: n for n, each in self.context.sources.items() if each.tile}
        return {
            name: replace(work, traffic={buffers.get(n, n): t for n, t in work.traffic.items()})
            for name, work in self.context.works.items()
        }

    def _used_tiles(self, body: tuple[Statement, ...]) -> dict[str, Tile]:
        """The tiles that instructions or bindings name; a packed constant leaves its own unused."""
        used = {p.tile.name for i in walk(body) for p in i.patterns()}
        bound = (*self.program.inputs, *self.program.outputs, *self.places)
        used |= {self._tile(name).name for name in bound}
        return {name: made for name, made in self.builder.tiles.items() if name in used}

    def _source(self, buffer: tile.Buffer) -> Source:
        layout = self.program.layouts.get(buffer.name)
        dtype = storage_dtype(buffer.dtype)
        if layout is None or layout.memory == "HBM":
            made = self.builder.tile(buffer.name, Memory.HBM, dtype, 1, buffer.elements)
            value = self.program.constants.get(buffer.name)
            queue = "load" if buffer.role in ("input", "constant") else "reload"
            return Source(made, buffer.shape, constant=value, queue=queue)
        rows = layout.partition_dim
        dims: list[Dim] = []
        stride = 1
        for position in reversed(range(len(buffer.shape))):
            if position != rows and buffer.shape[position] > 1:
                dims.insert(0, Dim(stride, buffer.shape[position], ZERO, dim=position))
                stride *= buffer.shape[position]
        blocks = -(-buffer.shape[rows] // PARTITIONS)
        used = min(PARTITIONS, buffer.shape[rows])
        made = self.builder.tile(buffer.name, Memory.SBUF, dtype, used, stride * blocks)
        home = Home(made, tuple(dims), "", rows, ZERO, PARTITIONS, stride)
        return Source(None, buffer.shape, home)

    def _tile(self, name: str) -> Tile:
        made = self.context.sources[name].tile
        assert made is not None, (
            f"{name} is an input, output or operand of control flow: it must be in HBM"
        )
        return made

    def _binding(self, name: str) -> Binding:
        buffer = self.program.buffers[name]
        return Binding(name, self._tile(name), buffer.shape, buffer.dtype)

    def _block(self, body: tuple[tile.Statement, ...]) -> tuple[Statement, ...]:
        with self.builder.nested() as block:
            self._statements(body)
        return tuple(block)

    def _statements(self, body: tuple[tile.Statement, ...]) -> None:
        """Emit statements in order, those of a group together."""
        grouped: set[str] = set()
        for statement in body:
            group = self.groups.get(statement.name)
            if group is not None:
                names = [member.nest for _, member in group.members()]
                members = [each for each in body if each.name in names]
                nests = {each.name: each for each in members if isinstance(each, tile.Nest)}
                if self._group(group, nests):
                    grouped |= set(names)
            if statement.name not in grouped:
                self._statement(statement)

    def _group(self, group: tile.Group, nests: Mapping[str, tile.Nest]) -> bool:
        """Emit a group; where that cannot be done it is entered in the context's misfits."""
        try:
            with self._work(group.name):
                emit_group(self.context, group, nests)
        except Refusal as refusal:
            names = (n for n in refusal.buffers if n in self.context.rows)
            self.context.misfits |= dict.fromkeys((group.name, *names), str(refusal))
            return False
        return True

    def _statement(self, statement: tile.Statement) -> None:
        if isinstance(statement, tile.Nest):
            self._nest(statement)
        elif isinstance(statement, tile.While):
            register = self.builder.unique_name("$continue")
            if statement.iterations:
                condition = self._counted(register, statement.iterations)
            else:
                with self.builder.nested() as condition:
                    self._statements(statement.condition)
                    self._load_register(register, statement.predicate)
            body = self._block(statement.body)
            self.builder.block.append(While(tuple(condition), register, body, statement.iterations))
        elif isinstance(statement, tile.Call):
            self._call(statement)
        elif isinstance(statement, tile.Exchange):
            self._exchange(statement)
        else:
            register = self.builder.unique_name("$arm")
            self._load_register(register, statement.selector)
            arms = tuple(self._block(arm) for arm in statement.arms)
            self.builder.block.append(Branch(register, arms))

    def _call(self, call: tile.Call) -> None:
        kernel = call.kernel
        if not isinstance(kernel, Program):
            raise InternalError(f"the kernel of {call.name} was not read")
        inputs, outputs = ([self._tile(n) for n in names] for names in (call.inputs, call.outputs))
        splice(self.builder, kernel, inputs, outputs)

    def _exchange(self, exchange: tile.Exchange) -> None:
        inputs = [self._tile(name) for name in exchange.inputs]
        outputs = [self._tile(name) for name in exchange.outputs]
        register = self.builder.unique_name("$rank")
        for instruction in exchange_instructions(
            exchange, inputs, outputs, register, queue=QUEUE, on=QUEUE_OWNERS[QUEUE]
        ):
            self.builder.emit(instruction)

    def _nest(self, nest: tile.Nest) -> None:
        with self._work(nest.name):
            emit_nest(self.context, nest, self.program.schedules[nest.name])

    @contextmanager
    def _work(self, name: str) -> Iterator[None]:
        """Enter what the statements that are emitted inside have to do."""
        block = self.builder.block
        before = len(block)
        yield
        self.context.works[name] = work_of(block[before:], self.context.costs.arch)

    def _counted(self, register: str, iterations: int) -> list[Statement]:
        """A condition that counts down, where it is known how often it holds."""
        self.builder.emit(RegisterMove(register=register, value=iterations + 1, on="sync"))
        left, one = Affine.of(register), -1
        return [RegisterAlu(register=register, op="add", a=left, b=one, on="sync")]

    def _load_register(self, register: str, buffer: str) -> None:
        """Load a scalar buffer into a register, through int32 when it is narrower."""
        name = buffer
        if self.program.buffers[buffer].dtype is PRED:
            name = self._widen(buffer)
        cell = Pattern(self._tile(name), self._tile(name).dtype, ((1, 1), (1, 1)))
        self.builder.emit(RegisterLoad(register=register, src=cell, on="sync"))

    def _widen(self, buffer: str) -> str:
        """Copy a pred scalar to a new int32 scalar."""
        wide = tile.Buffer(self.builder.unique_name(f"{buffer}.word"), S32, ())
        self.context.buffers[wide.name] = wide
        self.context.sources[wide.name] = self._source(wide)
        value = tile.Apply("convert", (tile.Load(buffer, PRED, ()),), S32)
        nest = tile.Nest(f"widen.{wide.name}", (), value, tile.Store(wide.name, ()))
        emit_nest(self.context, nest, tile.Schedule("vector", "", {}, ()))
        return wide.name


def _resident_bytes(program: tile.Program, sources: Mapping[str, Source]) -> dict[str, int]:
    """By nest: bytes per partition of the resident buffers that are live while it runs.

    Nests of a group run at the same time.
    """
    group_of = {m.nest: group.name for group in program.groups for _, m in group.members()}
    together: dict[str, list[tile.Nest]] = {}
    for nest in program.nests():
        together.setdefault(group_of.get(nest.name, nest.name), []).append(nest)
    homes = {name: each.home for name, each in sources.items() if each.home is not None}
    accessed = [{n for nest in each for n in _accessed(nest)} for each in together.values()]
    last_uses: dict[str, int] = {}
    for position, names in enumerate(accessed):
        last_uses |= {name: position for name in names if name in homes}
    found: dict[str, int] = {}
    live: dict[str, int] = {}
    for position, (names, nests) in enumerate(zip(accessed, together.values(), strict=True)):
        for name in names:
            if name in homes:
                live[name] = homes[name].tile.bytes_per_partition + ON_CHIP_ALIGNMENT
        found |= dict.fromkeys((nest.name for nest in nests), sum(live.values()))
        live = {name: held for name, held in live.items() if last_uses[name] > position}
    return found


def _accessed(nest: tile.Nest) -> set[str]:
    """The buffers that a nest reads or writes as data; run-time offsets are never resident."""
    parts = (nest.body, nest.finish)
    return {nest.target.buffer, *(load.buffer for part in parts for load in tile.loads(part))}

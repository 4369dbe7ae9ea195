"""Lower scheduled nests to a machine program: buffers become tiles, statements become blocks."""

from __future__ import annotations

from collections import Counter

from glia.arch import get_target
from glia.base.affine import ZERO
from glia.base.dtype import PRED, S32
from glia.base.errors import InternalError
from glia.isa.instructions.sync import RegisterLoad
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.box import storage_dtype
from glia.machine.emit.contraction_nest import ContractionEmitter
from glia.machine.emit.covering import InstructionCosts
from glia.machine.emit.layout import Dim, Home
from glia.machine.emit.nest import EmitContext
from glia.machine.emit.splice_kernels import splice
from glia.machine.emit.staging import Source
from glia.machine.emit.vector_nest import VectorNestEmitter
from glia.machine.ir import Binding, Branch, Program, Statement, While, walk
from glia.options import CompileOptions
from glia.tile import ir as tile
from glia.tile.contraction import PARTITIONS
from glia.tile.model_families import FAMILIES


def emit(program: tile.Program, options: CompileOptions) -> Program:
    """Emit a machine program for one core of the target; tiles are not placed yet."""
    return ProgramEmitter(program, options).emit()


class ProgramEmitter:
    """Lowers one tile program, statement by statement."""

    def __init__(self, program: tile.Program, options: CompileOptions) -> None:
        self.program = program
        self.target = options.target
        self.builder = BlockBuilder()
        self.emitted: dict[str, Counter[str]] = {}
        sources = {name: self._source(buffer) for name, buffer in program.buffers.items()}
        self.context = EmitContext(
            self.builder,
            InstructionCosts(get_target(options.target).arch),
            dict(program.buffers),
            sources,
            options.saturate_infinity,
            FAMILIES[options.model_type],
        )

    def emit(self) -> Program:
        body = self._block(self.program.body)
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
            notes=self.program.notes,
            emitted={nest: dict(sorted(each.items())) for nest, each in self.emitted.items()},
        )

    def _used_tiles(self, body: tuple[Statement, ...]) -> dict[str, Tile]:
        """The tiles that instructions or bindings name; a packed constant leaves its own unused."""
        used = {p.tile.name for i in walk(body) for p in i.patterns()}
        used |= {self._tile(n).name for n in (*self.program.inputs, *self.program.outputs)}
        return {name: made for name, made in self.builder.tiles.items() if name in used}

    def _source(self, buffer: tile.Buffer) -> Source:
        layout = self.program.layouts.get(buffer.name)
        dtype = storage_dtype(buffer.dtype)
        if layout is None or layout.memory == "HBM":
            made = self.builder.tile(buffer.name, Memory.HBM, dtype, 1, buffer.elements)
            value = self.program.constants.get(buffer.name)
            return Source(made, buffer.shape, constant=value)
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
            for statement in body:
                self._statement(statement)
        return tuple(block)

    def _statement(self, statement: tile.Statement) -> None:
        if isinstance(statement, tile.Nest):
            self._nest(statement)
        elif isinstance(statement, tile.While):
            register = self.builder.unique_name("$continue")
            with self.builder.nested() as condition:
                for inner in statement.condition:
                    self._statement(inner)
                self._load_register(register, statement.predicate)
            body = self._block(statement.body)
            self.builder.block.append(While(tuple(condition), register, body))
        elif isinstance(statement, tile.Call):
            self._call(statement)
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

    def _nest(self, nest: tile.Nest) -> None:
        schedule = self.program.schedules[nest.name]
        kind: type[ContractionEmitter | VectorNestEmitter] = (
            ContractionEmitter if schedule.engine == "tensor" else VectorNestEmitter
        )
        with self.builder.counted() as count:
            kind(self.context, nest, schedule).emit()
        self.emitted[nest.name] = count

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
        VectorNestEmitter(self.context, nest, tile.Schedule("vector", "", {}, ())).emit()
        return wide.name

"""The tile level's text form: what `print_program` writes, `parse_program` reads back.

```
program "main" {
  input x f32[512,768]
  output y f32[512,64] in SBUF dim 0
  constant w f32[768,64]
  nest dot.0 [m:512 n:64 | k:768 add f32]
    y[m, n] = multiply.f32(x[m, k], w[k, n])
    finish tanh.f32(acc.f32)
    schedule tensor partition=m tiles=[m:128 n:64] order=[m] contract=k stationary=left
}
```

A load may be followed by `where (expression < extent, ...) else value` and by
`at (dimension: load <= limit, ...)`; `or drop` after a limit means that the offset does not clamp.
A schedule in blocks goes on with `blocks=[m:512 copies 2 loads [left] k:128]`, outermost first.
`scan_add.f32(i1, factor, term)` is a recurrence along the axis i1.
`[i0:4 i1:8 | k1:64 places s32 i1]` is a search for the places of the greatest, by rank i1.
`let %0 = ...` before the store names an expression that occurs several times. Groups stand before
the first statement:

```
  group rows.0 on_chip [t.0] {
    for 4096 by 128 copies 2 {
      member reduce.0 [i0] schedule vector partition=i0 tiles=[i0:128] order=[]
    }
  }
```

An exchange with other ranks stands as
`exchange exchange.0 "all-reduce" "add" (x) (t.0) groups [[0 1] [2 3]]`.

Arrays of constants are not printed; `parse_program` takes them as a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import DTYPES, TF32, DType
from glia.base.loc import UNKNOWN, Loc
from glia.base.scanner import Scanner
from glia.graph.ops.scalar_regions import MONOIDS
from glia.tile.ir import (
    PLACES,
    SCANS,
    Accumulator,
    Apply,
    Axis,
    BlockLoop,
    Branch,
    Buffer,
    Call,
    Dynamic,
    Exchange,
    Expr,
    Group,
    Guard,
    Index,
    Layout,
    Literal,
    Load,
    Member,
    Nest,
    Program,
    Reduction,
    Scan,
    Schedule,
    SharedLoop,
    Statement,
    Store,
    While,
)

ROLES = ("input", "output", "constant", "temporary", "shared")
KEYWORDS = (
    *ROLES, "acc", "alias", "as", "at", "branch", "by", "call", "copies", "dim", "else", "finish",
    "for", "group", "in", "index", "inf", "let", "loc", "member", "nan", "nest", "note", "on_chip",
    "schedule", "where", "while", "whole",
)  # fmt: skip
MAXIMUM_NESTING = 200


def print_program(program: Program, *, with_locations: bool = False) -> str:
    """The program as text, ending in a newline."""
    lines = [f"program {json.dumps(program.name)} {{"]
    for name in (*program.inputs, *program.outputs):
        lines.append(f"  {_declaration(program, program.buffers[name])}")
    for name, buffer in program.buffers.items():
        if name not in program.inputs and name not in program.outputs:
            lines.append(f"  {_declaration(program, buffer)}")
    lines += [f"  alias {output} {source}" for output, source in program.aliases]
    lines += [f"  note {json.dumps(note)}" for note in program.notes]
    lines += [f"  cores {program.cores}"] if program.cores > 1 else []
    for group in program.groups:
        lines += _group(group)
    lines += _block(program, program.body, "  ", with_locations)
    return "\n".join([*lines, "}"]) + "\n"


def print_nest(nest: Nest) -> str:
    """One nest as text."""
    return "\n".join(_nest(nest, "", None, False))


def print_expression(expression: Expr, names: Mapping[int, str] | None = None) -> str:
    """A scalar expression as text; a part whose identity is in `names` is printed as that name."""
    if names and id(expression) in names:
        return names[id(expression)]
    if isinstance(expression, Load):
        return _load(expression)
    if isinstance(expression, Literal):
        return f"{_number(expression.value)}:{expression.dtype}"
    if isinstance(expression, Index):
        return f"index.{expression.dtype}({expression.expression})"
    if isinstance(expression, Accumulator):
        return f"acc.{expression.dtype}"
    inside = ", ".join(print_expression(argument, names) for argument in expression.args)
    if isinstance(expression, Scan):
        inside = f"{expression.axis}, {inside}"
    return f"{expression.function}.{expression.dtype}({inside})"


def _shared_parts(nest: Nest) -> list[Apply]:
    """The applications that occur more than once as one object, operands first."""
    counts: dict[int, int] = {}
    order: list[Apply] = []

    def visit(part: Expr) -> None:
        if not isinstance(part, Apply):
            return
        counts[id(part)] = counts.get(id(part), 0) + 1
        if counts[id(part)] == 1:
            for argument in part.args:
                visit(argument)
            order.append(part)

    visit(nest.body)
    if nest.finish is not None:
        visit(nest.finish)
    return [part for part in order if counts[id(part)] > 1]


def _declaration(program: Program, buffer: Buffer) -> str:
    text = f"{buffer.role} {buffer.name} {buffer.dtype}[{','.join(map(str, buffer.shape))}]"
    layout = program.layouts.get(buffer.name)
    if layout is not None:
        text += f" in {layout.memory}"
        if layout.partition_dim >= 0:
            text += f" dim {layout.partition_dim}"
    return text


def _group(group: Group) -> Iterator[str]:
    whole = " whole" if group.is_whole else ""
    yield f"  group {group.name}{whole} on_chip [{' '.join(group.on_chip)}] {{"
    yield from _shared_loop(group.loop, "    ")
    yield "  }"


def _shared_loop(loop: SharedLoop, indent: str) -> Iterator[str]:
    yield f"{indent}for {loop.extent} by {loop.block} copies {loop.copies} {{"
    for each in loop.body:
        if isinstance(each, SharedLoop):
            yield from _shared_loop(each, indent + "  ")
        else:
            axes = " ".join(each.axes)
            yield f"{indent}  member {each.nest} [{axes}] {_schedule(each.schedule)}"
    yield f"{indent}}}"


def _block(
    program: Program, body: tuple[Statement, ...], indent: str, with_locations: bool
) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Nest):
            schedule = program.schedules.get(statement.name)
            yield from _nest(statement, indent, schedule, with_locations)
        elif isinstance(statement, While):
            times = f" times {statement.iterations}" if statement.iterations else ""
            yield f"{indent}while {statement.name} {statement.predicate}{times} {{"
            yield from _block(program, statement.condition, indent + "  ", with_locations)
            yield f"{indent}}} {{"
            yield from _block(program, statement.body, indent + "  ", with_locations)
            yield f"{indent}}}"
        elif isinstance(statement, Call):
            yield indent + _call(statement, with_locations)
        elif isinstance(statement, Exchange):
            yield indent + _exchange(statement, with_locations)
        else:
            yield f"{indent}branch {statement.name} {statement.selector}"
            for arm in statement.arms:
                yield f"{indent}{{"
                yield from _block(program, arm, indent + "  ", with_locations)
                yield f"{indent}}}"


def _call(call: Call, with_locations: bool) -> str:
    inputs, outputs = (" ".join(names) for names in (call.inputs, call.outputs))
    text = f"call {call.name} {json.dumps(call.target)} {json.dumps(call.config)}"
    return f"{text} ({inputs}) ({outputs})" + _location(call.loc, with_locations)


def _exchange(exchange: Exchange, with_locations: bool) -> str:
    inputs, outputs = (" ".join(names) for names in (exchange.inputs, exchange.outputs))
    groups = " ".join(f"[{' '.join(map(str, group))}]" for group in exchange.groups)
    text = f'exchange {exchange.name} {json.dumps(exchange.kind)} "{exchange.function}"'
    location = _location(exchange.loc, with_locations)
    return f"{text} ({inputs}) ({outputs}) groups [{groups}]{location}"


def _location(loc: Loc, with_locations: bool) -> str:
    if not with_locations or loc == UNKNOWN:
        return ""
    return f" loc {json.dumps(loc.file)} {loc.line} {json.dumps(loc.name)}"


def _nest(nest: Nest, indent: str, schedule: Schedule | None, with_locations: bool) -> list[str]:
    axes = [_axes(nest.parallel_axes)]
    if nest.reduction:
        rank = f" {nest.reduction.rank}" if nest.reduction.rank else ""
        function = f"{nest.reduction.function} {nest.reduction.dtype}{rank}"
        axes += [f"| {_axes(nest.reduced_axes)} {function}"]
    lines = [f"{indent}nest {nest.name} [{' '.join(axes)}]"]
    names: dict[int, str] = {}
    for part in _shared_parts(nest):
        text = print_expression(part, names)
        names[id(part)] = f"%{len(names)}"
        lines.append(f"{indent}  let {names[id(part)]} = {text}")
    target = _store(nest.target)
    sign = f"{nest.target.combine}=" if nest.target.combine else "="
    lines.append(f"{indent}  {target} {sign} {print_expression(nest.body, names)}")
    if nest.finish is not None:
        lines.append(f"{indent}  finish {print_expression(nest.finish, names)}")
    if schedule is not None:
        lines.append(f"{indent}  {_schedule(schedule)}")
    if location := _location(nest.loc, with_locations):
        lines.append(f"{indent} {location}")
    return lines


def _axes(axes: tuple[Axis, ...]) -> str:
    return " ".join(f"{axis.name}:{axis.extent}" for axis in axes)


def _schedule(schedule: Schedule) -> str:
    tiles = " ".join(f"{axis}:{extent}" for axis, extent in schedule.tiles.items())
    text = f"schedule {schedule.engine} partition={schedule.partition or '-'} tiles=[{tiles}]"
    text += f" order=[{' '.join(schedule.order)}]"
    if schedule.contract:
        text += f" contract={schedule.contract}"
    if schedule.stationary:
        text += f" stationary={schedule.stationary}"
    if schedule.packed:
        text += f" packed=[{' '.join(schedule.packed)}]"
    if schedule.coarse:
        blocks = " ".join(f"{axis}:{extent}" for axis, extent in schedule.coarse.items())
        text += f" coarse=[{blocks}]"
    if schedule.blocks:
        text += f" blocks=[{' '.join(map(_block_loop, schedule.blocks))}]"
    return text


def _block_loop(loop: BlockLoop) -> str:
    copies = f" copies {loop.copies}" if loop.copies > 1 else ""
    loaded = f" loads [{' '.join(loop.loads)}]" if loop.loads else ""
    return f"{loop.axis}:{loop.extent}{copies}{loaded}"


def _load(load: Load) -> str:
    text = f"{load.buffer}[{', '.join(map(str, load.index))}]"
    if load.dtype is TF32:
        text += f" as {TF32}"
    if load.guards:
        checks = ", ".join(f"{guard.expression} < {guard.extent}" for guard in load.guards)
        text += f" where ({checks}) else {_number(load.fill)}"
    return text + _offsets(load.dynamic)


def _store(store: Store) -> str:
    index = ", ".join(map(str, store.index))
    return f"{store.buffer}[{index}]" + _offsets(store.dynamic)


def _offsets(dynamic: tuple[Dynamic, ...]) -> str:
    if not dynamic:
        return ""
    parts = [
        f"{offset.dimension}: {_load(offset.load)} <= {offset.limit}"
        + ("" if offset.clamps else " or drop")
        for offset in dynamic
    ]
    return f" at ({', '.join(parts)})"


def _number(value: float | int) -> str:
    return repr(value) if isinstance(value, float) else str(int(value))


def parse_program(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Program:
    """The program a text form describes; TextError says what does not parse.

    `constants` gives the arrays of the constant buffers.
    """
    scanner = Scanner(text)
    program = _Parser(scanner).program(constants or {})
    if scanner.peek():
        scanner.fail("expected the end")
    return program


class _Parser:
    """Recursive descent over the grammar above."""

    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.buffers: dict[str, Buffer] = {}
        self.layouts: dict[str, Layout] = {}
        self.schedules: dict[str, Schedule] = {}
        self.parts: dict[str, Expr] = {}

    def program(self, constants: Mapping[str, np.ndarray]) -> Program:
        scan = self.scanner
        scan.expect("program")
        name = self.string()
        scan.expect("{")
        aliases, notes = [], []
        while scan.peek() in ROLES:
            self.declaration()
        while scan.accept("alias"):
            aliases.append((self.buffer_name(), self.buffer_name()))
        while scan.accept("note"):
            notes.append(self.string())
        cores = int(self.number(scan.take())) if scan.accept("cores") else 1
        groups = []
        while scan.accept("group"):
            groups.append(self.group())
        body = self.block(0)
        roles: dict[str, list[str]] = {role: [] for role in ROLES}
        for buffer in self.buffers.values():
            roles[buffer.role].append(buffer.name)
        return Program(name, self.buffers, body, tuple(roles["input"]), tuple(roles["output"]),
                       dict(constants), tuple(aliases), self.layouts, self.schedules,
                       tuple(groups), tuple(notes), cores)  # fmt: skip

    def declaration(self) -> None:
        scan = self.scanner
        role, name = scan.take(), self.name()
        dtype, shape = self.dtype(scan.take()), self.shape()
        if name in self.buffers:
            scan.fail(f"buffer {name} is declared twice")
        self.buffers[name] = Buffer(name, dtype, shape, role)
        if scan.accept("in"):
            memory = scan.take()
            dimension = scan.integer() if scan.accept("dim") else -1
            self.layouts[name] = Layout(memory, dimension)

    def group(self) -> Group:
        scan, name = self.scanner, self.name()
        is_whole = scan.accept("whole")
        scan.expect("on_chip")
        on_chip = self.words()
        scan.expect("{")
        scan.expect("for")
        loop = self.shared_loop(0)
        scan.expect("}")
        return Group(name, loop, on_chip, is_whole)

    def shared_loop(self, depth: int) -> SharedLoop:
        """A loop after `for`, up to and with the closing brace."""
        scan, body = self.scanner, list[SharedLoop | Member]()
        if depth > MAXIMUM_NESTING:
            scan.fail(f"more than {MAXIMUM_NESTING} nested loops")
        extent = scan.integer()
        scan.expect("by")
        block = scan.integer()
        scan.expect("copies")
        copies = scan.integer()
        scan.expect("{")
        while not scan.accept("}"):
            if scan.accept("for"):
                body.append(self.shared_loop(depth + 1))
                continue
            scan.expect("member")
            name, axes = self.name(), self.words()
            scan.expect("schedule")
            body.append(Member(name, axes, self.schedule()))
        return SharedLoop(extent, block, tuple(body), copies)

    def words(self) -> tuple[str, ...]:
        """Names in brackets."""
        self.scanner.expect("[")
        found = []
        while not self.scanner.accept("]"):
            found.append(self.name())
        return tuple(found)

    def shape(self) -> tuple[int, ...]:
        self.scanner.expect("[")
        found = []
        while not self.scanner.accept("]"):
            found.append(self.scanner.integer())
            self.scanner.accept(",")
        return tuple(found)

    def block(self, depth: int) -> tuple[Statement, ...]:
        """Statements up to and with the closing brace."""
        scan, found = self.scanner, list[Statement]()
        if depth > MAXIMUM_NESTING:
            scan.fail(f"more than {MAXIMUM_NESTING} nested blocks")
        while not scan.accept("}"):
            if scan.accept("nest"):
                found.append(self.nest())
            elif scan.accept("while"):
                name, predicate = self.name(), self.buffer_name()
                iterations = scan.integer() if scan.accept("times") else 0
                scan.expect("{")
                condition = self.block(depth + 1)
                scan.expect("{")
                body = self.block(depth + 1)
                found.append(While(name, condition, predicate, body, iterations))
            elif scan.accept("branch"):
                name, selector, arms = self.name(), self.buffer_name(), []
                while scan.accept("{"):
                    arms.append(self.block(depth + 1))
                found.append(Branch(name, selector, tuple(arms)))
            elif scan.accept("call"):
                found.append(self.call())
            elif scan.accept("exchange"):
                found.append(self.exchange())
            else:
                scan.fail("expected a statement")
        return tuple(found)

    def nest(self) -> Nest:
        scan, name = self.scanner, self.name()
        scan.expect("[")
        axes, reduction = self.axes(), None
        if scan.accept("|"):
            reduced = self.axes()
            names = tuple(axis.name for axis in reduced)
            function, dtype = scan.take(), self.dtype(scan.take())
            rank = scan.take() if function == PLACES else ""
            reduction = Reduction(names, function, dtype, rank)
            axes += reduced
            scan.expect("]")
        self.parts = {}
        while scan.accept("let"):
            part = scan.take()
            scan.expect("=")
            self.parts[part] = self.expression(0)
        target = self.store()
        body = self.expression(0)
        finish = self.expression(0) if scan.accept("finish") else None
        if scan.accept("schedule"):
            self.schedules[name] = self.schedule()
        return Nest(name, axes, body, target, reduction, finish, self.location())

    def location(self) -> Loc:
        if not self.scanner.accept("loc"):
            return UNKNOWN
        return Loc(self.string(), self.scanner.integer(), self.string())

    def call(self) -> Call:
        name, target, config = self.name(), self.string(), self.string()
        inputs, outputs = self.buffer_names(), self.buffer_names()
        return Call(name, target, config, inputs, outputs, self.location())

    def exchange(self) -> Exchange:
        name, kind, function = self.name(), self.string(), self.string()
        inputs, outputs = self.buffer_names(), self.buffer_names()
        scan, groups = self.scanner, []
        scan.expect("groups")
        scan.expect("[")
        while not scan.accept("]"):
            scan.expect("[")
            ranks = []
            while not scan.accept("]"):
                ranks.append(scan.integer())
            groups.append(tuple(ranks))
        return Exchange(name, kind, function, tuple(groups), inputs, outputs, self.location())

    def buffer_names(self) -> tuple[str, ...]:
        """Buffers in parentheses."""
        self.scanner.expect("(")
        found = []
        while not self.scanner.accept(")"):
            found.append(self.buffer_name())
        return tuple(found)

    def axes(self) -> tuple[Axis, ...]:
        """Axes up to `|`, the reduction's function, or with the closing bracket."""
        found = []
        while self.scanner.peek() not in ("|", "]"):
            name = self.scanner.take()
            if not self.scanner.accept(":"):
                self.scanner.fail("expected an axis")
            found.append(Axis(name, self.scanner.integer()))
            if self._at_function():
                return tuple(found)
        self.scanner.accept("]")
        return tuple(found)

    def _at_function(self) -> bool:
        return self.scanner.peek() in (*MONOIDS, PLACES)

    def store(self) -> Store:
        scan, name = self.scanner, self.buffer_name()
        index, dynamic = self.index(), self.offsets(0)
        combine = "" if scan.peek() == "=" else scan.take()
        scan.expect("=")
        return Store(name, index, dynamic, combine)

    def schedule(self) -> Schedule:
        scan, engine = self.scanner, self.scanner.take()
        self.key("partition")
        partition = "" if scan.accept("-") else scan.take()
        self.key("tiles")
        scan.expect("[")
        tiles = {axis.name: axis.extent for axis in self.axes()}
        self.key("order")
        order = self.words()
        extra = {"contract": "", "stationary": ""}
        while scan.peek() in extra:
            key = scan.take()
            scan.expect("=")
            extra[key] = scan.take()
        packed: tuple[str, ...] = ()
        if scan.peek() == "packed":
            self.key("packed")
            packed = self.words()
        coarse: dict[str, int] = {}
        if scan.peek() == "coarse":
            self.key("coarse")
            scan.expect("[")
            coarse = {axis.name: axis.extent for axis in self.axes()}
        blocks = self.block_loops()
        return Schedule(
            engine, partition, tiles, order, **extra, packed=packed, coarse=coarse, blocks=blocks
        )

    def block_loops(self) -> tuple[BlockLoop, ...]:
        """What follows `blocks=`, or no loops where that is missing."""
        scan, found = self.scanner, list[BlockLoop]()
        if scan.peek() != "blocks":
            return ()
        self.key("blocks")
        scan.expect("[")
        while not scan.accept("]"):
            axis = self.name()
            scan.expect(":")
            extent = scan.integer()
            copies = scan.integer() if scan.accept("copies") else 1
            loads = self.words() if scan.accept("loads") else ()
            found.append(BlockLoop(axis, extent, copies, loads))
        return tuple(found)

    def expression(self, depth: int) -> Expr:
        scan = self.scanner
        if depth > MAXIMUM_NESTING:
            scan.fail(f"an expression nested more than {MAXIMUM_NESTING} deep")
        token = scan.take()
        if token in self.parts:
            return self.parts[token]
        if token in self.buffers and scan.peek() == "[":
            return self.load(token, depth)
        if token.lstrip("-")[:1].isdigit() or token.lstrip("-") in ("inf", "nan"):
            scan.expect(":")
            return Literal(self.number(token), self.dtype(scan.take()))
        function, _, suffix = token.rpartition(".")
        dtype = self.dtype(suffix)
        if function == "acc":
            return Accumulator(dtype)
        scan.expect("(")
        if function == "index":
            value = Index(scan.affine(), dtype)
            scan.expect(")")
            return value
        axis = scan.take() if function in SCANS else ""
        scan.accept(",")
        args = []
        while not scan.accept(")"):
            args.append(self.expression(depth + 1))
            scan.accept(",")
        if axis:
            return Scan(function, tuple(args), dtype, axis)
        return Apply(function, tuple(args), dtype)

    def load(self, buffer: str, depth: int) -> Load:
        scan, index = self.scanner, self.index()
        dtype = self.buffers[buffer].dtype
        if scan.accept("as"):
            scan.expect(str(TF32))
            dtype = TF32
        guards: list[Guard] = []
        fill: float | int = 0
        if scan.accept("where"):
            scan.expect("(")
            while not scan.accept(")"):
                expression = scan.affine()
                scan.expect("<")
                guards.append(Guard(expression, scan.integer()))
                scan.accept(",")
            scan.expect("else")
            fill = self.number(scan.take())
        return Load(buffer, dtype, index, tuple(guards), fill, self.offsets(depth))

    def index(self) -> tuple[Affine, ...]:
        self.scanner.expect("[")
        found = []
        while not self.scanner.accept("]"):
            found.append(self.scanner.affine())
            self.scanner.accept(",")
        return tuple(found)

    def offsets(self, depth: int) -> tuple[Dynamic, ...]:
        scan, found = self.scanner, []
        if depth > MAXIMUM_NESTING:
            scan.fail(f"an expression nested more than {MAXIMUM_NESTING} deep")
        if not scan.accept("at"):
            return ()
        scan.expect("(")
        while not scan.accept(")"):
            dimension = scan.integer()
            scan.expect(":")
            load = self.load(self.buffer_name(), depth + 1)
            scan.expect("<=")
            limit = scan.integer()
            drops = scan.accept("or")
            if drops:
                scan.expect("drop")
            found.append(Dynamic(dimension, load, limit, clamps=not drops))
            scan.accept(",")
        return tuple(found)

    def key(self, name: str) -> None:
        self.scanner.expect(name)
        self.scanner.expect("=")

    def name(self) -> str:
        token = self.scanner.peek()
        if not (token[:1].isalpha() or token[:1] == "_"):
            self.scanner.fail("expected a name")
        return self.scanner.take()

    def buffer_name(self) -> str:
        if self.scanner.peek() not in self.buffers:
            self.scanner.fail("expected a buffer")
        return self.scanner.take()

    def dtype(self, name: str) -> DType:
        if name not in DTYPES:
            self.scanner.fail(f"no dtype is named {name!r}")
        return DTYPES[name]

    def number(self, token: str) -> float | int:
        try:
            return int(token, 0)
        except ValueError:
            pass
        try:
            return float(token)
        except ValueError:
            self.scanner.fail(f"{token!r} is no number")
            raise

    def string(self) -> str:
        token = self.scanner.peek()
        if not token.startswith('"'):
            self.scanner.fail("expected a string")
        try:
            return str(json.loads(self.scanner.take()))
        except ValueError as problem:
            self.scanner.fail(f"{token!r} is no string: {problem}")

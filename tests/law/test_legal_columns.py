"""Asked of columns or of one instruction after the other, the law of the machine level is one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from glia.arch import Target, get_target
from glia.base.affine import Affine
from glia.base.dtype import BF16, F8E4M3FN, S32
from glia.frontend.hlo import import_hlo
from glia.isa.instructions.sync import RegisterMove
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Signal, Wait
from glia.kernels.flash_attention import flash_attention
from glia.kernels.matmul import matmul_fully_blocked
from glia.kernels.softmax import softmax
from glia.machine.ir import Branch, Loop, Program, Statement, While
from glia.machine.legal import program_violations, violations_by_instruction
from glia.nki.run.trace import trace
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from support.clean_programs import clean
from support.corpus import PROGRAMS, hlo_bytes

FAULTS = 60  # planted in each program
COMPILED = ("cond", "mlp", "rms_norm", "while_loop")


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _programs() -> dict[str, Program]:
    found = {name: each.program for name, each in clean().items()}
    for source in PROGRAMS:
        if source.name in COMPILED:
            options = CompileOptions(auto_cast="none")
            found[source.name] = run_pipeline(import_hlo(hlo_bytes(source)), options)
    found["softmax"] = trace(softmax, _zeros(300, 64))
    found["matmul"] = trace(matmul_fully_blocked, _zeros(512, 2048), _zeros(512, 1024))
    rows, columns = _zeros(1, 1, 64, 256), _zeros(1, 1, 256, 64)
    found["attention"] = trace(flash_attention, rows, rows, columns)
    return found


LEGAL = _programs()
Rng = random.Random
Change = Callable[[Rng, Any], Any]


def _expression(rng: Rng, old: Affine) -> Affine:
    name = rng.choice(["i", "$index", *old.variables])
    added = Affine.build({name: rng.choice([0, 1, 64])}, rng.choice([-33, -1, 1, 32, 1 << 20]))
    return rng.choice([added, old + added, Affine((), 1 << 70)])


def _dims(rng: Rng, old: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    place = rng.randrange(len(old)) if old else 0
    step, count = old[place] if old else (1, 1)
    other = rng.choice([(0, count), (-step, count), (step, 0), (step, count + 1), (step, 1 << 60)])
    return rng.choice([(), (*old[:place], other, *old[place + 1 :]), (*old, (1, 1)), old[1:]])


def _pattern(rng: Rng, old: Pattern) -> Pattern:
    tile = old.tile
    return rng.choice(
        [
            lambda: replace(old, offset=_expression(rng, old.offset)),
            lambda: replace(old, partition=_expression(rng, old.partition)),
            lambda: replace(old, dims=_dims(rng, old.dims)),
            lambda: replace(old, dtype=rng.choice([BF16, S32, F8E4M3FN])),
            lambda: replace(old, tile=replace(tile, name="nowhere")),
            lambda: replace(old, tile=replace(tile, memory=rng.choice([*Memory]))),
            lambda: replace(old, tile=replace(tile, elements=tile.elements // 2)),
        ]
    )()


def _instruction(rng: Rng, old: Instr) -> Instr:
    operands = [name for name in old.operand_declarations if getattr(old, name) is not None]
    changed = rng.choice(operands) if operands and rng.random() < 0.7 else ""
    value = getattr(old, changed) if changed else None
    if isinstance(value, Pattern):
        return replace(old, **{changed: rng.choice([_pattern(rng, value), None, 1.0, "x"])})
    if value is not None:
        return replace(old, **{changed: None})
    expressions = [n for n, v in old.attributes().items() if isinstance(v, Affine)]
    if expressions and rng.random() < 0.5:
        return replace(old, **{expressions[0]: _expression(rng, getattr(old, expressions[0]))})
    given = {each.name for each in fields(old) if each.init}
    named = [n for n, v in old.attributes().items() if n in given and isinstance(v, str | int)]
    other = {rng.choice(named): rng.choice(["add", "nothing", 3])} if named else {}
    many = tuple(Signal(f"s{number}") for number in range(300))
    return replace(
        old,
        **rng.choice(
            [
                other,
                {"on": rng.choice(["tensor", "vector", "gpsimd", "nobody"])},
                {"waits": (Wait("s", _expression(rng, Affine())),)},
                {"signals": many},
                {"queue": "another"},
            ]
        ),
    )


def _statement(rng: Rng, old: Statement) -> Statement:
    """The same with one thing changed, here or further inside."""
    if isinstance(old, Loop):
        if rng.random() < 0.2:
            return replace(old, trips=rng.choice([0, old.trips + 1, 1 << 50]))
        name = rng.choice(["i", "k", "j"]) if rng.random() < 0.1 else old.variable
        return replace(old, variable=name, body=_block(rng, old.body))
    if isinstance(old, While):
        if rng.random() < 0.2:
            return replace(old, register="unset")
        return replace(old, body=_block(rng, old.body))
    if isinstance(old, Branch):
        if rng.random() < 0.2:
            return Branch("unset", old.arms) if rng.random() < 0.5 else Branch(old.register, ())
        return replace(old, arms=tuple(_block(rng, arm) for arm in old.arms))
    return _instruction(rng, old)


def _block(rng: Rng, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    if not body:
        return body
    place = rng.randrange(len(body))
    setting = (RegisterMove(register="index", value=Affine()),) if rng.random() < 0.2 else ()
    place_of = rng.randrange(len(body))
    changed = (*body[:place], _statement(rng, body[place]), *body[place + 1 :])
    return (*changed[:place_of], *setting, *changed[place_of:])


def _program(rng: Rng, old: Program) -> Program:
    name = rng.choice([*old.tiles])
    written = {p.tile.name for i in old.instructions() for p in i.written_patterns()}
    constants = {rng.choice(sorted(written)): np.zeros(1)}
    addresses = {**old.addresses, name: rng.choice([-1, 1, 3000, 1 << 60])}
    return rng.choice(
        [
            lambda: replace(old, addresses=addresses),
            lambda: replace(old, constants=constants),
            lambda: replace(old, tiles={n: t for n, t in old.tiles.items() if n != name}),
            *[lambda: replace(old, body=_block(rng, old.body))] * 7,
        ]
    )()


def _said(
    law: Callable[[Program, Target], Iterator[str]], program: Program, target: Target
) -> list[str]:
    """What is said against a program; arguments of the wrong type may end that early."""
    try:
        return list(law(program, target))
    except (TypeError, AttributeError, IndexError) as problem:
        return [repr(problem)]


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_legal_is_found_so_from_columns(name: str) -> None:
    program = LEGAL[name]
    target = get_target(program.target)
    assert not list(violations_by_instruction(program, target))
    assert not list(program_violations(program, target))


@pytest.mark.parametrize("name", LEGAL)
def test_columns_and_instructions_find_the_same(name: str) -> None:
    rng = random.Random(name)
    illegal = 0
    for _ in range(FAULTS):
        program = _program(rng, LEGAL[name])
        target = get_target(rng.choice(["trn1", "trn2", "trn3"]))
        expected = _said(violations_by_instruction, program, target)
        assert _said(program_violations, program, target) == expected
        illegal += bool(expected)
    assert illegal > FAULTS // 4

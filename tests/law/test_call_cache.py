"""A call answered from the cache issues what the same call issues without it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glia.nki.isa as nisa
import glia.nki.language as nl
from glia.base.errors import CompileError
from glia.isa.kit import Instr
from glia.machine.ir import walk
from glia.nki.issue.call_cache import IssueFunction, memoize_calls
from glia.nki.names.targets import platform_target
from glia.nki.run.launch import bind
from glia.nki.session.recorder import Recorder
from glia.nki.session.session import running
from glia.nki.tensors.nki_tensor import NkiTensor

CALLS = 400
NUMBERS = (0, 0.0, -0.0, 1, 1.0, True, 2.5, np.float32(1), np.int64(1), float("nan"))
OPERATORS = (nl.add, nl.multiply, nl.maximum, np.add, "add", np.logical_and, nl.bitwise_or)
DTYPES = (nl.float32, nl.bfloat16, nl.int32)
ENGINES = (nisa.engine.unknown, nisa.engine.vector, nisa.engine.gpsimd)


class _Operands:
    """Tiles to choose parts of."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tiles = [nl.ndarray((128, 64), dtype) for dtype in DTYPES for _ in range(2)]
        self.banks = [nl.ndarray((128, 64), nl.float32, buffer=nl.psum) for _ in range(3)]

    def part(self, tiles: list[NkiTensor] | None = None) -> NkiTensor:
        tile = self.rng.choice(tiles or self.tiles)
        row, column = self.rng.choice((0, 0, 32, 64)), self.rng.choice((0, 0, 1, 8))
        step = self.rng.choice((None, None, 1, 2))
        return tile[row : row + self.rng.choice((32, 64)), column : column + 16 : step]

    def any(self, *choices: Any) -> Any:
        return self.rng.choice(choices)


def _copy(have: _Operands) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return nisa.tensor_copy, (have.part(), have.part()), {"engine": have.any(*ENGINES)}


def _scalar(have: _Operands) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    operand = have.any(*NUMBERS, have.part())
    given = {"op0": have.any(*OPERATORS), "operand0": operand, "name": have.any(None, "a", "b")}
    return nisa.tensor_scalar, (have.part(), have.part()), given


def _tensor(have: _Operands) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    operands = {"data1": have.part(), "data2": have.part(), "op": have.any(*OPERATORS)}
    return nisa.tensor_tensor, (have.part(),), operands


def _product(have: _Operands) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    held, streamed = have.tiles[0], have.tiles[1]
    given: dict[str, Any] = {"accumulate": have.any(None, None, True, False)}
    if have.any(True, False):
        given["tile_position"] = have.any((), (0, 0), (0.0, 0), (False, 0))
    dst = have.any(*have.banks)
    return nisa.nc_matmul, (dst[:64], held[:, :64], streamed[:, : have.any(32, 64)]), given


def _drained(have: _Operands) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return nisa.memset, (have.any(*have.banks), have.any(*NUMBERS)), {}


def _reduced(have: _Operands) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    given = {"axis": have.any(1, (1,), [1], 1.0, True), "negate": have.any(True, False)}
    return nisa.tensor_reduce, (have.part()[:, :1], nl.add, have.part()), given


KINDS = (_copy, _scalar, _tensor, _product, _drained, _reduced)


def _said(call: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> str:
    """What a call refuses, without naming the operands' place."""
    try:
        call(*args, **given)
    except CompileError as problem:
        return problem.code
    return ""


def _record(seed: int, is_cached: bool) -> tuple[list[Instr], list[str], list[bool]]:
    """The instructions of a kernel of random calls, what was refused, which calls name engines."""
    said: list[str] = []
    named: list[bool] = []

    def kernel() -> None:
        have = _Operands(random.Random(seed))
        for _ in range(CALLS):
            function, args, given = have.rng.choice(KINDS)(have)
            said.append(_said(function if is_cached else function.issue_uncached, args, given))
            named.append(bool(session.engines_chosen))
            session.engines_chosen.clear()

    session = Recorder(platform_target("trn2"))
    with running(session):
        bind(kernel, (), {}).call({})
    return [*walk(tuple(session.body))], said, named


@pytest.mark.parametrize("seed", range(4))
def test_a_cached_call_issues_what_an_uncached_one_issues(seed: int) -> None:
    expected, refused, named = _record(seed, is_cached=False)
    for _ in range(2):
        found, said, names = _record(seed, is_cached=True)
        assert [repr(each) for each in found] == [repr(each) for each in expected]
        assert (said, names) == (refused, named)
    assert any(named) and not all(named)
    assert len(expected) > CALLS // 4 and any(refused)


def test_a_cached_instruction_is_not_built_again() -> None:
    made: list[int] = []

    def issue_uncached(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made.append(len(args))
        return nisa.tensor_copy(*args, **kwargs)

    copy = memoize_calls(IssueFunction(issue_uncached, ("dst", "src", "engine", "name"), {}))
    with running(Recorder(platform_target("trn2"))):
        tile = nl.ndarray((128, 64), nl.float32)
        for column in range(8):
            copy(tile[:, column : column + 1], tile[:, 32:33])
        copy(tile[:, :2], tile[:, 32:34])
    assert len(made) == 2

"""Temporaries in HBM share addresses: little is lost, and no program notices."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from glia.arch import Target
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.sync import RegisterAlu, RegisterMove
from glia.isa.instructions.vector import Memset
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.lifetimes import find_lifetimes
from glia.machine.passes.pack_intervals import Block, largest_live_set, pack
from glia.machine.passes.place import HBM_ALIGNMENT, place
from glia.machine.scratchpad import temporaries_in_hbm
from glia.neff.metadata import memory_view, metrics
from glia.sim.order.concurrent import run_concurrently, streams_of
from glia.sim.policy import Policy, StaleRead, UninitializedRead
from glia.sim.run import run
from support.examples import with_examples
from support.timing_programs import program, rows, tile, whole

COLUMNS = 128  # a row fills a unit of alignment: tiles that share an address share all of it
CHIP = [tile(name, "SBUF", 4, COLUMNS, F32) for name in "abc"]
HBM = [tile(name, "HBM", 1, 4 * COLUMNS, F32) for name in "uvwxyz"]
STRICT = Policy(check_initialized=True)

DISTRIBUTIONS: dict[str, Callable[[random.Random, int], Block]] = {
    "any time": lambda r, n: Block(r.randint(1, 1000), *sorted((r.randrange(n), r.randrange(n)))),
    "short": lambda r, n: _lasting(r, n, r.expovariate(1 / 8), r.randint(1, 1000)),
    "powers of two": lambda r, n: _lasting(r, n, r.expovariate(1 / 20), 1 << r.randrange(12)),
    "few extents": lambda r, n: _lasting(r, n, r.expovariate(1 / 3), r.choice((3, 5, 7, 11))),
    "heavy tails": lambda r, n: _lasting(r, n, r.paretovariate(1), int(100 * r.paretovariate(0.8))),
    "nested": lambda r, n: (lambda at: Block(r.randint(1, 99), at, 2 * n - at))(r.randrange(n)),
}


def _lasting(generator: random.Random, count: int, duration: float, extent: int) -> Block:
    first = generator.randrange(count)
    return Block(extent, first, first + int(duration))


def _top(blocks: list[Block], offsets: list[int]) -> int:
    return max(at + each.extent for at, each in zip(offsets, blocks, strict=True))


def _assert_disjoint(blocks: list[Block], offsets: list[int]) -> None:
    placed = sorted(zip(blocks, offsets, strict=True), key=lambda each: each[0].first)
    live: list[tuple[Block, int]] = []
    for block, at in placed:
        live = [each for each in live if each[0].last >= block.first]
        assert all(at + block.extent <= low or low + other.extent <= at for other, low in live)
        live.append((block, at))


@pytest.mark.parametrize("count", [3, 12, 60, 400])
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_packed_blocks_need_a_tenth_more_than_live_at_one_time_at_most(
    kind: str, count: int
) -> None:
    for seed in range(20 if count < 100 else 2):
        generator = random.Random(seed)
        blocks = [DISTRIBUTIONS[kind](generator, count) for _ in range(count)]
        offsets = pack(blocks)
        _assert_disjoint(blocks, offsets)
        assert _top(blocks, offsets) <= 1.1 * largest_live_set(blocks)


@with_examples(100)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30), st.integers(0, 9))))
def test_blocks_live_at_one_time_never_overlap(given_blocks: list[tuple[int, int, int]]) -> None:
    blocks = [Block(extent, first, first + more) for extent, first, more in given_blocks]
    _assert_disjoint(blocks, pack(blocks))


def test_thousands_of_blocks_are_looked_at_in_chunks_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import glia.machine.passes.pack_intervals as module

    generator = random.Random(0)
    blocks = [DISTRIBUTIONS["any time"](generator, 300) for _ in range(300)]
    whole = pack(blocks)
    monkeypatch.setattr(module, "CHUNK", 16)
    assert pack(blocks) == whole


def test_of_many_blocks_one_attempt_within_a_tenth_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import glia.machine.passes.pack_intervals as module

    fill, attempts = module._Timeline.fill, []

    def count(timeline: module._Timeline, measure: module.Array) -> list[int]:
        attempts.append(measure.size)
        return fill(timeline, measure)

    monkeypatch.setattr(module._Timeline, "fill", count)
    generator = random.Random(0)
    blocks = [DISTRIBUTIONS["any time"](generator, 400) for _ in range(400)]
    pack(blocks)
    assert len(attempts) > 10, "none comes within GOOD_ENOUGH"
    attempts.clear()
    monkeypatch.setattr(module, "QUICK_BLOCKS", len(blocks))
    assert _top(blocks, pack(blocks)) <= module.GOOD_ENOUGH_AFTER * largest_live_set(blocks)
    assert len(attempts) == 1


def _store(to: Tile, of: Tile, row: Affine | int | None, queue: str) -> DmaCopy:
    return _transfer(to, of, row, queue, loads=False)


def _transfer(hbm: Tile, chip: Tile, row: Affine | int | None, queue: str, loads: bool) -> DmaCopy:
    """All of two tiles, or a row of the one in HBM and the first of the one on chip."""
    if row is None:
        outside, inside = rows(hbm, 0, 4, COLUMNS), whole(chip)
    else:
        outside = rows(hbm, Affine.of(row) * COLUMNS, 1, COLUMNS)
        inside = Pattern(chip, F32, ((1, 1), (1, COLUMNS)))
    dst, src = (inside, outside) if loads else (outside, inside)
    return DmaCopy(dst=dst, src=src, queue=queue, on="sync" if queue == "in" else "gpsimd")


@st.composite
def transfers(draw: st.DrawFn, variables: tuple[str, ...]) -> list[Statement]:
    """A load, a store, or a store and a load of what it has stored."""
    hbm, chip = draw(st.sampled_from(HBM)), draw(st.sampled_from(CHIP))
    choices: list[Affine | int | None] = [None, None, *range(4)]
    for variable in variables:
        at = Affine.of(variable)
        choices += [at, at + 1] if not variable.startswith("$") else [at]
    row = draw(st.sampled_from(choices))
    store = _transfer(hbm, chip, row, "out", loads=False)
    load = _transfer(hbm, draw(st.sampled_from(CHIP)), row, "in", loads=True)
    return draw(st.sampled_from([[store], [load], [store, load], [store, load]]))


@st.composite
def block(draw: st.DrawFn, variables: tuple[str, ...] = ()) -> tuple[Statement, ...]:
    """Transfers in loops of three trips, in branches and in run-time loops."""
    body: list[Statement] = []
    for _ in range(draw(st.integers(1, 5))):
        kinds = ["transfer"] * 4 + (
            ["loop", "loop", "branch", "while"] if len(variables) < 2 else []
        )
        kind, depth = draw(st.sampled_from(kinds)), len(variables)
        if kind == "loop":
            body.append(Loop(f"i{depth}", 3, draw(block((*variables, f"i{depth}")))))
        elif kind == "branch":
            outer = next((v for v in variables if not v.startswith("$")), "")
            value = Affine.of(outer) if outer and draw(st.booleans()) else draw(st.integers(0, 1))
            body.append(RegisterMove(register=f"arm{depth}", value=value))
            arms = draw(block((*variables, f"$arm{depth}"))), draw(block(variables))
            body.append(Branch(f"arm{depth}", arms))
        elif kind == "while":
            left = f"left{depth}"
            body.append(RegisterMove(register=left, value=3))
            count = RegisterAlu(register=left, op="subtract", a=Affine.of(f"${left}"), b=1)
            body.append(While((count,), left, draw(block((*variables, f"${left}")))))
        else:
            body += draw(transfers(variables))
    return tuple(body)


def _complete(body: tuple[Statement, ...], filled: tuple[Tile, ...]) -> Program:
    """The body after tiles on chip, and some in HBM, have contents."""
    starts: list[Statement] = [Memset(dst=whole(each), value=n) for n, each in enumerate(CHIP)]
    return program(*starts, *(_store(each, CHIP[0], None, "out") for each in filled), *body)


@with_examples(40, suppress_health_check=[HealthCheck.filter_too_much])
@given(body=block(), filled=st.lists(st.sampled_from(HBM), unique=True, max_size=4))
def test_a_program_that_reads_what_it_has_written_does_so_at_shared_addresses(
    body: tuple[Statement, ...], filled: list[Tile]
) -> None:
    complete = _complete(body, tuple(filled))
    try:
        run(complete, {}, policy=STRICT)
    except UninitializedRead:
        assume(False)
    for rotation in (0, 2):
        synchronised = insert_semaphores(place(complete, rotation=rotation))
        run(synchronised, {}, policy=STRICT)
        for seed in range(len(streams_of(synchronised))):
            run_concurrently(synchronised, {}, seed=seed, policy=Policy(poison=None))


def test_bytes_that_a_later_iteration_reads_stay_through_the_loop() -> None:
    """Row 0 is written in the first iteration only; what follows in the loop must not take it."""
    i, (kept, other) = Affine.of("i"), HBM[:2]
    body = (
        _transfer(kept, CHIP[0], i, "out", loads=False),
        _transfer(kept, CHIP[1], 0, "in", loads=True),
        _transfer(other, CHIP[2], None, "out", loads=False),
        _transfer(other, CHIP[2], None, "in", loads=True),
    )
    complete = _complete((Loop("i", 3, body),), ())
    placed = place(complete)
    assert placed.addresses[kept.name] != placed.addresses[other.name]
    run(placed, {}, policy=STRICT)
    overlaid = {**placed.addresses, other.name: placed.addresses[kept.name]}
    with pytest.raises(StaleRead):
        run(replace(placed, addresses=overlaid), {}, policy=STRICT)


def test_temporaries_of_one_iteration_share_an_address_in_a_loop_and_after_it() -> None:
    def through(hbm: Tile, row: Affine | None) -> tuple[Statement, ...]:
        store = _transfer(hbm, CHIP[0], row, "out", loads=False)
        return store, _transfer(hbm, CHIP[1], row, "in", loads=True)

    inside = (*through(HBM[0], None), *through(HBM[1], Affine.of("i")), *through(HBM[2], None))
    placed = place(_complete((Loop("i", 3, inside), *through(HBM[3], None)), ()), rotation=0)
    assert len({placed.addresses[each.name] for each in HBM[:4]}) == 1
    lifetimes = find_lifetimes(placed, (Memory.HBM,))
    blocks = [
        Block(t.bytes, lifetimes[t.name].first, lifetimes[t.name].last)
        for t in temporaries_in_hbm(placed)
    ]
    assert largest_live_set(blocks) == 4 * HBM_ALIGNMENT


def _one_after_another() -> Program:
    """Each temporary is written and read before the next one begins."""
    body: list[Statement] = []
    for each in HBM:
        body.append(_transfer(each, CHIP[0], None, "out", loads=False))
        body.append(_transfer(each, CHIP[1], None, "in", loads=True))
    return _complete(tuple(body), ())


@pytest.mark.parametrize("rotation", [0, 1, 2, 3])
def test_bytes_rest_until_other_temporaries_have_begun(rotation: int) -> None:
    placed = place(_one_after_another(), rotation=rotation)
    at = [placed.addresses[each.name] for each in HBM]
    assert len(set(at)) == rotation + 1
    assert all(
        len(set(at[n : n + rotation + 1])) == rotation + 1 for n in range(len(at) - rotation)
    )


def test_bytes_do_not_rest_where_there_is_room_for_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Target, "device_memory", lambda *_: HBM[0].bytes)
    placed = place(_one_after_another())
    assert len({placed.addresses[each.name] for each in HBM}) == 1


def test_metadata_gives_offsets_and_the_extent_of_the_scratchpad() -> None:
    body = [_transfer(each, CHIP[0], None, "out", loads=False) for each in HBM[:3]]
    body += [_transfer(each, CHIP[0], None, "in", loads=True) for each in HBM[:3]]
    complete = _complete(tuple(body), ())
    output = Binding("y", HBM[3], (4, COLUMNS), F32)
    complete = replace(complete, outputs=(output,), tiles={**complete.tiles, "x": HBM[3]})
    placed = place(complete)
    variables = memory_view(placed, {})["var"]
    offsets = {v["backing_variable_off"] for v in variables.values() if v["type"] == "virtual"}
    assert offsets == {0, HBM[0].bytes, 2 * HBM[0].bytes}
    (facts,) = metrics((placed,))["cores"]
    assert (facts["scratchpad_bytes"], facts["hbm_bytes"]) == (3 * 2048, 4 * 2048)

"""Instructions with every kind of field filled in come back from text and from a NEFF's streams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glia.base.affine import Affine
from glia.base.dtype import F4E2M1FN_X4, F8E8M0FNU, TF32
from glia.isa.examples import chip, examples, hbm
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.sync import RegisterLoad
from glia.isa.kit import Instr
from glia.machine.binary.decode import decode_program
from glia.machine.binary.encode import PAYLOAD_MAGIC, encode_program
from glia.machine.ir import Loop, Program, While
from glia.machine.text import parse_program, print_program

E = examples()
FILLED: tuple[Instr, ...] = (
    replace(E["nc_matmul"], accumulate=None, tile_position=(64, 0), tile_size=(64, 128)),
    replace(E["nc_matmul"], accumulate=Affine.of("i"), is_moving_onezero=True),
    replace(E["nc_matmul"], accumulate=True, perf_mode="double_row"),
    replace(E["nc_matmul"], is_transpose=True, stationary=chip("t", 64, 32, dtype=TF32)),
    replace(E["nc_matmul_mx"], accumulate=None, stationary=chip("f", 64, 8, dtype=F4E2M1FN_X4)),
    replace(E["quantize_mx"], dst_scale=chip("s", 36, 8, dtype=F8E8M0FNU, partition=12)),
    replace(E["local_gather"], num_valid_indices=5, num_elem_per_idx=2),
    replace(E["iota"], steps=(1, -2), counts=(4, 8), offset=Affine.of("i") + 3),
    replace(E["dma_copy"], dge_mode="hwdge", priority=2),
    replace(E["dma_compute"], scales=(1.0,), srcs=(hbm("x", 4, 3),)),
    replace(E["dma_transpose"], axes=(1, 0)),
    replace(E["dma_gather"], combine="add", out_of_bounds="skip"),
    replace(E["dma_scatter"], unique_indices=True),
    replace(E["all_to_all_v"], recv_counts_known=True, priority=0),
    replace(E["collective_permute"], source_target_pairs=((0, 3), (3, 1))),
    replace(E["collective_permute_implicit"], channel_ids=(0, 1)),
    replace(
        E["collective_permute_implicit_current_processing_rank_id"], iteration_id=Affine.of("i")
    ),
    replace(E["sendrecv"], dma_engine="gpsimd_dma", pipe_id=7),
    replace(E["core_barrier"], cores=(0, 1), on="vector"),
    DmaCopy(dst=chip("p", 64, 8, dtype=F4E2M1FN_X4), src=hbm("q", 512, dtype=F4E2M1FN_X4)),
)


def _program(instr: Instr) -> Program:
    tiles = {pattern.tile.name: pattern.tile for _, _, pattern in instr.operands()}
    return Program("one", "trn3", tiles, (), (), {}, (Loop("i", 2, (instr, instr)),))


@pytest.mark.parametrize("instr", FILLED, ids=lambda i: i.mnemonic())
def test_a_filled_instruction_comes_back_from_text(instr: Instr) -> None:
    program = _program(instr)
    assert parse_program(print_program(program)) == program


@pytest.mark.parametrize("instr", (*FILLED, *E.values()), ids=lambda i: i.mnemonic())
def test_a_filled_instruction_comes_back_from_streams(instr: Instr) -> None:
    program = _program(instr)
    streams = encode_program(program, {})
    engines = {name: memoryview(data) for name, data in streams.engines.items()}
    back = decode_program(memoryview(streams.program), engines.__getitem__, _no_file, "program")
    assert back == program


def _loop(iterations: int) -> Program:
    load = next(each for each in E.values() if isinstance(each, RegisterLoad))
    base = _program(load)
    return replace(base, body=(While((load,), load.register, (load,), iterations),))


@pytest.mark.parametrize("iterations", [0, 1, 4096])
def test_how_often_a_run_time_loop_runs_comes_back(iterations: int) -> None:
    program = _loop(iterations)
    assert parse_program(print_program(program)) == program
    streams = encode_program(program, {})
    engines = {name: memoryview(data) for name, data in streams.engines.items()}
    back = decode_program(memoryview(streams.program), engines.__getitem__, _no_file, "program")
    assert back == program


def test_a_program_of_the_encoding_before_is_read() -> None:
    streams, other = (encode_program(_loop(n), {}) for n in (0, 1))
    pairs = enumerate(zip(streams.program, other.program, strict=True))
    changed = [n for n, (one, two) in pairs if one != two]
    (place,) = changed  # where the iterations are, which that encoding did not have
    before = bytearray(streams.program)
    del before[place]
    before[len(PAYLOAD_MAGIC)] = 1
    engines = {name: memoryview(data) for name, data in streams.engines.items()}
    back = decode_program(memoryview(before), engines.__getitem__, _no_file, "program")
    assert back == _loop(0)


def _no_file(name: str) -> memoryview:
    raise KeyError(name)

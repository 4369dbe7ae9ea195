"""Sound files of each kind, by name; small, and between them of every shape that matters."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np

import glia
from glia.compiler import PassResult, text_of
from glia.machine.builder.program_builder import ProgramBuilder
from glia.machine.ir import Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.neff.package import Neff
from glia.ntff.trace_file import RunReport, TraceFile, hash_of
from glia.profile.report import profile_programs
from support.corpus import BY_NAME, PROGRAMS, hlo_bytes
from support.machine_programs import doubling, matmul
from support.neff_programs import example_neff

MODELS = (
    "binary_i32", "broadcast", "transpose_4d", "pad", "concatenate", "gather_clamped",
    "scatter_add", "dynamic_update_slice", "sort_pairs", "top_k", "batched", "sums",
    "max_pool_gradient", "average_pool", "conv_nhwc_strided", "conv_depthwise", "fori_loop",
    "while_loop", "cond", "random_bits", "fft", "softmax_bf16", "layer_norm", "complex", "convert",
    "mlp_training_step",
)  # fmt: skip
TEXTS = ("simplify", "schedule_nests", "insert_semaphores")
COMPILED = (
    "matmul_bf16", "transpose", "sums", "sort", "fori_loop", "while_loop", "switch", "softmax",
    "embedding", "convert", "scatter_add", "random_bits",
)  # fmt: skip


def hlo_samples() -> Mapping[str, bytes]:
    """Small models as serialized HLO."""
    return {each.name: hlo_bytes(each) for each in PROGRAMS if each.name in MODELS}


def stablehlo_samples() -> Mapping[str, bytes]:
    """Small models as StableHLO text."""
    chosen = [each for each in PROGRAMS if each.name in MODELS]
    return {
        each.name: jax.jit(each.function, keep_unused=True)
        .lower(*each.arguments)
        .as_text()
        .encode()
        for each in chosen
    }


def bytecode_samples() -> Mapping[str, bytes]:
    """Small models as StableHLO bytecode."""
    found = {}
    for each in PROGRAMS:
        if each.name in MODELS:
            lowered = jax.jit(each.function, keep_unused=True).lower(*each.arguments)
            stream = io.BytesIO()
            lowered.compiler_ir("stablehlo").operation.write_bytecode(stream)
            found[each.name] = stream.getvalue()
    return found


@cache
def _compiled(name: str, target: str = "trn2") -> tuple[bytes, Mapping[str, bytes]]:
    """A model's NEFF, and its text after each pass."""
    texts: dict[str, bytes] = {}

    def keep(step: PassResult) -> None:
        if step.name in TEXTS:
            texts[step.name] = text_of(step.level, step.ir).encode()

    return glia.compile(hlo_bytes(BY_NAME[name]), target=target, observer=keep).to_bytes(), texts


def neff_samples() -> Mapping[str, bytes]:
    """Small compiled models, and programs written by hand."""
    found = {name: _compiled(name)[0] for name in COMPILED}
    found |= {f"softmax {target}": _compiled("softmax", target)[0] for target in ("trn1", "trn3")}
    found["two cores"] = _two_cores().to_bytes()
    found["example"] = example_neff().to_bytes()
    found["doubling"] = _placed(doubling()).to_bytes()
    found["matmul"] = _placed(matmul(256, 256, 512)).to_bytes()
    return found


def _placed(program: Program) -> Neff:
    return Neff((insert_semaphores(place(program)),))


def _two_cores() -> Neff:
    """Two programs that exchange a tile, count in a loop, and come to a barrier of cores."""
    return Neff(tuple(_exchanging(rank) for rank in (0, 1)))


def _exchanging(rank: int) -> Program:
    b = ProgramBuilder("exchange", target="trn2")
    y = b.output(f"y{rank}", (128, 64))
    own, other = b.sbuf((128, 64)), b.sbuf((128, 64))
    b.memset(own, 1.0)
    with b.loop(5, "i"):
        b.tensor_scalar(own, own, 2.0, "multiply")
    b.sendrecv(other, own, send_to_rank=1 - rank, recv_from_rank=1 - rank, pipe_id=0)
    b.dma_copy(y, other)
    b.core_barrier(y)
    return b.finish()


def graph_text_samples() -> Mapping[str, bytes]:
    """Small graphs as text."""
    return _texts_after("simplify")


def tile_text_samples() -> Mapping[str, bytes]:
    """Small tile programs as text."""
    return _texts_after("schedule_nests")


def machine_text_samples() -> Mapping[str, bytes]:
    """Small machine programs as text."""
    return _texts_after("insert_semaphores")


def _texts_after(name: str) -> Mapping[str, bytes]:
    return {model: _compiled(model)[1][name] for model in COMPILED}


def trace_samples() -> Mapping[str, bytes]:
    """Captured executions, with and without something to report."""
    neff = example_neff()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, reports in (
            ("quiet", ()),
            ("reporting", (RunReport(0, "gather at index 9"),) * 3),
        ):
            trace = TraceFile.of(hash_of(neff), profile_programs(neff.programs, neff.target))
            replace(trace, reports=reports).save(path := Path(folder) / name)
            found[name] = path.read_bytes()
    return found


def array_samples() -> Mapping[str, bytes]:
    """Array files of either form."""
    small, wide = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((2, 2), np.complex64)
    found = {}
    for name, save in (("npz", np.savez), ("packed", np.savez_compressed)):
        stream = io.BytesIO()
        save(stream, y=small, arr_1=wide)
        found[name] = stream.getvalue()
    for name, array in (("npy", small), ("fortran", small.T), ("scalar", np.float64(3))):
        stream = io.BytesIO()
        np.save(stream, array)
        found[name] = stream.getvalue()
    return found

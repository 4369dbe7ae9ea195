"""Sound files of each kind, by name; small, and between them of every shape that matters."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np

import glia
from fuzz.mutations import tar_of
from glia.kernels.cumsum import cumsum
from glia.kernels.images.average_pool2d import average_pool2d
from glia.machine.builder.program_builder import ProgramBuilder
from glia.machine.ir import Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.neff.package import Neff
from glia.ntff.trace_file import RunReport, TraceFile, hash_of
from glia.pass_runner import PassResult, text_of
from glia.profile.report import profile_programs
from support.corpus import BY_NAME, PROGRAMS, hlo_bytes
from support.hlo_text import entry
from support.machine_programs import doubling, matmul
from support.mxnet_models.files import parameter_file, symbol_arrays, symbol_samples
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


def model_symbol_samples() -> Mapping[str, bytes]:
    """Small models of MXNet."""
    return symbol_samples()


def parameter_samples() -> Mapping[str, bytes]:
    """The arrays of a network of MXNet."""
    return {"network": parameter_file(symbol_arrays())}


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


def cache_samples() -> Mapping[str, bytes]:
    """Entries of the compile cache with the module that they are of, each as an archive."""
    found = {}
    for name in ("sums", "fori_loop"):
        hlo = hlo_bytes(BY_NAME[name])
        with tempfile.TemporaryDirectory() as folder:
            glia.compile(hlo, target="trn2", cache_dir=folder)
            paths = sorted(Path(folder).glob("*/MODULE_*/*"))
            files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        found[name] = tar_of(files | {"model.pb": hlo})
    return found


def custom_call_samples() -> Mapping[str, bytes]:
    """Modules with custom calls that have configurations: kernels, and a scaled product."""
    x = np.zeros((40, 30), np.float32)

    def two_kernels(x: jax.Array) -> jax.Array:
        return average_pool2d(cumsum(x).reshape(3, 20, 20), pool=2) * 0.5

    lowered = jax.jit(two_kernels).lower(x).compiler_ir("hlo")
    names = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")
    dimensions = {f"{name}_dimensions": [2 * ("contract" in name)] for name in names}
    config = {"scaled_dot_backend_config": dimensions}
    text = json.dumps(config).replace('"', '\\"')
    kinds = ("u32[2,4,8]", "u32[2,4,8]", "u8[2,4,1]", "u8[2,4,1]")
    lines = [f"x{number} = {kind} parameter({number})" for number, kind in enumerate(kinds)]
    call = 'custom-call(x0, x1, x2, x3), custom_call_target="__op$block_scaled_dot"'
    lines.append(f'ROOT r = f32[2,4,4] {call}, backend_config="{text}"')
    return {
        "kernels": lowered.as_serialized_hlo_module_proto(),
        "scaled": entry("\n".join(lines)),
    }

"""Sound files of each kind, by name; small, and between them of every shape that matters."""

from __future__ import annotations

import io
from collections.abc import Mapping

import jax
import numpy as np

import glia
from glia.compiler import text_of
from glia.machine.ir import Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.neff.package import Neff
from support.corpus import PROGRAMS, hlo_bytes
from support.machine_programs import doubling, matmul
from support.neff_programs import example_neff

MODELS = (
    "binary_i32", "broadcast", "transpose_4d", "pad", "concatenate", "gather_clamped",
    "scatter_add", "dynamic_update_slice", "sort_pairs", "top_k", "batched", "sums",
    "max_pool_gradient", "average_pool", "conv_nhwc_strided", "conv_depthwise", "fori_loop",
    "while_loop", "cond", "random_bits", "fft", "softmax_bf16", "layer_norm", "complex", "convert",
    "mlp_training_step",
)  # fmt: skip
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


def neff_samples() -> Mapping[str, bytes]:
    """Small compiled models, and programs written by hand."""
    found = {
        f"{each.name} {target}": glia.compile(hlo_bytes(each), target=target).to_bytes()
        for each in PROGRAMS
        if each.name in COMPILED
        for target in (("trn1", "trn3") if each.name == "softmax" else ("trn2",))
    }
    found["example"] = example_neff().to_bytes()
    found["doubling"] = _placed(doubling()).to_bytes()
    found["matmul"] = _placed(matmul(256, 256, 512)).to_bytes()
    return found


def _placed(program: Program) -> Neff:
    return Neff((insert_semaphores(place(program)),))


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
    found = {}
    for each in PROGRAMS:
        if each.name in COMPILED:
            texts: dict[str, str] = {}
            glia.compile(
                hlo_bytes(each),
                observer=lambda s, t=texts: t.update({s.name: text_of(s.level, s.ir)}),
            )
            found[each.name] = texts[name].encode()
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

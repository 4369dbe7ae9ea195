"""What public kernels write and no document has is there, and does what they expect."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.nki import beta1
from glia.nki import language as nl
from glia.nki.beta1 import language as beta1_nl
from glia.nki.names.errors import ImpossibleTensor
from glia.nki.names.language_errors import KernelAdvice
from glia.nki.tensors.nki_tensor import NkiTensor
from support import nki_public
from support.nki_public import PUBLIC

# Names and keywords that public kernels use and no document has.
WRITTEN = (
    "show_compiler_tb debug_kernel kernel_return additional_compile_opt experimental_flags "
    "platform_target warmup iters save_neff_name save_trace_name artifacts_dir working_directory "
    "overwrite profile_nth num_execs disable_allocation_opt n_iterations lazy_initialization "
    "directives multi_buffer body_no_reorder precise_schedule loop_reduce double_row_gen3 nl.bool "
    "nl.range fp32.min float32r tensor_scalar_cumulative load_reduce par_dim sizeinbytes np.add "
    "np.subtract np.multiply np.max np.maximum np.square quantize_mx_golden nc_matmul_mx_golden "
    "UnifiedKernel add_kernel_nx8x128x512 attention_kernel"
)


def test_there_is_a_row_for_all_of_it() -> None:
    rows = inspect.getsource(nki_public).partition("# --- options of kernels")[2]
    assert [each for each in WRITTEN.split() if each not in rows] == []


def test_beta1_keeps_its_own_forms() -> None:
    def kernel(x: Any) -> Any:
        kept = beta1_nl.zeros((8, 16), beta1_nl.float32, buffer=None, lazy_initialization=True)
        for _ in beta1_nl.sequential_range(1, body_no_reorder=True):
            kept[...] = beta1_nl.load(x)
        out = beta1_nl.ndarray((8, 16), beta1_nl.float32, buffer=beta1_nl.shared_hbm)
        beta1_nl.store(out, kept)
        return out

    x = np.ones((8, 16), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelAdvice)
        np.testing.assert_array_equal(beta1.simulate_kernel(beta1.jit(kernel), x), x)


@pytest.mark.parametrize("name", PUBLIC)
def test_what_public_kernels_write_gives_what_they_expect(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = list(PUBLIC[name]())
    assert pairs
    for found, right in pairs:
        if not isinstance(right, np.ndarray):
            assert found == right
        else:
            assert found.shape == right.shape
            found, right = (each.astype(np.float64) for each in (found, right))
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


def test_partitions_marked_elsewhere_say_what_to_write() -> None:
    def kernel(x: NkiTensor) -> None:
        nl.ndarray((4, nl.par_dim(8), 16), nl.float32, buffer=nl.sbuf)  # type: ignore[attr-defined]

    with pytest.raises(ImpossibleTensor, match="make a list of tensors"):
        nki.simulate(kernel)(np.zeros((8, 16), np.float32))

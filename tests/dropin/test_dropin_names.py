"""Public code imports these of `nki` and `neuronxcc`, documented or not, and finds them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from glia.nki.beta1.language import bfloat16
from house.source import REPOSITORY

IMPORTS = {
    "nki": "jit simulate language isa collectives typing benchmark baremetal profile "
    "cpu_simulate debug trace",
    "nki.compiler": "driver frontend kernel_builder ncc_driver target",
    "nki.compiler.frontend": "NKIFrontend ParserFrontend TracerFrontend resolve_frontend_cls",
    "nki.compiler.driver": "CompileOptions compile_to_bir compile_bir_to_neff _compile_bir_to_neff",
    "nki.compiler.ncc_driver": "CompileOptions CompilationMode CompiledKernel compile_bir_to_neff "
    "compile_mlir_to_neff extract_perf_metrics",
    "nki.compiler.target": "resolve_target target_to_nc_version",
    "nki.compiler.kernel_builder": "compile_kernel build_kernel compile_and_execute ndarray Tensor "
    "sbuf psum shared_hbm hbm float32 CompileOptions isa compiler fori_loop",
    "nki.compiler.kernel_builder.builder": "compile_kernel build_kernel",
    "nki.compiler.kernel_builder.isa": "dma_copy activation activation_function arith_op matmul",
    "nki.compiler.kernel_builder.target_info": "get_target_info",
    "nki.compiler.kernel_builder.tensor": "Tensor",
    "nki.framework": "kernel compiled",
    "nki.framework.kernel": "Kernel",
    "nki.framework.compiled": "CompileKernel StandaloneKernel compile_kernel_to_nir run_from_bir",
    "nki.runtime": "SpikeModel SpikeTensor",
    "nki.simulator": "simulate_kernel",
    "nki.debugger": "debug_kernel",
    "nki.experimental": "while_loop",
    "nki.nccl": "all_reduce all_gather reduce_scatter ReplicaGroup",
    "nki.dtype": "bfloat16 float8_e4m3 float8_e4m3fn_x4 float4_e2m1fn_x4 int32 uint8",
    "nki.language": "bool range fp32 float32r par_dim",
    "nki.isa": "fp32 NKIObject tensor_copy_dynamic_src tensor_copy_dynamic_dst",
    "nki.isa.constants": "oob_mode reduce_cmd",
    "nki.collectives": "NKIObject ReplicaGroup",
    "nki.typing": "tensor mutable_tensor",
    "neuronxcc.nki": "baremetal benchmark jit profile simulate_kernel trace FrameworkKernel tensor",
    "neuronxcc.nki.language": "bool range fp32 float32r par_dim nc bfloat16 mgrid spmd_dim",
    "neuronxcc.nki.language.constants": "sizeinbytes",
    "neuronxcc.nki.isa": "fp32 tensor_scalar_cumulative attention_kernel",
    "neuronxcc.nki.isa.constants": "oob_mode dge_mode",
    "neuronxcc.nki.typing": "tensor mutable_tensor scalar mutable immutable",
    "neuronxcc.nki.compile": "GenericKernel",
    "neuronxcc.nki.compiler.backends.neuron.dimensions": "VNC",
    "neuronxcc.nki.compiler.backends.neuron.FrameworkKernel": "FrameworkKernel UnifiedKernel",
    "neuronxcc.nki.kernels": "add_kernel_nx8x128x512 flash_fwd flash_attn_bwd "
    "fused_self_attn_for_SD_small_head_size allocated_fused_self_attn_for_SD_small_head_size "
    "allocated_fused_rms_norm_qkv "
    "resize_nearest_fixed_dma_kernel select_and_scatter_kernel",
    "neuronxcc.nki.kernels.attention": "flash_fwd flash_attn_bwd attention_isa_kernel FlashConfig "
    "fused_self_attn_for_SD_small_head_size",
    "neuronxcc.nki.kernels.vision": "resize_nearest_fixed_dma_kernel select_and_scatter_kernel",
    "neuronxcc.nki.kernels.cumsum": "cumsum",
    "neuronxcc.nki._private_kernels.attention": "attention_isa_kernel",
    "neuronxcc.nki._private_kernels.conv": "conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh",
    "neuronxcc.nki._private_kernels.cumsum": "cumsum",
    "neuronxcc.nki._private_kernels.mlp": "mlp_isa_kernel",
    "neuronxcc.nki._private_kernels.qkv": "rmsnorm_qkv_isa_kernel",
    "neuronxcc.nki._pre_prod_kernels": "ActFnType NormType QuantizationType QKVOutputLayout "
    "ExpertAffinityScaleMode RouterActFnType",
    "neuronxcc.nki._pre_prod_kernels.common_types": "ActFnType",
    "neuronxcc.nki._private.private_api": "float8_e4m3fn_x4 float4_e2m1fn_x4",
    "neuronxcc.nki._private.test.mx_util": "quantize_mx_golden nc_matmul_mx_golden",
    "neuronxcc.starfish.support.dtype": "static_cast bfloat16 as_native_type",
    "neuronxcc.starfish.support.util": "allclose",
    "neuronxcc.driver.CommandDriver": "main",
    "libneuronxla": "neuron_xla_compile configure_environment supported_clients",
    "libneuronxla.libneuronpjrt_path": "libneuronpjrt_path",
    "libneuronxla.neuron_cc_cache": "CacheUrl CompileCache CompileCacheFs CompileCacheS3 "
    "create_compile_cache",
    "libneuronxla.neuron_cc_wrapper": "main",
    "torch_neuronx": "nki_jit nki_op",
    "torch_neuronx.initialization": "initialize",
    "torch_neuronx.experimental": "neuron_cores_context profiler",
    "torch_neuronx.experimental.profiler": "profile",
    "torch_neuronx.nki_hop": "wrap_nki",
    "torch_neuronx.parallel_compile.neuron_parallel_compile": "main",
    "torch_neuronx.xla": "init",
    "torch_neuronx.nki": "jit language isa",
    "torch_neuronx.utils": "get_platform_target",
    "torch_neuronx.utils.utils": "get_platform_target SUPPORTED_TYPES",
    "torch_neuronx.xla_impl.ops": "nki_jit Argmax RmsNorm Softmax TopK xla_hlo_call",
    "torch_neuronx.xla_impl.base": "xla_call xla_hlo_call",
    "torch_neuronx.xla_impl.custom_call_targets": "AwsNeuronModuleMarkerStartForward "
    "AwsNeuronModuleMarkerEndForward AwsNeuronNkiKernel",
    "torch_neuronx.xla_impl.torchscript": "replace_weights",
    "torch_neuronx.xla_impl.trace": "trace",
    "jax_neuronx": "nki_call",
}
REFUSED = {  # compiled code of the vendor's: importing says what to write in its place
    "neuronxcc.nki._private_kernels.rmsnorm": "rmsnorm_isa_kernel",
    "neuronxcc.nki._private_kernels.collectives": "all_reduce_kernel",
    "neuronxcc.nki._private_kernels.blockwise_mm": "blockwise_mm_isa_kernel",
    "neuronxcc.nki._private_kernels.blockwise_mm_bwd": "blockwise_mm_bwd",
    "neuronxcc.nki._private_kernels.llama3_transformer": "llama3_transformer",
    "neuronxcc.nki._pre_prod_kernels.moe_token_gen": "moe_token_gen_kernel",
    "neuronxcc.nki._pre_prod_kernels.attention_token_gen": "attention_token_gen_kernel",
    "neuronxcc.nki._pre_prod_kernels.qkv_tkg_impl": "qkv_tkg_impl",
    "neuronxcc.nki._pre_prod_kernels.output_proj": "output_proj_kernel",
    "neuronxcc.nki._pre_prod_kernels.ring_attention": "ring_attention",
    "neuronxcc.nki._pre_prod_kernels.blockwise_mm": "TILE_SIZE",
    "neuronxcc.nki._private.test.mx_util": "generate_stabilized_mx_data",
}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    folders = [str(REPOSITORY / "src"), str(REPOSITORY / "dropin" / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_name_that_public_code_imports_is_there() -> None:
    lines = [
        f"from {module} import {name}"
        for module, names in IMPORTS.items()
        for name in names.split()
    ]
    found = _run("-c", "\n".join(lines))
    assert found.returncode == 0, found.stderr


def test_names_that_moved_are_those_that_they_became() -> None:
    lines = (
        "import nki, nki.nccl, nki.experimental, nki.compiler, nki.framework.kernel, nki.simulator",
        "assert nki.nccl.all_reduce is nki.collectives.all_reduce",
        "assert nki.experimental.while_loop is nki.language.while_loop",
        "assert isinstance(nki.jit(lambda x: x), nki.framework.kernel.Kernel)",
        "assert nki.compiler.kernel_builder.float32 == nki.language.float32",
    )
    found = _run("-c", "\n".join(lines))
    assert found.returncode == 0, found.stderr


def test_what_only_the_vendor_has_says_so_when_it_is_imported() -> None:
    """As an ImportError, which callers with something else to fall back to catch."""
    tries = [
        f"try:\n from {module} import {name}\nexcept ImportError as error:\n print(error.code)"
        for module, name in REFUSED.items()
    ]
    assert _run("-c", "\n".join(tries)).stdout.split() == ["GLIA673"] * len(REFUSED)


def test_the_compiler_is_a_module_to_run() -> None:
    found = _run("-m", "neuronxcc.driver.CommandDriver", "--version")
    assert found.returncode == 0
    assert "version" in found.stdout and not found.stderr
    assert _run("-m", "neuronxcc.driver.CommandDriver", "nonsense").returncode != 0


def test_logging_can_be_turned_off_by_the_level_that_the_package_adds() -> None:
    lines = (
        "import neuronxcc.nki, logging",
        "logging.disable(logging.OFF)",
        "logging.critical('shown')",
    )
    found = _run("-c", "\n".join(lines))
    assert (found.returncode, found.stderr) == (0, "")


def test_kernels_are_of_the_class_that_tuners_ask_for() -> None:
    from glia.nki import beta1
    from glia_dropin.neuronxcc.internal import GenericKernel

    def doubled(x):  # type: ignore[no-untyped-def]
        return x

    kernel = beta1.jit(doubled)
    assert isinstance(kernel, GenericKernel)
    assert isinstance(beta1.benchmark(kernel), GenericKernel)
    assert (kernel.func, kernel.func_name) == (doubled, "doubled")


@pytest.mark.parametrize(("off", "agree"), [(0.0, True), (1e-3, True), (0.1, False)])
def test_allclose_compares_dtypes_of_the_device(
    off: float, agree: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    from glia_dropin.neuronxcc.starfish import allclose

    exact = np.ones(4, np.float32)
    found = (exact + off).astype(bfloat16 if off == 0 else np.float32)
    assert allclose(found, exact, atol=1e-2, rtol=1e-3, verbose=1) is agree
    assert f"greatest difference {off:.6g}"[:25] in capsys.readouterr().out

"""What tools use of the inside of AWS's packages compiles, runs and times kernels on glia."""

from __future__ import annotations

import inspect
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from glia.neff.package import Neff
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.beta1 import jit as beta1_jit
from glia.nki.beta1 import language as beta1_nl
from glia.nki.names.errors import BadLaunch, NoSuchName, NotInGlia
from glia.nki.names.language_errors import NotInLanguage
from glia.nki.run.kernel import Kernel
from glia.runtime.model import load
from glia_dropin.nki import kernel_builder as nb
from glia_dropin.nki.compiled_kernels import (
    CompileKernel,
    StandaloneKernel,
    compile_kernel_to_nir,
    run_from_bir,
)
from glia_dropin.nki.driver import (
    CompiledKernel,
    CompileOptions,
    _compile_bir_to_neff,
    compile_bir_to_neff,
    compile_mlir_to_neff,
    compile_to_bir,
    extract_perf_metrics,
)
from glia_dropin.nki.frontends import ParserFrontend, TracerFrontend, resolve_frontend_cls
from glia_dropin.nki.options import CompilationMode
from glia_dropin.nki.simulator import (
    cpu_simulate,
    debug,
    debug_kernel,
    simulate_kernel,
    trace,
)
from glia_dropin.nki.spike import SpikeModel, SpikeTensor
from glia_dropin.nki.target import resolve_target, target_to_nc_version

X = np.arange(128 * 64, dtype=np.float32).reshape(128, 64) / 1000
Y = np.ones((128, 64), np.float32)
LEAST = float(np.finfo(np.float32).min)


@pytest.fixture(autouse=True)
def _target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")


@jit
def scaled_sum(x: Any, y: Any, factor: float = 1.0) -> Any:
    """factor * x + y."""
    left, right = nl.load(x), nl.load(y)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(tile, left, nl.multiply, factor, nl.add, right)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


@jit
def product(lhs: Any, rhs: Any) -> Any:
    """lhs.T @ rhs."""
    sums = nl.ndarray((lhs.shape[1], rhs.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(sums, nl.load(lhs), nl.load(rhs))
    tile = nl.ndarray(sums.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(tile, sums)
    out = nl.ndarray(sums.shape, nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


@jit
def doubled_in_place(x: Any) -> Any:
    """Overwrite x with 2 * x."""
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(x, tile)
    return x


def halves(x: Any) -> Any:
    """Each of two cores copies a half of the rows."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs(0)
    start = nl.program_id(0) * rows
    nl.store(out[start : start + rows, :], nl.load(x[start : start + rows, :]))
    return out


def _options(folder: Path, **options: Any) -> CompileOptions:
    return CompileOptions(
        target="trn2",
        output_path=str(folder / "file.neff"),
        artifacts_dir=str(folder / "artifacts"),
        **options,
    )


INPUTS = {"x": X, "y": Y, "factor": 2.0}


def _compiled(folder: Path) -> CompiledKernel:
    options = _options(folder)
    bir = compile_to_bir(scaled_sum, TracerFrontend(), INPUTS, options, output_names=["sum"])
    specs = bir.descriptor
    return compile_bir_to_neff(
        options,
        bir,
        [],
        [each.name for each in specs.input_specs],
        [each.name for each in specs.output_specs],
    )


# --- the driver ----------------------------------------------------------------------------------


@pytest.mark.parametrize("frontend", [TracerFrontend, ParserFrontend])
def test_a_kernel_becomes_a_program_and_that_a_neff(tmp_path: Path, frontend: Any) -> None:
    options = _options(tmp_path, neuronx_cc_args=("--verbose=info",))
    options = options.disable_backend_optimizations().set_pipeline_options("a=b")
    bir = compile_to_bir(
        kernel_func=scaled_sum,
        frontend=frontend(enable_backend_opt=False),
        inputs=INPUTS,
        compile_opts=options,
        output_names=["sum"],
    )
    specs = bir.descriptor
    assert [(each.name, each.shape) for each in specs.input_specs] == [
        ("x", (128, 64)),
        ("y", (128, 64)),
    ]
    assert [(each.name, np.dtype(each.dtype)) for each in specs.output_specs] == [
        ("sum", np.float32)
    ]
    compiled = compile_bir_to_neff(options, bir, [], ["x", "y"], ["total"])
    assert Path(compiled.neff_path) == tmp_path / "file.neff"
    assert compiled.mlir_time > 0 and compiled.neuronx_cc_time > 0
    result = compiled.run(x=X, y=Y)
    np.testing.assert_array_equal(result.outputs["total"], 2 * X + Y)
    assert (tmp_path / "artifacts" / "scaled_sum.glia").read_text() == str(bir)


def test_the_parser_refuses_what_the_tracer_takes() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        try:
            nisa.dma_copy(out, x)
        finally:
            pass
        return out

    assert compile_to_bir(kernel, TracerFrontend(), {"x": X})
    with pytest.raises(NotInLanguage):
        compile_to_bir(kernel, ParserFrontend(), {"x": X})


def test_inputs_without_names_are_refused_with_a_code() -> None:
    with pytest.raises(NotInGlia, match=r"(?s)inputs of list.*inputs=\{'x': array\}"):
        TracerFrontend().compile(print, inputs=[np.zeros(4)])  # type: ignore[arg-type]


def test_the_environment_chooses_the_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_frontend_cls() is TracerFrontend
    monkeypatch.setenv("NKI_COMPILER_FRONTEND", "parser")
    assert resolve_frontend_cls() is ParserFrontend


def test_a_frontend_compiles_by_itself(tmp_path: Path) -> None:
    options = _options(tmp_path)
    found = ParserFrontend().compile(
        None,
        scaled_sum,
        inputs=INPUTS,
        target=options.target,
        lnc=options.lnc,
        artifacts_dir=options.artifacts_dir,
        output_names=None,
        enable_device_dump=options.enable_device_dump,
        debug=options.debug,
        lower_dma_transpose=options.lower_dma_transpose,
    )
    compiled = CompiledKernel.from_frontend(found, options)
    result = compiled.benchmark(warmup=2, iterations=3, x=X, y=Y)
    np.testing.assert_array_equal(next(iter(result.outputs.values())), 2 * X + Y)
    assert result.latency is not None and 0 < result.latency < 1e-3
    assert compiled.total_time_ns == pytest.approx(result.latency * 1e9)
    assert result.latency_min == result.latency_max and result.latency_std == 0
    assert 0 < compiled.estimated_utilization["vector"] < 100
    module = compile_mlir_to_neff(found.module, found.function_name, compile_opts=options)
    assert module.run(x=X, y=Y).outputs.keys() == result.outputs.keys()


def test_a_frontend_needs_no_scope() -> None:
    texts = {
        str(found)
        for found in (
            TracerFrontend().compile(None, scaled_sum, INPUTS, target="trn2"),
            TracerFrontend().compile(scaled_sum, INPUTS, target="trn2"),
            TracerFrontend().compile(scaled_sum, inputs=INPUTS, target="trn2"),
        )
    }
    assert len(texts) == 1 and "scaled_sum" in texts.pop()
    with pytest.raises(NotInGlia, match="syntax trees"):
        TracerFrontend().compile(scaled_sum, inputs=INPUTS, dump_python_ast=True)


def test_options_are_replaced_and_have_a_mode(tmp_path: Path) -> None:
    options = replace(_options(tmp_path), mode=CompilationMode.INTEGRATION, lnc=2)
    bir = compile_to_bir(halves, TracerFrontend(), {"x": X}, options)
    assert len(bir.programs) == 2
    compiled = compile_bir_to_neff(options, bir)
    np.testing.assert_array_equal(next(iter(compiled.run(x=X).outputs.values())), X)


def test_a_kernel_of_beta1_compiles_too(tmp_path: Path) -> None:
    @beta1_jit
    def negative(x: Any) -> Any:
        out = beta1_nl.ndarray(x.shape, dtype=x.dtype, buffer=beta1_nl.shared_hbm)
        beta1_nl.store(out, beta1_nl.negative(beta1_nl.load(x)))
        return out

    options = _options(tmp_path)
    compiled = _compile_bir_to_neff(compile_to_bir(negative, None, {"x": X}, options), options)
    np.testing.assert_array_equal(next(iter(compiled.run(x=X).outputs.values())), -X)


def test_mlir_and_names_that_there_are_not_are_refused(tmp_path: Path) -> None:
    options = _options(tmp_path)
    with pytest.raises(NotInGlia, match="no MLIR"):
        compile_mlir_to_neff("module {}", "kernel", options)
    bir = compile_to_bir(scaled_sum, None, INPUTS, options)
    with pytest.raises(NotInGlia, match="str"):
        bir.operation.get_asm(print_generic_op_form=True)
    with pytest.raises(ValueError, match="inputs are x, y"):
        compile_bir_to_neff(options, bir, [], ["a", "b"], [])
    with pytest.raises(ValueError, match="holds scaled_sum"):
        compile_mlir_to_neff(bir.module, "other", options)
    with pytest.raises(BadLaunch, match="2 output names"):
        compile_to_bir(scaled_sum, None, INPUTS, options, ["a", "b"])


@pytest.mark.parametrize("option", ["enable_simulation", "enable_device_dump"])
def test_options_that_nothing_would_follow_are_refused(option: str) -> None:
    with pytest.raises(NotInGlia, match=option):
        CompileOptions(**{option: True})


# --- NEFFs on the device -------------------------------------------------------------------------


def test_a_neff_runs_on_tensors_of_the_device(tmp_path: Path) -> None:
    model = SpikeModel.load_from_neff(_compiled(tmp_path).neff_path, core_id=1)
    assert list(model.input_tensors_info) == ["x", "y"]
    info = model.output_tensors_info["sum"]
    assert (info.shape, info.size, info.dtype) == ((128, 64), X.nbytes, np.float32)
    assert model.alias_info == {} and model.name == "file"
    inputs = {
        "x": SpikeTensor.from_numpy(X, "x", core_id=1),
        "y": SpikeTensor.from_numpy(Y, name="y"),
    }
    found = model(inputs=inputs, outputs=None)
    np.testing.assert_array_equal(found["sum"].numpy(), 2 * X + Y)
    outputs = {"sum": SpikeTensor.from_numpy(np.full_like(X, np.nan), "sum")}
    inputs["y"].write_from_numpy(X)
    model(inputs, outputs=outputs)
    np.testing.assert_array_equal(outputs["sum"].numpy(), 3 * X)


def test_a_neff_is_timed_without_running_it_often(tmp_path: Path) -> None:
    compiled = _compiled(tmp_path)
    model = compiled._ensure_loaded(0, 1)
    inputs = {n: SpikeTensor.from_numpy(v, n) for n, v in (("x", X), ("y", Y))}
    outputs = {n: SpikeTensor.from_numpy(v, n) for n, v in compiled.prepare_outputs().items()}
    found = model.benchmark(inputs, outputs, warmup_iter=3, benchmark_iter=20, mode="device")
    assert len(found.durations_ms) == 20 and found.std_dev_ms == 0
    assert found.mean_ms * 1000 == pytest.approx(model.profile().latency_us)
    np.testing.assert_array_equal(outputs["sum"].numpy(), 2 * X + Y)
    with pytest.raises(ValueError, match="none of"):
        model.benchmark(inputs, mode="wall")


def test_a_trace_gives_the_metrics_of_a_run(tmp_path: Path) -> None:
    options = _options(tmp_path)
    lhs = np.ones((128, 64), ml_dtypes.bfloat16)
    inputs = {"lhs": lhs, "rhs": np.ones((128, 256), ml_dtypes.bfloat16)}
    compiled = _compile_bir_to_neff(compile_to_bir(product, None, inputs, options), options)
    tensors = {name: SpikeTensor.from_numpy(value, name) for name, value in inputs.items()}
    trace_file = tmp_path / "kernel.ntff"
    with pytest.raises(FileNotFoundError, match="save_trace"):
        extract_perf_metrics(compiled.neff_path, str(trace_file))
    compiled._ensure_loaded()(tensors, save_trace=True, ntff_name=str(trace_file))
    found = extract_perf_metrics(compiled.neff_path, str(trace_file), verbose=True)
    assert found["hardware_flops"] == 2 * 128 * 64 * 256
    assert found["matmul_instruction_count"] == 1
    assert found["hbm_read_bytes"] == 2 * (128 * 64 + 128 * 256)
    assert found["hbm_write_bytes"] == 4 * 64 * 256
    assert found["total_time"] * 1e6 == pytest.approx(compiled.total_time_ns / 1000)
    assert 0 < found["mfu_estimated_percent"] <= found["hfu_estimated_percent"] < 100


def test_an_input_that_the_kernel_overwrites_is_changed(tmp_path: Path) -> None:
    options = _options(tmp_path)
    bir = compile_to_bir(doubled_in_place, None, {"x": X}, options)
    compiled = _compile_bir_to_neff(bir, options)
    assert compiled.input_output_aliases == {0: "x"}
    model = compiled._ensure_loaded()
    (output,) = model.alias_info
    tensor = SpikeTensor.from_numpy(X, "x")
    assert model({"x": tensor})[output] is tensor
    np.testing.assert_array_equal(tensor.numpy(), 2 * X)
    array = X.copy()
    compiled.run(**{"x.must_alias_input": array})
    np.testing.assert_array_equal(array, 2 * X)


def test_one_rank_of_several_is_refused(tmp_path: Path) -> None:
    path = _compiled(tmp_path).neff_path
    assert SpikeModel.load_from_neff(neff_path=path, cc_enabled=True)
    with pytest.raises(NotInGlia, match="world_size=2"):
        SpikeModel.load_from_neff(path, rank_id=1, world_size=2)


# --- kernels -------------------------------------------------------------------------------------


def test_kernels_are_of_the_class_that_tools_make(tmp_path: Path) -> None:
    def copied(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return out

    kernel = Kernel(copied)
    assert isinstance(scaled_sum, Kernel) and kernel.func is copied
    assert list(inspect.signature(scaled_sum.func).parameters) == ["x", "y", "factor"]
    options = _options(tmp_path)
    compiled = _compile_bir_to_neff(compile_to_bir(kernel, TracerFrontend(), {"x": X}), options)
    np.testing.assert_array_equal(next(iter(compiled.run(x=X).outputs.values())), X)


def test_a_compiling_kernel_hands_its_neff_to_the_caller(tmp_path: Path) -> None:
    kept = []

    def executor(compiled: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        kept.append(compiled)
        compiled.execute(inputs, outputs)

    kernel = scaled_sum._to_subclass(
        CompileKernel, artifacts_dir=str(tmp_path), target="trn2", _executor=executor
    )
    np.testing.assert_array_equal(kernel(X, Y, factor=3.0), 3 * X + Y)
    assert Path(kept[0].neff_path).parent == tmp_path
    whole = jit(halves)[2]._to_subclass(CompileKernel, artifacts_dir=str(tmp_path))
    np.testing.assert_array_equal(whole(X), X)
    assert json.loads((tmp_path / "info.json").read_text())["lnc"] == 2
    np.testing.assert_array_equal(jit(halves)._to_subclass(CompileKernel)[2](X), X)


def test_a_standalone_kernel_says_how_it_would_be_compiled(tmp_path: Path) -> None:
    kernel: Any = scaled_sum._to_subclass(StandaloneKernel)
    inputs = kernel._bind_args((X, Y), {"factor": 2.0})
    options = replace(kernel._compile_opts(), output_path=str(tmp_path / "kernel.neff"))
    frontend = kernel._frontend_cls(enable_backend_opt=kernel._enable_backend_opt)
    program = compile_kernel_to_nir(
        kernel, inputs=inputs, compile_opts=options, frontend=frontend, enable_cache=False
    )
    compiled = _compile_bir_to_neff(program, options, inputs)
    again = CompiledKernel(
        neff_path=compiled.neff_path, target=options.target, lnc=1, artifacts_dir=None, bir=program
    )
    for each in (compiled, again):
        found = next(iter(each.run(x=X, y=Y).outputs.values()))
        np.testing.assert_array_equal(found, 2 * X + Y)
    (found,) = run_from_bir(program, options, inputs).values()
    np.testing.assert_array_equal(found, 2 * X + Y)


# --- simulation, traces, targets -----------------------------------------------------------------


def test_simulate_kernel_takes_arguments_in_two_collections() -> None:
    for found in (
        simulate_kernel(scaled_sum, (X, Y), {}),
        simulate_kernel(scaled_sum, args=[], kwargs={"x": X, "y": Y}, _lnc=1),
        simulate_kernel(scaled_sum.func, (X,), {"y": Y}, lnc=1),
        simulate_kernel(scaled_sum, (X, Y)),
        cpu_simulate(scaled_sum)[1](x=X, y=Y),  # type: ignore[index]
    ):
        np.testing.assert_array_equal(found, X + Y)
    np.testing.assert_array_equal(simulate_kernel(halves, (), {"x": X}, _lnc=2), X)
    np.testing.assert_array_equal(simulate_kernel(halves, [X], lnc=2), X)


def test_trace_specialises_for_a_grid_and_a_target() -> None:
    found = trace(halves, grid=(2,), platform_target="trn3").specialize(X)
    assert [each.target for each in found.programs] == ["trn3", "trn3"]
    assert len(trace(scaled_sum, grid=None).specialize(X, y=Y).programs) == 1


def test_comparing_with_dumps_says_what_to_do_instead() -> None:
    with pytest.raises(NotInGlia, match="device_print"):
        debug_kernel(scaled_sum, (), {}, "dumps", core_id=0, _lnc=1, rtol=1e-2, atol=1e-1)
    with pytest.raises(NotInGlia, match=r"nki\.debug"):
        debug(scaled_sum, dump_dir="dumps")


def test_targets_are_resolved_as_kernels_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_target() == "trn2" and CompileOptions().target == "trn2"
    assert resolve_target("gen4") == "trn3"
    generations = [target_to_nc_version(name) for name in ("trn1", "inf2", "trn2", "trn3")]
    assert generations == [2, 2, 3, 4]
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE")
    assert resolve_target() == "trn3"
    with pytest.raises(BadLaunch, match="trn9"):
        resolve_target("trn9")


# --- kernel_builder ------------------------------------------------------------------------------


def silu(x_hbm: nb.Tensor, out_hbm: nb.Tensor) -> None:
    """Write silu(x) to out, by tiles."""
    for row in nl.affine_range(x_hbm.shape[0] // 128):
        rows = slice(row * 128, (row + 1) * 128)
        x = nb.ndarray((128, x_hbm.shape[1]), x_hbm.dtype, nb.sbuf)
        nb.isa.dma_copy(dst=x, src=x_hbm[rows, :])
        out = nb.ndarray_like(x)
        ones = nb.ndarray((128, 1), x_hbm.dtype, nb.sbuf, num_buffers=2)
        nb.isa.memset(dst=ones, value=1.0)
        zeros = nb.ndarray((128, 1), x_hbm.dtype, memspace=nb.sbuf)
        nb.isa.memset(dst=zeros, value=0.0)
        nb.isa.activation(
            dst=out, src=x, bias=zeros, scale=ones, op=nb.isa.activation_function.silu
        )
        nb.isa.dma_copy(dst=out_hbm[rows, :], src=out, engine=nb.isa.engine.Sync)


WIDE = np.linspace(-4, 4, 256 * 32, dtype=np.float32).reshape(256, 32)


def test_build_kernel_makes_a_program_of_tensors_in_and_out(tmp_path: Path) -> None:
    spec = nb.Tensor(WIDE.shape, nb.float32, nb.shared_hbm)
    built = nb.build_kernel(silu, input_specs={"x_hbm": spec}, output_specs={"out_hbm": spec})
    assert [each.name for each in built.input_specs] == ["x_hbm"]
    assert [each.name for each in built.output_specs] == ["out_hbm"]
    compiled = compile_mlir_to_neff(built, "silu", _options(tmp_path))
    found = compiled.run(x_hbm=WIDE).outputs["out_hbm"]
    np.testing.assert_allclose(found, WIDE / (1 + np.exp(-WIDE)), rtol=1e-5, atol=1e-6)


def test_compile_and_execute_overwrites_outputs(tmp_path: Path) -> None:
    options = nb.CompileOptions(target="trn2", output_path=str(tmp_path / "silu.neff"))
    out = np.zeros_like(WIDE)
    nb.compile_and_execute(
        silu, inputs={"x_hbm": WIDE}, outputs={"out_hbm": out}, compile_opts=options
    )
    expected = WIDE / (1 + np.exp(-WIDE))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    compiled = nb.compile_kernel(silu, {"x_hbm": WIDE}, {"out_hbm": out}, compile_opts=options)
    out[...] = 0
    compiled.execute(inputs={"x_hbm": WIDE}, outputs={"out_hbm": out})
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_functions_and_numbers_are_constants_of_the_program(tmp_path: Path) -> None:
    def tiled(input_tensor: Any, output_tensor: Any, tile_fn: Any) -> None:
        tile = nl.ndarray(input_tensor.shape, input_tensor.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=input_tensor)
        tile_fn(dst=tile, src=tile)
        nisa.dma_copy(dst=output_tensor, src=tile)

    def relu(dst: Any, src: Any) -> None:
        nisa.activation(dst=dst, data=src, op=nl.relu)

    options = nb.CompileOptions(target="trn2", output_path=str(tmp_path / "tiled.neff"))
    out = np.zeros_like(X)
    nb.compile_and_execute(
        tiled, {"input_tensor": X - 4}, {"output_tensor": out}, options, tile_fn=relu
    )
    np.testing.assert_array_equal(out, np.maximum(X - 4, 0))


def test_a_kernel_that_returns_its_outputs_is_compiled_with_constants(tmp_path: Path) -> None:
    options = _options(tmp_path)
    compiled = nb.compile_kernel(
        scaled_sum.func,
        inputs={"x": X, "y": Y},
        compile_opts=options,
        return_outputs=True,
        factor=4.0,
    )
    result = compiled.benchmark(warmup=5, iterations=50, x=X, y=Y)
    np.testing.assert_array_equal(next(iter(result.outputs.values())), 4 * X + Y)
    assert result.mbu is not None and 0 < result.mbu < 100
    with pytest.raises(BadLaunch, match="return_outputs"):
        nb.compile_kernel(scaled_sum.func, {"x": X}, {"y": Y}, options, return_outputs=True)


def test_an_output_that_is_not_written_is_an_error() -> None:
    def reads(x: Any, out: Any) -> Any:
        return doubled_in_place(x)

    spec = nb.Tensor(X.shape, nb.float32)
    with pytest.raises(BadLaunch, match="does not write its output out"):
        nb.build_kernel(reads, {"x": spec}, {"out": spec})


def _run(function: Any, out: tuple[int, ...], **inputs: np.ndarray) -> np.ndarray:
    """What a function of kernel_builder writes to its parameter `out`."""
    result = np.zeros(out, np.float32)
    inputs = {name: value.astype(np.float32) for name, value in inputs.items()}
    lowered = nb.build_kernel(
        function,
        {name: nb.Tensor(value.shape, nb.float32) for name, value in inputs.items()},
        {"out": nb.Tensor(out, nb.float32)},
    )
    result[...] = load(Neff(lowered.programs)).run(inputs)["out"]
    return result


def _loaded(tensor: Any) -> Any:
    tile = nb.compiler.alloc(tensor.shape, dtype=nb.float32, space=nb.sbuf)
    nb.isa.dma_copy(tile, tensor)
    return tile


def test_its_arithmetic_is_that_of_the_engines() -> None:
    isa = nb.isa

    def body(x: Any, y: Any, out: Any) -> None:
        left, right = _loaded(x), _loaded(y)
        with nb.compiler.perfetto_group("arithmetic", loop_vars={"i": 0}):
            isa.tensor_tensor_arith(left, left, right, op=isa.arith_op.Subtract, name="difference")
            isa.tensor_scalar_arith(
                left, left, 2.0, op0=isa.arith_op.Subtract,
                reverse_operands=isa.tens_scalar_rev_ops.First,
            )  # fmt: skip
        column = nb.ndarray((128, 1), nb.float32, name="column")
        isa.tensor_reduce_arith(column, left, op=isa.arith_op.Max, num_r_dim=1, negated=True)
        isa.scalar_tensor_tensor_arith(
            dst=left, src0=left, src1=right, imm0=column, op0=isa.arith_op.Multiply,
            op1=isa.arith_op.Add,
        )  # fmt: skip
        nb.compiler.release(right)
        isa.dma_copy(out, left)

    y = np.flip(X, 1)
    found = _run(body, X.shape, x=X, y=y)
    difference = np.float32(2) - (X - y)
    expected = difference * -difference.max(1, keepdims=True) + y
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_its_reductions_fill_a_second_tensor() -> None:
    isa = nb.isa

    def body(x: Any, out: Any) -> None:
        tile, sums = _loaded(x), nb.ndarray((128, 3), nb.float32)
        isa.tensor_scalar_cache_reduce(
            dst=tile, reduce_res=sums[:, nb.ts(0, 1)], src=tile, operand0=3.0,
            op0=isa.arith_op.Multiply, reduce_op=isa.arith_op.Max,
        )  # fmt: skip
        for command, column in ((None, 1), (isa.reduce_cmd.ResetReduce, 2)):
            isa.activation(
                dst=tile, src=tile, op=isa.activation_function.square,
                reduce_res=sums[:, nb.ds(column, 1)], reduce_op=isa.activation_reduce_op.Add,
                reduce_cmd=command,
            )  # fmt: skip
        isa.dma_copy(out, sums)

    found = _run(body, (128, 3), x=X)
    triple = 3 * X
    expected = [triple.max(1), np.square(triple).sum(1), np.square(np.square(triple)).sum(1)]
    np.testing.assert_allclose(found, np.stack(expected, 1), rtol=1e-5)


def test_its_products_add_up_only_where_they_are_told() -> None:
    isa = nb.isa

    def body(x: Any, y: Any, out: Any) -> None:
        lhs, rhs = _loaded(x), _loaded(y)
        sums = nb.ndarray((64, 64), nb.float32, memspace=nb.psum)
        for step in nb.range(4):
            isa.matmul(dst=sums, stationary=lhs, moving=rhs, accum=step > 1)
        tile = nb.ndarray((64, 64), nb.float32)
        isa.tensor_copy(dst=tile, src=sums, engine=isa.engine.Scalar)
        isa.dma_copy(dst=out, src=tile)

    found = _run(body, (64, 64), x=X, y=Y)
    np.testing.assert_allclose(found, 3 * (X.T @ Y), rtol=1e-5)


def test_its_selections_follow_masks_and_bounds() -> None:
    isa = nb.isa

    def body(x: Any, out: Any) -> None:
        tile, done = _loaded(x), nb.ndarray(x.shape, nb.float32)
        mask = nb.ndarray(x.shape, nb.uint8)
        isa.tensor_scalar_arith(mask, tile, 4.0, isa.arith_op.IsGT)
        isa.memset(done, -1.0)
        isa.copy_predicated(dst=done, pred_mask=mask, src=tile)
        low, high = nb.ndarray((128, 1), nb.float32), nb.ndarray((128, 1), nb.float32)
        isa.memset(low, 8.0)
        isa.memset(high, 48.0)
        picked = nb.ndarray(x.shape, nb.float32)
        isa.range_select(
            dst=picked, src=done, bound0=low, bound1=high, fill_value=LEAST,
            comp_op0=isa.range_select_cmp.IsGe, comp_op1=isa.range_select_cmp.IsLt,
        )  # fmt: skip
        isa.dma_copy(out, picked)

    columns = np.arange(64)
    expected = np.where((columns >= 8) & (columns < 48), np.where(X > 4, X, -1), np.float32(LEAST))
    np.testing.assert_array_equal(_run(body, X.shape, x=X), expected.astype(np.float32))


def test_its_scans_and_exponentials_go_along_a_row() -> None:
    isa = nb.isa

    def body(x: Any, y: Any, out: Any) -> None:
        left, right = _loaded(x), _loaded(y)
        isa.tensor_tensor_scan(
            dst=left, src0=right, src1=left, imm0=0.0, op0=isa.arith_op.Multiply,
            op1=isa.arith_op.Add,
        )  # fmt: skip
        isa.tensor_scalar_arith(left, left, 0.001, isa.arith_op.Multiply)
        isa.activation(left, left, op=isa.activation_function.exp)
        isa.dma_copy(out, left)

    expected = np.exp(np.cumsum(X, 1) * np.float32(0.001))
    np.testing.assert_allclose(_run(body, X.shape, x=X, y=Y), expected, rtol=1e-5)


def test_a_function_of_any_keywords_has_those_that_it_is_given(tmp_path: Path) -> None:
    def copied(**tensors: Any) -> None:
        nb.isa.dma_copy(tensors["z_out"], _loaded(tensors["x"]))

    copied.__annotations__ = {"x": nb.Tensor, "z_out": nb.Tensor}
    out = np.zeros_like(X)
    options = nb.CompileOptions(target="trn2", output_path=str(tmp_path / "copied.neff"))
    nb.compile_and_execute(copied, inputs={"x": X}, outputs={"z_out": out}, compile_opts=options)
    np.testing.assert_array_equal(out, X)


def test_its_loops_run_on_the_device_up_to_a_register() -> None:
    isa = nb.isa

    def body(x: Any, out: Any) -> None:
        tile = _loaded(x)
        bound = nb.ndarray((1, 1), nb.int32)
        isa.memset(dst=bound, value=3)
        isa.dma_copy(out, tile)

        def doubled(_: Any) -> None:
            isa.tensor_scalar_arith(tile, tile, 2.0, isa.arith_op.Multiply)
            isa.dma_copy(out, tile)

        nb.fori_loop(isa.load_register(bound[0:1, :]), doubled)

        @nb.fori_loop(2)
        def _(index: Any) -> None:
            doubled(index)

    np.testing.assert_array_equal(_run(body, X.shape, x=X), 32 * X)


def test_its_loops_name_tiles_by_their_number() -> None:
    def body(x: Any, out: Any) -> None:
        def move(row: Any) -> None:
            tile = nb.ndarray((32, 64), nb.float32)
            nb.isa.dma_copy(tile, x[nb.ts(row, 32), :])
            nb.isa.dma_copy(out[nb.ds(row * 32, 32), :], tile)

        nb.fori_loop(4, move)

    np.testing.assert_array_equal(_run(body, X.shape, x=X), X)


def test_it_knows_the_target_and_its_own_names() -> None:
    assert nb.get_target_info().name == "trn2"
    with pytest.raises(NoSuchName, match="did you mean matmul"):
        _ = nb.isa.matmull
    with pytest.raises(NoSuchName, match="arith_op"):
        _ = nb.isa.arith_op.Divide


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_to_bir(scaled_sum, None, INPUTS)

"""StableHLO and jax.stages.Lowered reach the same graph as their HLO."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glia.cache.key import canonical_module
from glia.frontend import conversion
from glia.frontend.errors import BadStableHlo, UnknownDType
from glia.frontend.hlo_import.hlo_proto import messages
from glia.frontend.registry import read_module, read_module_file, serialized_hlo
from glia.frontend.stablehlo import (
    import_lowered,
    import_stablehlo,
    is_stablehlo,
    parse_module,
)
from glia.graph.evaluate import evaluate

FRONTEND = Path(conversion.__file__).parent
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def _function(x: Any) -> Any:
    return jnp.sin(x) @ x.T


LOWERED = jax.jit(_function).lower(X)


@pytest.mark.parametrize(
    "form",
    [
        LOWERED.as_text(),
        LOWERED.as_text().encode(),
        jax.export.export(jax.jit(_function))(X).mlir_module_serialized,
    ],
    ids=["text", "bytes of text", "portable artifact"],
)
def test_stablehlo_computes_what_jax_computes(form: str | bytes) -> None:
    (found,) = evaluate(import_stablehlo(form), [X])
    np.testing.assert_allclose(found, _function(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "form",
    [
        LOWERED.as_text(),
        "// a comment\n\n// of two lines\n" + LOWERED.as_text(),
        LOWERED.compiler_ir().operation.get_asm(print_generic_op_form=True),
        LOWERED.compiler_ir().operation.get_asm(enable_debug_info=True),
        jax.export.export(jax.jit(_function))(X).mlir_module_serialized,
    ],
    ids=["text", "comments", "generic form", "locations", "portable artifact"],
)
def test_a_file_of_stablehlo_is_read_by_its_contents(form: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.of_any_name"
    path.write_bytes(form if isinstance(form, bytes) else form.encode())
    graph = read_module(path)
    np.testing.assert_allclose(evaluate(graph, [X])[0], _function(X), rtol=1e-5, atol=1e-5)
    assert canonical_module(read_module_file(path)) == canonical_module(serialized_hlo(str(path)))


@pytest.mark.parametrize("length", range(6, 40))
def test_an_hlo_module_of_any_name_is_no_text(length: int) -> None:
    """The length of a name is a byte of the file, and may be a line feed or a blank."""
    message = messages()["Module"]()
    message.ParseFromString(LOWERED.compiler_ir("hlo").as_serialized_hlo_module_proto())
    message.name = f"{'module @m ':x<{length}}"[:length]
    assert not is_stablehlo(message.SerializeToString())
    assert read_module(message.SerializeToString()).name == message.name


def test_lowered_names_the_source_line() -> None:
    (result,) = import_lowered(LOWERED).results
    assert result.loc.file.endswith("test_frontend_jax.py") and result.loc.line > 0


def test_linear_algebra_primitives_are_imported() -> None:
    def solve(a: Any, b: Any) -> Any:
        factor = jax.lax.linalg.cholesky(a)
        return jax.lax.linalg.triangular_solve(factor, b, left_side=True, lower=True)

    root = np.tril(np.random.default_rng(0).uniform(0.5, 1.5, (5, 5))).astype(np.float32)
    b = np.ones((5, 2), np.float32)
    exported = jax.export.export(jax.jit(solve), platforms=["tpu"])(root @ root.T, b)
    (found,) = evaluate(import_stablehlo(exported.mlir_module_serialized), [root @ root.T, b])
    np.testing.assert_allclose(found, np.linalg.solve(root, b), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "module", ["func.func @main(", "module {}", "", b"ML\xefRnonsense", b"\xff"]
)
def test_stablehlo_that_does_not_convert_is_refused(module: str | bytes) -> None:
    with pytest.raises(BadStableHlo):
        import_stablehlo(module)


def _constant(dtype: str) -> str:
    kind = f"tensor<2x{dtype}>"
    body = f"%0 = stablehlo.constant dense<1.0> : {kind}\n return %0 : {kind}"
    return f"func.func @main() -> {kind} {{ {body} }}"


def _bytecode(text: str) -> bytes:
    stream = io.BytesIO()
    parse_module(text).operation.write_bytecode(stream)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", ["f6E2M3FN", "f6E3M2FN"])
def test_floats_that_hlo_lacks_are_refused(dtype: str) -> None:
    with pytest.raises(UnknownDType, match=f"element type {dtype} is not known"):
        import_stablehlo(_constant(dtype))


@pytest.mark.parametrize(
    "module",
    [
        _bytecode(_constant("f6E2M3FN")),
        _bytecode(_constant("f32")).replace(b"func", b"\xffunc"),
        f"func.func @main(%a: {'tuple<' * 200_000}f32{'>' * 200_000}) {{ return }}",
    ],
    ids=["a check of jaxlib", "a name that is not UTF-8", "a stack too deep"],
)
def test_modules_that_end_jaxlib_are_refused(module: str | bytes) -> None:
    """And the next module is converted."""
    with pytest.raises(BadStableHlo):
        import_stablehlo(module)
    (found,) = evaluate(import_stablehlo(_constant("f32")), [])
    assert found.tolist() == [1, 1]


OUT_OF_MEMORY = """
sys.path.append(sys.argv[-1])
import conversion_worker as worker
worker.BYTES_BESIDE = worker.BYTES_PER_BYTE = 0
worker.main()
"""
WORKERS = {
    "silent": ("pass", "ended .status 0."),
    "crashing": ("import os; os.kill(os.getpid(), 11)", "ended .segmentation fault."),
    "boasting": ("import os; os.write(1, b'+' + bytes([255] * 8))", "its HLO module has"),
    "cut short": ("import os; os.write(1, b'+' + bytes([9] + [0] * 7) + b'x')", "ended .status 0."),
    "hanging": ("import time; time.sleep(60)", "stopped after 0.5 seconds"),
    "talkative": ("import sys; sys.exit('no memory left')", "ended .status 1.: no memory left"),
    "out of memory": (OUT_OF_MEMORY, "memory|ended"),
}


@pytest.mark.parametrize("worker", WORKERS)
def test_however_the_conversion_ends_the_module_is_refused(
    worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, message = WORKERS[worker]
    path = tmp_path / "worker.py"
    path.write_text(f"import sys; sys.argv.append({str(FRONTEND)!r})\n{script}\n")
    monkeypatch.setattr(conversion.conversion_worker, "__file__", str(path))
    monkeypatch.setattr(conversion, "PATIENCE", 0.5 if worker == "hanging" else 60)
    with pytest.raises(BadStableHlo, match=message):
        conversion.Converter().convert(_constant("f32").encode())

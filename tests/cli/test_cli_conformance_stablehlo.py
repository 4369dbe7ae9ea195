"""`glia conformance stablehlo` runs programs that check their own results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result

from glia.cli.glia import main
from glia.conformance.stablehlo import run_cases as run
from glia.conformance.stablehlo.cases import Case, find_cases
from glia.conformance.stablehlo.compare import describe_mismatch, ulp_difference
from glia.conformance.stablehlo.outcome import MISMATCH, PASS
from glia.conformance.stablehlo.program import ValueCheck, read_program
from glia.conformance.stablehlo.term_magnitudes import term_magnitudes
from glia.frontend.errors import FrameworkMissing
from glia.frontend.stablehlo import import_stablehlo

CALLED = """
module @jit_main {{
  func.func public @main() -> tensor<2xf32> {{
    %0 = call @inputs() : () -> tensor<2xf32>
    %1 = call @expected() : () -> tensor<2xf32>
    %2 = stablehlo.negate %0 : tensor<2xf32>
    stablehlo.custom_call @check.expect_close(%2, %1) {{has_side_effect = true}}
      : (tensor<2xf32>, tensor<2xf32>) -> ()
    return %2 : tensor<2xf32>
  }}
  func.func private @inputs() -> tensor<2xf32> {{
    %cst = stablehlo.constant dense<[1.5, -2.0]> : tensor<2xf32>
    return %cst : tensor<2xf32>
  }}
  func.func private @expected() -> tensor<2xf32> {{
    %cst = stablehlo.constant dense<[{first}, 2.0]> : tensor<2xf32>
    return %cst : tensor<2xf32>
  }}
}}
"""
SEVERAL = """
// RUN: not a module, but the first of the file holds it
func.func @product_c64() {
  %0 = stablehlo.constant dense<[(1.0, 2.0)]> : tensor<1xcomplex<f32>>
  %1 = stablehlo.multiply %0, %0 : tensor<1xcomplex<f32>>
  check.expect_almost_eq_const %1, dense<[(-3.0,
    4.0)]> : tensor<1xcomplex<f32>>
  func.return
}

// -----

func.func @two_values() {
  %0 = stablehlo.constant dense<[2, 3]> : tensor<2xi32>
  %1 = stablehlo.constant dense<[4, 6]> : tensor<2xi32>
  %2 = stablehlo.add %0, %0 : tensor<2xi32>
  check.expect_eq %2, %1 : tensor<2xi32>
  %3 = stablehlo.multiply %0, %1 : tensor<2xi32>
  %4 = stablehlo.add %3, %3 : tensor<2xi32>
  %5 = stablehlo.multiply %2, %1 : tensor<2xi32>
  check.expect_eq %4, %5 : tensor<2xi32>
  func.return
}

// -----

func.func @wide() {
  %0 = stablehlo.constant dense<2.0> : tensor<f64>
  "check.expect_eq_const"(%0) <{value = dense<2.0> : tensor<f64>}> : (tensor<f64>) -> ()
  func.return
}

// -----

func.func @opaque() {
  %0 = stablehlo.constant dense<2.0> : tensor<f32>
  %1 = stablehlo.custom_call @unheard_of(%0) : (tensor<f32>) -> tensor<f32>
  check.expect_almost_eq_const %1, dense<2.0> : tensor<f32>, tolerance = 0.1
  func.return
}
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stablehlo")
    called = root / "stablehlo" / "testdata"
    called.mkdir(parents=True)
    (called / "negate_float32_2.mlir").write_text(CALLED.format(first="-1.5"))
    (called / "negate_float32_2_wrong.mlir").write_text(CALLED.format(first="-1.6"))
    several = root / "stablehlo" / "tests" / "interpret"
    several.mkdir(parents=True)
    (several / "multiply.mlir").write_text(SEVERAL)
    return root


def conform(clone: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["conformance", "stablehlo", "--repo", str(clone), *arguments])


def test_every_case_has_its_outcome_on_every_target(clone: Path) -> None:
    result = conform(clone, "--target", "trn1", "--target", "trn2", "--json", "-O", "1")
    assert result.exit_code == 1 and "2 of 12 fail" in result.stderr
    found = {
        (c["case"].rpartition("/")[2], c["target"]): c for c in json.loads(result.stdout)["cases"]
    }
    for target in ("trn1", "trn2"):
        assert found["negate_float32_2.mlir", target]["status"] == "pass"
        wrong = found["negate_float32_2_wrong.mlir", target]
        assert (wrong["status"], wrong["dtype"]) == ("mismatch", "f32")
        assert wrong["reason"] == "1 of 2 elements, first at [0]: -1.5, expected -1.600000023841858"
        assert found["multiply.mlir#0", target]["dtype"] == "c64"
        assert found["multiply.mlir#1", target]["status"] == "pass"
        assert found["multiply.mlir#2", target]["reason"] == "f64"
        assert found["multiply.mlir#3", target]["code"] == "NCC_EVRF015"


def test_the_table_counts_by_operation_and_dtype(clone: Path) -> None:
    result = conform(clone, "--only", "negate")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:2] == ["mismatch", "trn2"]
    assert ["negate", "f32", "1", "1"] in lines
    assert lines[-1] == ["all", "1", "1"]
    assert conform(clone, "--only", "negate_float32_2.mlir").exit_code == 0


def test_a_crash_or_hang_costs_one_case(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    process = tmp_path / "process"
    process.write_text(f"#!/bin/sh\necho once >> {starts}\necho died >&2\nexit 3\n")
    process.chmod(0o755)
    monkeypatch.setattr(run.sys, "executable", str(process))
    settings = run.Settings(clone, ("trn2",), seconds=60)
    outcomes = list(run.run_all(settings, "negate"))
    assert [(each.status, each.reason) for each in outcomes] == [("error", "died")] * 2
    assert starts.read_text() == "once\n" * 2
    process.write_text("#!/bin/sh\nexec sleep 60\n")
    outcomes = list(run.run_all(run.Settings(clone, ("trn2",), seconds=0.2), "negate"))
    assert [each.reason for each in outcomes] == ["stopped after 0.2 seconds"] * 2


def test_a_folder_without_cases_is_refused(tmp_path: Path) -> None:
    result = conform(tmp_path)
    assert result.exit_code == 1 and "GLIA129" in result.stderr


def test_a_module_without_checks_is_refused() -> None:
    outcome = run.run_case(Case("a.mlir", "func.func @f() { return }"), "trn2", 2)
    assert (outcome.status, outcome.code) == ("refused", "GLIA129")


def test_text_that_is_no_mlir_is_refused() -> None:
    outcome = run.run_case(Case("a.mlir", "func.func @f("), "trn2", 2)
    assert (outcome.status, outcome.code) == ("refused", "GLIA109")


def test_what_needs_jax_says_so(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxlib.mlir.ir", None)
    with pytest.raises(FrameworkMissing, match="glia conformance stablehlo needs jaxlib"):
        list(run.run_all(run.Settings(clone, ("trn2",))))


def test_an_exception_without_a_code_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(run, "read_program", fail)
    outcome = run.run_case(Case("a.mlir", ""), "trn2", 2)
    assert (outcome.status, outcome.reason) == ("error", "KeyError: 'gone'")


def test_constants_become_arguments_but_those_of_shapes() -> None:
    program = read_program(
        """
        func.func @f() {
          %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
          %1 = stablehlo.constant dense<[2, 2]> : tensor<2xi32>
          %2 = stablehlo.dynamic_broadcast_in_dim %0, %1, dims = [1]
            : (tensor<2xi32>, tensor<2xi32>) -> tensor<2x2xi32>
          check.expect_eq_const %2, dense<[[1, 2], [1, 2]]> : tensor<2x2xi32>
          func.return
        }
        """
    )
    assert [array.tolist() for array in program.inputs] == [[1, 2]]
    assert "dense<2>" in program.module and "@main(%arg0" in program.module


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("check.x tensor<2xcomplex<f64>>", "complex128"),
        ("check.x tensor<?x2xf32>", "dynamic shapes"),
        ("check.x tensor<2x!quant.uniform<i8:f32, 0.1>>", "quantised"),
        ("stablehlo.add : tensor<2xf32>", "no expected values"),
        ('check.x "interpreter.run_parallel"() {programs = [[@f, @f], [@f, @f]]}', ""),
        ("check.x {programs=[[@f, @f], [@f, @fa]]}", "programs that differ by process"),
        ('check.x "stablehlo.infeed"()', "host transfers"),
        ('check.x dense<"0x?f64>"> : tensor<2xf32>', ""),
    ],
)
def test_what_is_not_in_scope_says_why(text: str, scope: str) -> None:
    assert Case("a.mlir", text).scope == scope


PARALLEL = """
module {
  func.func @swap(%x: tensor<2xi32>) -> tensor<2xi32> {
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0]]>
      : tensor<2x2xi64>}> : (tensor<2xi32>) -> tensor<2xi32>
    return %0 : tensor<2xi32>
  }
  func.func @main() {
    %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
    %1 = stablehlo.constant dense<[3, 4]> : tensor<2xi32>
    %2:2 = "interpreter.run_parallel"(%0, %1) {programs = [[@swap], [@swap]]}
      : (tensor<2xi32>, tensor<2xi32>) -> (tensor<2xi32>, tensor<2xi32>)
    check.expect_eq_const %2#1, dense<[1, VALUE]> : tensor<2xi32>
    func.return
  }
}
"""


@pytest.mark.parametrize(("value", "status"), [("2", PASS), ("5", MISMATCH)])
def test_the_processes_of_a_case_are_ranks(value: str, status: str) -> None:
    case = Case("collective_permute.mlir", PARALLEL.replace("VALUE", value))
    assert case.scope == ""
    assert run.run_case(case, "trn1", 1).status == status


def test_a_case_is_named_after_its_operation(clone: Path) -> None:
    assert {case.operation for case in find_cases(clone)} == {"negate", "multiply"}
    name = "stablehlo/testdata/scatter_add_bfloat16_3_int32_2.mlir"
    assert Case(name, "").operation == "scatter_add"


def test_units_in_the_last_place() -> None:
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16):
        one = np.ones(1, dtype)
        following = np.nextafter(one, np.array(2, dtype))
        assert ulp_difference(one, following) == 1
        least = np.nextafter(np.zeros(1, dtype), one)
        assert ulp_difference(least, -least) == 2
        nan, inf = np.full(1, np.nan, dtype), np.full(1, np.inf, dtype)
        assert ulp_difference(nan, -nan) == 0 and ulp_difference(inf, inf) == 0
        assert ulp_difference(nan, inf) == ulp_difference(inf, one) == np.inf


@pytest.mark.parametrize(
    ("kind", "limit", "actual", "holds"),
    [
        ("eq", 0, 1.0, True),
        ("eq", 0, 1.0000001, False),
        ("almost_eq", 1e-4, 1.00009, True),
        ("almost_eq", 1e-4, 1.0002, False),
        ("almost_eq", 1e-4, np.nan, False),
        ("close", 3, 1 + 3 * 2**-23, True),
        ("close", 3, 1 + 4 * 2**-23, False),
    ],
)
def test_what_a_check_accepts(kind: str, limit: float, actual: float, holds: bool) -> None:
    arrays = np.array([actual], np.float32), np.ones(1, np.float32)
    assert (describe_mismatch(ValueCheck(kind, limit), *arrays) == "") is holds


def test_an_array_of_another_type_is_a_mismatch() -> None:
    text = describe_mismatch(ValueCheck("eq"), np.ones(2, np.int8), np.ones(2, np.int16))
    assert text == "int8[2], expected int16[2]"


def test_the_terms_of_a_sum_set_the_scale_of_its_rounding() -> None:
    wide = np.array([1e4, 1, -1e4, 3], np.float32)
    sum_of = """func.func @main(%x: tensor<4xf32>) -> (tensor<f32>, tensor<f32>) {
      %0 = stablehlo.constant dense<0.0> : tensor<f32>
      %1 = stablehlo.reduce(%x init: %0) applies stablehlo.add across dimensions = [0]
        : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
      %2 = stablehlo.negate %1 : tensor<f32>
      %3 = stablehlo.exponential %1 : tensor<f32>
      return %2, %3 : tensor<f32>, tensor<f32>
    }"""
    negated, exponential = term_magnitudes(import_stablehlo(sum_of), [wide])
    assert negated == 20004
    np.testing.assert_allclose(exponential, np.exp(4), rtol=1e-6)  # a function starts again


@pytest.mark.parametrize(
    ("units", "error", "holds"), [(0, 1e-4, False), (3, 1e-4, True), (3, 1e-2, False)]
)
def test_a_sum_may_differ_by_roundings_of_its_terms(
    units: float, error: float, holds: bool
) -> None:
    check = ValueCheck("close", 3, units=units)
    arrays = np.array([4 + error], np.float32), np.array([4], np.float32)
    text = describe_mismatch(check, *arrays, lambda: np.array([20004], np.float32))
    assert (text == "") is holds


def test_what_the_interpreter_itself_misses_is_compared_more_loosely() -> None:
    text = CALLED.format(first="-1.5")
    assert read_program(text).checks[0].units == 3
    assert read_program("// RUN-DISABLED(inaccurate)\n" + text).checks[0].units == 30

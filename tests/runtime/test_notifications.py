"""An index outside of its table does not stop a run, and is told to the user."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import glia
from glia.base.errors import CompileError
from glia.cli.glia import main
from glia.machine.builder.program_builder import ProgramBuilder
from glia.runtime.model import OutOfBoundAccess
from glia.sim.notifications import MAX_KEPT, Notifications
from glia.sim.order.concurrent import run_cores
from support.corpus import PROGRAMS, Program, hlo_bytes
from support.targets import CORES

ROWS, COLUMNS = 300, 16
TABLE = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
INDICES = np.array([0, 299, 300, 7, -9000, 2**31 - 1, -1], np.int32)
OUTSIDE = {300, -9000, 2**31 - 1, -1}
UPDATES = np.ones((7, COLUMNS), np.float32)


def gathered(table, indices):
    return jnp.take(table, indices, axis=0, mode="clip")


def looked_up(table, indices):
    return table[indices]


def scattered(table, indices, updates):
    return table.at[indices].add(updates, mode="drop", wrap_negative_indices=False)


def replaced(table, indices, updates):
    return table.at[indices].max(updates, mode="drop", wrap_negative_indices=False)


def elements(table, rows, columns):
    return table[rows, columns]


def sliced(table, start):
    return jax.lax.dynamic_slice(table, (start, 0), (2, COLUMNS))


def updated(table, start):
    return jax.lax.dynamic_update_slice(table, jnp.ones((2, COLUMNS)), (start, 0))


def found_by(function, *arrays, target: str = "trn2") -> Notifications:
    """The notifications of a run whose results are those of HLO."""
    model = glia.load(glia.compile(jax.jit(function).lower(*arrays), target=target))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfBoundAccess)
        results = model(*arrays)
    np.testing.assert_array_equal(results[0], np.asarray(jax.jit(function)(*arrays)))
    return model.notifications


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("function", [gathered, scattered, replaced])
def test_every_index_outside_is_reported_and_no_other(function, target: str):
    arrays = (TABLE, INDICES) if function is gathered else (TABLE, INDICES, 5e4 * UPDATES)
    found = found_by(function, *arrays, target=target)
    kind = "gather" if function is gathered else "scatter"
    assert {each.index for each in found} == OUTSIDE
    assert found.total == len(found) == len(OUTSIDE)
    for each in found:
        assert (each.kind, each.limit, each.extent, each.rank) == (kind, 299, 300, 0)
        assert each.table == ("input0" if function is gathered else "output0")
    inside = np.array([0, 1, 299, 298, 7, 7, 0], np.int32)
    assert not found_by(function, TABLE, inside, *arrays[2:], target=target)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("function", [sliced, updated])
def test_a_start_that_is_clamped_is_reported(function, target: str):
    (found,) = found_by(function, TABLE, np.int32(299), target=target)
    assert (found.kind, found.index, found.limit, found.extent) == ("dynamic slice", 299, 298, 300)
    assert not found_by(function, TABLE, np.int32(298), target=target)


def test_the_source_line_is_that_of_the_lookup():
    line = looked_up.__code__.co_firstlineno + 1
    (found,) = found_by(looked_up, TABLE, np.array([1, 400, 2], np.int32))
    assert (Path(found.loc.file).name, found.loc.line) == (Path(__file__).name, line)
    (found,) = found_by(scattered, TABLE, INDICES[2:3].repeat(7), UPDATES)
    assert found.loc.line == scattered.__code__.co_firstlineno + 1


def applied(table, indices):
    return table.at[indices].apply(jnp.negative)


def test_a_lookup_in_a_function_without_lines_is_where_that_is_called():
    for function in (gathered, applied):
        found = found_by(function, TABLE, np.array([1, 400, 2], np.int32))
        assert {each.index for each in found} == {400}
        assert {each.loc.line for each in found} == {function.__code__.co_firstlineno + 1}


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint32])
def test_indices_of_any_type_are_clamped_as_hlo_says(dtype: type):
    most = np.iinfo(dtype).max
    found = found_by(gathered, TABLE[:100], np.array([0, 99, most, 7], dtype))
    assert {(each.index, each.limit) for each in found} == {(most, 99)}


def test_each_dimension_is_reported_by_itself():
    rows, columns = np.array([0, 300, 1], np.int32), np.array([16, 2, 3], np.int32)
    found = found_by(elements, TABLE, rows, columns)
    assert {(each.index, each.limit, each.extent) for each in found} == {
        (300, 299, 300), (16, 15, 16),
    }  # fmt: skip


@pytest.mark.parametrize("device", ["reference", "adversarial"])
def test_the_user_is_warned_in_the_words_of_the_product(device: str):
    lowered = jax.jit(gathered).lower(TABLE, INDICES)
    model = glia.load(glia.compile(lowered), device=device)
    with pytest.warns(OutOfBoundAccess, match="failed to run scatter/gather") as caught:
        model(TABLE, INDICES)
    (warning,) = caught  # one for a source line
    text = str(warning.message)
    assert text.startswith("Received notification generated at runtime: ")
    assert "(indirect memory copy), due to out-of-bound access" in text
    assert "gather of input0 at index -9000, outside of 0..299, in a dimension of 300" in text
    assert "and 3 more from this line" in text
    assert Path(warning.filename).name == Path(__file__).name
    assert model.notifications.total == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(TABLE, np.zeros(7, np.int32))
    assert model.notifications.total == 0


def test_a_bounded_number_is_kept():
    indices = np.arange(ROWS, ROWS + 3 * MAX_KEPT, dtype=np.int32)
    found = found_by(gathered, TABLE, indices)
    assert (len(found), found.total) == (MAX_KEPT, 3 * MAX_KEPT)
    assert found.by_source() == [(found[0], MAX_KEPT)]


def test_each_core_reports_its_own():
    program = glia.compile(jax.jit(gathered).lower(TABLE, INDICES)).program
    inside = np.zeros(7, np.int32)
    found = Notifications()
    given = [{"input0": TABLE, "input1": indices} for indices in (inside, INDICES)]
    run_cores([program, program], given, lnc=1, notifications=found)
    assert {(each.rank, each.index) for each in found} == {(1, index) for index in OUTSIDE}


@pytest.mark.nightly
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_programs_whose_indices_are_inside_report_nothing(program: Program):
    model = glia.load(glia.compile(hlo_bytes(program)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfBoundAccess)
        model(*program.arguments)
    has_some_outside = program.name in ("gather_clamped", "scatter_set", "dynamic_slice")
    assert bool(model.notifications) == has_some_outside


def test_what_kernels_do_with_wrong_indices_stays_an_error():
    b = ProgramBuilder("kernel", target="trn2")
    table, indices = b.input("table", (10, 4)), b.input("indices", (8, 1), "s32")
    rows, chosen = b.sbuf((8, 4)), b.sbuf((8, 1), "s32")
    b.dma_copy(chosen, indices)
    b.dma_gather(rows, table, chosen)
    b.dma_copy(b.output("y", (8, 4)), rows)
    model = glia.load(b.finish())
    with pytest.raises(CompileError, match="index 10 is out of bounds for 10 rows"):
        model(np.zeros((10, 4), np.float32), np.full((8, 1), 10, np.int32))
    assert not model.notifications


def test_the_command_warns_and_lists(tmp_path: Path):
    glia.compile(jax.jit(gathered).lower(TABLE, INDICES)).save(tmp_path / "m.neff")
    np.save(tmp_path / "i.npy", INDICES)
    arguments = ["run", str(tmp_path / "m.neff"), "--input", f"input1={tmp_path / 'i.npy'}"]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0
    assert shown.stderr.startswith("WARNING: Received notification generated at runtime")
    assert "4 notifications in all" in shown.stderr
    listed = CliRunner().invoke(main, [*arguments, "--json"])
    facts = json.loads(listed.stdout)
    assert facts["notification_count"] == 4
    assert {each["index"] for each in facts["notifications"]} == OUTSIDE
    assert facts["notifications"][0]["instruction"].startswith("dma_gather(")

"""JAX itself on the platform `neuron`: discovered, and equal to JAX on the CPU."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.neuron_programs import ENTRY_POINTS, NeuronProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def neuron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NeuronProcess]:
    """A process with four devices, which ends without complaint."""
    process = NeuronProcess(tmp_path_factory.mktemp("installed"))
    yield process
    assert process.close() == 0


def test_the_process_discovers_what_an_installation_declares() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"{name} = {value}" for name, value in declared["jax_plugins"].items()]
    assert ENTRY_POINTS.splitlines() == ["[jax_plugins]", *lines]


def test_devices_are_the_logical_cores_of_a_chip(neuron: NeuronProcess) -> None:
    assert neuron("devices") == [*(f"NeuronCore {n} of trn2" for n in range(4)), "NC_v3"]


def test_transformations_compute_what_the_cpu_computes(neuron: NeuronProcess) -> None:
    found = neuron("transformations")
    assert {name for name, far in found.items() if far > 1e-5} == set()


def test_reductions_over_devices_are_those_of_whole_arrays(neuron: NeuronProcess) -> None:
    assert neuron("reductions") == []


def test_rows_of_other_devices_are_no_fault(neuron: NeuronProcess) -> None:
    assert neuron("rows_of_divided_arrays") == [[0.0, 7.0, 3.0], 0, 1]


def test_the_profiler_shows_what_devices_would_take(neuron: NeuronProcess) -> None:
    found, expected = neuron("profiled")
    assert {name: len(lines["XLA Modules"]) for name, lines in found.items()} == {
        "/device:NEURON:0": 2,
        "/device:NEURON:1": 1,
    }
    first, second = found["/device:NEURON:0"]["XLA Modules"]
    assert first[0] == "jit__lambda" and first[1] < second[1]
    assert first[2] == pytest.approx(expected, abs=1)
    products = [each for each in found["/device:NEURON:0"]["tensor"] if each[0] == "nc_matmul"]
    assert len(products) >= 4
    assert all(first[1] <= start and 0 < length < expected for _, start, length in products)


def test_programs_may_be_collected_and_compiled_before_they_are_run(neuron: NeuronProcess) -> None:
    zeros, problem, count, far = neuron("collected")
    assert zeros == [["float32", 0.0], ["bool", 0.0], ["bfloat16", 0.0]]
    assert "GLIA716" in problem
    assert count >= 2 and far < 1e-5


def test_programs_without_collectives_may_run_on_the_host(neuron: NeuronProcess) -> None:
    far, before, after, is_deleted, place = neuron("on_cpu")
    assert {name: each for name, each in far.items() if each > 1e-5} == {}
    assert (before, after) == (0, 2)
    assert is_deleted and place == "NeuronCore 0 of trn2"


def test_a_donated_array_is_deleted_and_refused(neuron: NeuronProcess) -> None:
    is_deleted, total, text = neuron("donation")
    assert is_deleted and total == pytest.approx(66 / 7 + 12)
    assert "GLIA708" in text


def test_a_program_runs_where_its_arguments_are(neuron: NeuronProcess) -> None:
    is_there, total, counts = neuron("placement")
    assert is_there and counts and total == pytest.approx(2 * 66 / 7)


def test_compiled_functions_tell_costs_and_serialize(neuron: NeuronProcess) -> None:
    found = neuron("ahead_of_time")
    assert found["flops"] == 2 * 3 * 4 * 3
    assert 0 < found["seconds"] < 1e-3
    assert found["memory"] == [48, 36]
    assert found["dot"] and found["same"]


def test_compiler_options_are_those_of_compile(neuron: NeuronProcess) -> None:
    with pytest.raises(RuntimeError, match=r"GLIA121.*did you mean optlevel"):
        neuron("wrong_option")


def test_an_error_has_its_code_and_the_line_of_the_user(neuron: NeuronProcess) -> None:
    text, line = neuron("unknown_call")
    assert "NCC_EVRF015" in text
    assert f"neuron_programs.py:{line}" in text


def test_jax_keeps_executables_on_disk(neuron: NeuronProcess) -> None:
    files, after, with_other_flags, is_same = neuron("persistent_cache")
    assert 0 < files == after < with_other_flags and is_same


def test_a_program_that_was_compiled_is_found_in_the_compile_cache(neuron: NeuronProcess) -> None:
    entries, found, is_right = neuron("compile_cache")
    assert entries >= 1 and found == entries and is_right


def test_threads_call_at_once(neuron: NeuronProcess) -> None:
    assert neuron("threads") == 80


def test_memory_returns_when_arrays_end(neuron: NeuronProcess) -> None:
    during, after = neuron("memory_returns")
    assert during >= 50 * 48
    assert after <= 48


def test_callbacks_to_the_host_are_refused(neuron: NeuronProcess) -> None:
    with pytest.raises(RuntimeError, match="not supported on neuron"):
        neuron("callbacks")


def test_devices_that_exchange_nothing_run_together(neuron: NeuronProcess) -> None:
    far, spec, devices = neuron("independent_devices")
    assert {name for name, distance in far.items() if distance > 1e-5} == set()
    assert (spec, devices) == (["d"], 4)


def test_devices_exchange_what_collectives_say(neuron: NeuronProcess) -> None:
    far = neuron("exchanges")
    assert {name for name, distance in far.items() if distance > 1e-4} == set()
    assert len(far) == 6


def test_qr_is_computed_on_the_device(neuron: NeuronProcess) -> None:
    far = neuron("decompositions")
    assert {name for name, distance in far.items() if distance > 1e-5} == set()


def test_kernels_are_called_under_every_transformation(neuron: NeuronProcess) -> None:
    found = neuron("kernels")
    assert found.keys() >= {"jit", "vmap", "grad", "shard_map", "pmap", "divided"}
    assert {name: far for name, far in found.items() if far} == {}


def test_a_kernel_s_results_vary_as_its_arguments_do(neuron: NeuronProcess) -> None:
    with pytest.raises(RuntimeError, match="could not infer replication"):
        neuron("unequal_shards")


def test_the_page_about_jax_shows_what_its_code_prints(neuron: NeuronProcess) -> None:
    found = neuron("document")
    assert len(found) >= 5
    for is_printed, is_shown in found:
        assert is_printed == is_shown


def test_a_wrong_core_is_an_error_of_the_platform(tmp_path: Path) -> None:
    process = NeuronProcess(tmp_path, NEURON_RT_VISIBLE_CORES="0,7")
    with pytest.raises(RuntimeError, match="GLIA701"):
        process("devices")
    process.close()


def test_without_a_request_jax_keeps_its_own_platform(tmp_path: Path) -> None:
    process = NeuronProcess(tmp_path, JAX_PLATFORMS="")
    assert process("devices") == ["cpu:0", "cpu"]
    assert process.close() == 0

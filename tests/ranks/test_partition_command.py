"""`glia partition` shows the program of one device, and what it exchanges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from glia.cli.glia import main
from glia.graph.passes.errors import BadReplicaGroups
from ranks.jax_programs import tensor_and_data_parallel, tensor_parallel
from support.hlo_text import from_text


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["partition", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def sharded(tmp_path: Path) -> str:
    path = tmp_path / "step.mlir"
    path.write_text(tensor_and_data_parallel().lowered().as_text())
    return str(path)


def test_the_collectives_of_a_sharded_module_are_listed(sharded: str) -> None:
    report = json.loads(_run(sharded, "--json"))
    assert (report["replicas"], report["partitions"]) == (1, 8)
    assert report["inputs"]["input0"] == "f32[4,16]"
    found = {(each["kind"], each["groups"], each["members"]) for each in report["collectives"]}
    assert found == {("all-reduce", 2, 4), ("all-reduce", 4, 2)}
    assert all(each["bytes"] > 0 for each in report["collectives"])


def test_a_block_of_tensor_parallelism_has_two_sums(tmp_path: Path) -> None:
    path = tmp_path / "block.mlir"
    path.write_text(tensor_parallel().lowered().as_text())
    text = _run(str(path))
    assert text.startswith("8 ranks: 1 x 8, replicas x partitions\n")
    assert text.count("all-reduce           1 x 8           1,536 bytes") == 2


def test_the_program_of_one_device_is_printed(sharded: str) -> None:
    text = _run(sharded, "--program")
    assert "partitions=8" in text and "collective args=" in text


def test_a_module_without_devices_takes_the_number_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "sum.pb"
    path.write_bytes(
        from_text("""HloModule m
        sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
        ENTRY main { x = f32[4] parameter(0)
        ROOT r = f32[4] all-reduce(x), replica_groups={}, to_apply=sum }""")
    )
    report = json.loads(_run(str(path), "--replicas", "16", "--json"))
    assert report["collectives"][0]["members"] == 16
    assert "1 rank: 1 x 1" in _run(str(path))


def test_groups_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "sum.pb"
    path.write_bytes(
        from_text("""HloModule m
        ENTRY main { x = f32[4] parameter(0)
        ROOT r = f32[8] all-gather(x), replica_groups={{0,1}}, dimensions={0} }""")
    )
    result = CliRunner().invoke(main, ["partition", str(path), "--replicas", "4"])
    assert result.exit_code != 0
    assert BadReplicaGroups.code in (result.output + result.stderr + str(result.exception))

"""Plans of decoders and modules over instances: what fits, what it takes, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glia.arch.instances import COMPILED_TARGETS
from glia.arch.machines import MACHINES, Machine, machine_of
from glia.cli.glia import main
from glia.plan import measuring, planning
from glia.plan.decoder_shapes import Decoder, read_decoder
from glia.plan.errors import BadShapes, NothingFits, PartFailed
from glia.plan.exchange_times import exchange_us
from glia.plan.measuring import Workers
from glia.plan.parts import Measured, ModelPart
from glia.plan.phases import PHASES, StepWork, times_of
from glia.plan.planning import Request, make_plan, works_of
from glia.plan.splits import RankDivision, splits_of

SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
}  # fmt: skip
LLAMA_8B = Decoder("llama-3-8b", 4096, 14336, 32, 32, 8, 128, 128256)
LLAMA_70B = Decoder("llama-3-70b", 8192, 28672, 80, 64, 8, 128, 128256)
MIXTRAL = Decoder("mixtral", 4096, 14336, 32, 32, 8, 128, 32000, False, 8, 2)
TRN1, TRN2 = MACHINES["trn1.32xlarge"], MACHINES["trn2.48xlarge"]


def _config(folder: Path, **changes: object) -> Path:
    path = folder / "small.json"
    path.write_text(json.dumps({k: v for k, v in {**SMALL, **changes}.items() if v is not None}))
    return path


def _quiet(number: int, total: int, part: ModelPart, found: Measured) -> None:
    assert 0 < number <= total


@pytest.mark.parametrize(("decoder", "billions"), [(LLAMA_8B, 8.03), (LLAMA_70B, 70.55),
                                                   (MIXTRAL, 46.70)])  # fmt: skip
def test_a_decoder_has_the_parameters_that_are_published(decoder: Decoder, billions: float) -> None:
    assert decoder.parameters / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize("decoder", [LLAMA_8B, LLAMA_70B, MIXTRAL])
@pytest.mark.parametrize("machine", [TRN1, TRN2])
def test_ranks_together_hold_every_parameter(decoder: Decoder, machine: Machine) -> None:
    for split in splits_of(decoder, machine.cores):
        work = StepWork(decoder, "training", 4096, split, 1, 1)
        copies = split.data
        held = work.parameters * split.ranks / copies * (split.expert if decoder.experts else 1)
        assert split.ranks == machine.cores
        assert held >= 0.97 * decoder.parameters


def test_more_tensor_ranks_hold_less_each() -> None:
    held = [
        sum(
            StepWork(LLAMA_8B, "training", 4096, RankDivision(n, 32 // n, 1), 1, 8)
            .known_bytes()
            .values()
        )
        for n in (1, 2, 4, 8, 16, 32)
    ]
    assert held == sorted(held, reverse=True)


def test_only_what_divides_evenly_is_a_way() -> None:
    odd = Decoder("odd", 96, 160, 6, 6, 2, 16, 100)
    for split in splits_of(odd, 12):
        assert 6 % split.tensor == 0 and 160 % split.tensor == 0 and 6 % split.pipeline == 0
    assert {split.tensor for split in splits_of(odd, 12)} == {1, 2}
    assert all(split.pipeline == 1 for split in splits_of(odd, 12, is_staged=False))


def test_groups_of_ranks_cover_all_of_them() -> None:
    split = RankDivision(4, 8, 2, 2)
    assert split.tensor_group == (0, 1, 2, 3)
    assert split.data_group == tuple(range(0, 32, 4))
    assert split.stage_group == (0, 32)
    assert split.expert_group == (0, 4) and split.same_expert_group == (0, 8, 16, 24)


@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize(
    "op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"]
)
def test_more_bytes_take_longer_to_exchange(op: str, target: str) -> None:
    group = (0, 1, 2, 3)
    machine = machine_of(target)
    assert machine
    us = [exchange_us(op, group, count, machine) for count in (1 << 12, 1 << 20, 1 << 28)]
    assert 0 < us[0] <= us[1] < us[2]
    assert exchange_us(op, (0,), 1 << 20, machine) == 0


@pytest.mark.parametrize("phase", PHASES)
def test_a_step_is_the_sum_of_what_is_in_it(phase: str) -> None:
    decoder, split = MIXTRAL, RankDivision(2, 4, 2, 2)
    work = StepWork(decoder, phase, 1024, split, 2, 8)
    found = {name: Measured(us=10.0, instructions=1, seconds=1.0) for name in work.parts()}
    times = times_of(work, found, TRN2)
    assert times.us == pytest.approx(sum(times.by_part.values()))
    assert 0 < times.exchange_us < times.us and 0 < times.bubble_us < times.us


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"hidden_size": 1 << 40}, "not a number of elements"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"vocab_size": 0}, "a size is 0"),
        ({"num_key_value_heads": 3}, "3 does not divide 4 heads"),
        ({"head_dim": 256}, "more than the 128"),
        ({"head_dim": 3}, "is odd"),
        ({"num_local_experts": 4}, "0 of 4 experts"),
    ],
)
def test_shapes_that_are_none_are_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadShapes, match=problem):
        read_decoder(_config(tmp_path, **changes))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff"])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadShapes):
        read_decoder(tmp_path / "bad.json")
    with pytest.raises(BadShapes, match="no such file"):
        read_decoder(tmp_path / "none.json")


def test_what_does_not_fit_is_refused_with_the_nearest_way() -> None:
    with pytest.raises(NothingFits, match=r"the least that was found is \d+\.\d GiB a core of 16"):
        make_plan(LLAMA_70B, TRN1, Request("training", 4096), _quiet)
    with pytest.raises(NothingFits, match="no number of ranks divides them"):
        one = Decoder("one", 64, 64, 1, 1, 1, 64, 64)
        make_plan(one, TRN2, Request("training", 128, batch=3), _quiet)


def test_large_models_fit_where_they_are_served() -> None:
    for machine in (TRN1, TRN2):
        works = list(works_of(LLAMA_70B, machine, Request("decode", 4096)))
        fits = [w for w in works if sum(w.known_bytes().values()) <= machine.target.hbm_bytes]
        assert fits and all(work.split.pipeline == 1 for work in fits)


def test_parts_that_do_not_compile_end_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Workers, parts: Any, *rest: object) -> dict[ModelPart, Measured]:
        return {part: Measured(problem="it is refused") for part in parts}

    monkeypatch.setattr(Workers, "measure_all", fail)
    with pytest.raises(PartFailed, match="does not compile: it is refused"):
        make_plan(LLAMA_8B, TRN2, Request("prefill", 1024), _quiet)


def test_a_process_that_ends_is_told_of_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PROCESS", ("-c", "pass"))
    with Workers(1) as workers:
        found = workers.measure_all([ModelPart("head", 8, 8, 8)], "trn2", 1, _quiet)
    assert [each.problem for each in found.values()] == [
        "the process that compiled it ended with status 0"
    ]


@pytest.mark.parametrize(("phase", "kinds"), [("training", 8), ("decode", 4)])
def test_the_command_plans_a_small_decoder(tmp_path: Path, phase: str, kinds: int) -> None:
    call = ["plan", str(_config(tmp_path)), "--target", "trn1.2xlarge", "--phase", phase]
    call += ["--sequence", "512", "--batch", "4", "-O", "1", "--jobs", "1", "--json"]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rates = [each["tokens_per_second"] for each in found["options"]]
    assert rates == sorted(rates, reverse=True) and math.isfinite(rates[0])
    assert {each["tensor"] for each in found["options"]} == {1, 2}
    for each in found["options"]:
        assert each["core_bytes"] == sum(each["bytes"].values()) <= found["machine"]["core_bytes"]
        assert each["step_us"] == pytest.approx(sum(each["us"].values()), abs=1)
        assert each["instructions"] > 0 and each["compile_seconds"] > 0
        assert each["micro_batch"] * each["steps"] * each["data"] == each["batch"] == 4
    assert result.stderr.count(" of ") >= kinds


def test_the_command_plans_a_module(tmp_path: Path) -> None:
    (tmp_path / "step.mlir").write_text(
        "func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
        "  %0 = stablehlo.tanh %a : tensor<8x8xf32>\n  return %0 : tensor<8x8xf32>\n}\n"
    )
    call = ["plan", str(tmp_path / "step.mlir"), "--target", "trn1.32xlarge"]
    result = CliRunner().invoke(main, [*call, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["ranks"], found["copies"], found["machine"]) == (1, 32, "trn1.32xlarge")
    assert found["step_us"] > 0 and found["instructions"] > 0 and found["core_bytes"] >= 512
    assert "32 copies fill it" in CliRunner().invoke(main, call).output


def test_an_unknown_instance_is_refused_with_the_nearest(tmp_path: Path) -> None:
    call = ["plan", str(_config(tmp_path)), "--target"]
    result = CliRunner().invoke(main, [*call, "trn2.48xlarg"])
    assert result.exit_code == 1
    first, second = result.output.splitlines()[:2]
    assert first == "[GLIA542] there is no instance 'trn2.48xlarg'; did you mean trn2.48xlarge?"
    assert "trn1.2xlarge" in second
    assert "did you mean" not in CliRunner().invoke(main, [*call, "gpu"]).output


@pytest.mark.parametrize("name", [*MACHINES, *COMPILED_TARGETS])
def test_every_instance_has_cores_and_a_source(name: str) -> None:
    machine = machine_of(name)
    assert machine is not None and list(machine.fabric.constants())
    assert machine.cores == machine.chips * machine.target.cores_per_chip > 0


def test_instances_have_the_cores_that_are_published() -> None:
    cores = {name: machine.cores for name, machine in MACHINES.items()}
    assert cores["trn1.32xlarge"] == cores["trn1n.32xlarge"] == 32
    assert cores["inf2.48xlarge"] == 24 and cores["inf2.24xlarge"] == 12
    assert cores["trn2.48xlarge"] == 128 and cores["trn1.2xlarge"] == cores["inf2.xlarge"] == 2


def test_a_machine_of_one_chip_can_be_planned_for_every_target() -> None:
    assert planning.NOT_MODELLED and machine_of("inf1") is None and machine_of("p5") is None

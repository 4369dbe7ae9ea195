"""The cores a process sees follow the target and the runtime's environment variables."""

from __future__ import annotations

import pytest

from glia.plugins.pjrt.errors import BadCoreSelection, BadCpuChoice, SeveralProcesses
from glia.plugins.pjrt.visible_cores import visible_cores


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, ("trn2", 0, 4, "NC_v3")),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, ("trn2", 0, 8, "NC_v3")),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}, ("trn1", 0, 2, "NC_v2")),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1n"}, ("trn1n", 0, 2, "NC_v2")),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "inf2"}, ("inf2", 0, 2, "NC_v2")),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}, ("trn3", 0, 4, "NC_v4")),
        ({"NEURON_CC_FLAGS": "--target trn1"}, ("trn1", 0, 2, "NC_v2")),
        ({"NEURON_RT_NUM_CORES": "1"}, ("trn2", 0, 1, "NC_v3")),
        ({"NEURON_RT_NUM_CORES": "0"}, ("trn2", 0, 4, "NC_v3")),
        ({"NEURON_RT_NUM_CORES": "8"}, ("trn2", 0, 8, "NC_v3")),
        ({"NEURON_RT_VISIBLE_CORES": "2-3", "NEURON_RT_NUM_CORES": "1"}, ("trn2", 2, 2, "NC_v3")),
        ({"NEURON_RT_VISIBLE_CORES": "1,2, 3"}, ("trn2", 1, 3, "NC_v3")),
    ],
)
def test_cores_follow_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], found: tuple[str, int, int, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cores = visible_cores()
    assert (cores.target.name, cores.first, cores.count, cores.kind) == found


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"NEURON_RT_NUM_CORES": "many"}, "many"),
        ({"NEURON_RT_NUM_CORES": "65"}, "64 cores"),
        ({"NEURON_RT_VISIBLE_CORES": "0,7"}, "follow each other"),
        ({"NEURON_RT_VISIBLE_CORES": "3-1"}, "follow each other"),
        ({"NEURON_RT_VISIBLE_CORES": "a"}, "'a' is neither"),
        ({"NEURON_RT_VISIBLE_CORES": "60-70"}, "64 cores"),
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "1 or 2"),
        (
            {"NEURON_PLATFORM_TARGET_OVERRIDE": "tpu"},
            "OVERRIDE=tpu: programs are compiled for no such target",
        ),
        (
            {"NEURON_PLATFORM_TARGET_OVERRIDE": "inf1"},
            "OVERRIDE=inf1: programs are compiled for no such target",
        ),
        (
            {"NEURON_CC_FLAGS": "--target=trn9"},
            "NEURON_CC_FLAGS=--target=trn9: programs are compiled for no such target",
        ),
    ],
)
def test_what_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], named: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadCoreSelection, match="GLIA701") as caught:
        visible_cores()
    assert named in str(caught.value)


def test_one_process_has_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PJRT_PROCESSES_NUM_DEVICES", "4")
    assert visible_cores().count == 4
    monkeypatch.setenv("NEURON_PJRT_PROCESSES_NUM_DEVICES", "4,4")
    with pytest.raises(SeveralProcesses, match="NUM_CORES=8"):
        visible_cores()
    monkeypatch.delenv("NEURON_PJRT_PROCESSES_NUM_DEVICES")
    monkeypatch.setenv("NEURON_PJRT_WORLD_SIZE", "2")  # of torchrun, by torch_xla
    with pytest.raises(SeveralProcesses, match="describes 2 processes"):
        visible_cores()


def test_programs_leave_the_device_or_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for choice in ("0", "1", ""):
        monkeypatch.setenv("NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU", choice)
        assert visible_cores().count == 4
    monkeypatch.setenv("NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU", "yes")
    with pytest.raises(BadCpuChoice, match="GLIA710"):
        visible_cores()

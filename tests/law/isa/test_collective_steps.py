"""What collectives send over fabrics: routes arrive, and steps move what they must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glia.arch import get_target
from glia.arch.fabric import Fabric
from glia.arch.instances import COMPILED_TARGETS
from glia.arch.machines import MACHINES
from glia.isa.collective_steps import (
    _ALGORITHMS,
    Ways,
    _group_steps,
    algorithm_of,
    direct_time,
    exchange_time,
    gathering_time,
)

FABRICS = {machine.name: machine.fabric for machine in MACHINES.values()}
TRN1, TRN2, TRN3 = (get_target(name).arch for name in ("trn1", "trn2", "trn3"))
SIZES = (1 << 10, 1 << 19, 8 << 20, 1 << 30)


def ranks(count: int, stride: int = 1) -> tuple[int, ...]:
    return tuple(range(0, count * stride, stride))


@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
def test_a_route_goes_over_links_of_each_row_to_its_end(fabric: Fabric) -> None:
    for source in range(fabric.chips):
        for target in range(fabric.chips):
            route = list(fabric.route(source, target))
            assert bool(route) == (source != target)
            places = fabric.place(source), fabric.place(target)
            for number, row in enumerate(fabric.rows):
                links = [link for link in route if link[0] == f"row {number}"]
                steps = (places[1][number] - places[0][number]) % row.chips
                shorter = min(steps, row.chips - steps)
                assert len(links) == (2 * (shorter > 0) if row.is_switched else shorter)
                assert all(0 <= chip < fabric.chips for _, chip, _ in links)
            assert all(fabric.rate(link) > 0 for link in route)


@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
def test_chips_beyond_an_instance_are_reached_over_the_network(fabric: Fabric) -> None:
    route = list(fabric.route(0, fabric.chips))
    assert [kind for kind, _, _ in route] == ["network", "network"]
    assert fabric.rate(route[0]) == fabric.network_rate.value


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
@pytest.mark.parametrize("count", [2, 4, 8, 16, 32])
def test_steps_send_at_least_what_every_rank_lacks(algorithm: str, count: int) -> None:
    for fabric in (TRN1.fabric, TRN2.fabric, TRN3.fabric):
        sent = sum(s.sent * s.times for s in _group_steps((ranks(count),), algorithm, fabric))
        assert sent >= (count - 1) / count - 1e-9


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_what_chips_send_each_other_is_what_they_lack(algorithm: str) -> None:
    group, fabric = ranks(32), TRN1.fabric
    received = dict.fromkeys(range(16), 0.0)
    for step in _group_steps((group,), algorithm, fabric):
        for (_, chip), part in step.between.items():
            received[chip] += part * step.times
    least = 15 / 16 if algorithm in ("mesh", "recursive doubling") else 31 / 32
    assert all(part == pytest.approx(least) for part in received.values())


@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("count", [2, 3, 8, 24, 64, 96, 256])
def test_more_bytes_never_take_less_by_one_algorithm(target: str, count: int) -> None:
    arch = get_target(target).arch
    groups = (ranks(count),)
    for size in SIZES:
        time = gathering_time(size, groups, arch)
        assert time.ns >= arch.collective_hop_ns and time.ns_per_byte > 0


def test_algorithms_follow_the_documented_sizes() -> None:
    group = ranks(64)
    found = [algorithm_of(size, group, TRN2) for size in (1 << 19, 1 << 20, 55 << 20, 57 << 20)]
    assert found == ["mesh", "recursive doubling", "recursive doubling", "KangaRing"]
    assert algorithm_of(57 << 20, ranks(8, 8), TRN2) == "ring", "one rank on each chip"
    assert algorithm_of(57 << 20, ranks(32), TRN1) == "ring", "two ranks on each chip"
    assert algorithm_of(8 << 20, ranks(24), TRN1) == "ring", "twelve chips are no power of two"


def test_groups_that_share_links_take_longer() -> None:
    group = ranks(16, 8)
    one = exchange_time((group,), Ways.of(TRN2))
    all_groups = tuple(tuple(rank + shift for rank in group) for shift in range(8))
    assert exchange_time(all_groups, Ways.of(TRN2)).ns_per_byte > 1.5 * one.ns_per_byte


def test_faster_links_take_less() -> None:
    slow, fast = (Ways.of(get_target(name).arch) for name in ("trn1", "trn1n"))
    groups = (ranks(32),)
    assert exchange_time(groups, fast).ns_per_byte < exchange_time(groups, slow).ns_per_byte


def test_an_ultraserver_needs_no_network_for_four_instances() -> None:
    server = MACHINES["trn2-ultraserver"].arch
    groups = (ranks(512),)
    for size in SIZES:
        near, far = (gathering_time(size, groups, arch) for arch in (server, TRN2))
        assert near.ns < far.ns or size == SIZES[-1], "rings through all ranks have many steps"


def test_ranks_of_two_instances_gather_between_them_once_for_each_place() -> None:
    time = gathering_time(1 << 10, (ranks(64),), TRN1)
    assert time.ns == TRN1.fabric.network_hop.value + 2 * TRN1.collective_hop_ns


def test_one_ring_through_instances_serves_large_sums_on_trainium1_only() -> None:
    """Its steps are many, its bytes fewer than those of rings within and between instances."""
    large = gathering_time(1 << 30, (ranks(64),), TRN1)
    assert large.ns == 63 * TRN1.fabric.network_hop.value
    other = replace(TRN1, fabric=replace(TRN1.fabric, has_flat_ring=False))
    assert gathering_time(1 << 30, (ranks(64),), other).ns < large.ns


def test_groups_of_uneven_parts_of_instances_form_one_ring() -> None:
    time = gathering_time(1 << 10, (ranks(40),), TRN1)
    assert time.ns == 39 * TRN1.fabric.network_hop.value


def test_pairs_on_one_chip_use_no_link() -> None:
    ways = Ways.of(TRN2)
    near, far = direct_time(((0, 1), (1, 0)), ways), direct_time(((0, 8 * 5), (8 * 5, 0)), ways)
    assert near.ns == far.ns and near.ns_per_byte == far.ns_per_byte == 1 / ways.bytes_per_ns

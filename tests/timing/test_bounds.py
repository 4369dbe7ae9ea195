"""No program is faster than the units it uses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.arch.instances import get_target
from glia.isa.instructions.dma import DmaCopy
from glia.timing.simulate import simulate_timing
from support.examples import with_examples
from support.timing_programs import program, signals, tile, waits, whole

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
QUEUES = ("load", "store", "gather")
COLUMNS = st.sampled_from((128, 512, 1024))


@pytest.mark.parametrize("target", TARGETS)
@with_examples(25)
@given(
    transfers=st.lists(
        st.tuples(st.sampled_from(QUEUES), COLUMNS, st.integers(0, 3)), min_size=1, max_size=24
    )
)
def test_queues_together_move_no_more_than_all_dma_engines(
    target: str, transfers: list[tuple[str, int, int]]
) -> None:
    """Transfers of several queues, some of which wait for an earlier one of another queue."""
    arch, issued = get_target(target).arch, dict.fromkeys(QUEUES, 0)
    body, moved = [], 0
    for number, (queue, columns, back) in enumerate(transfers):
        hbm = tile(f"h{number}", "HBM", 1, 128 * columns)
        chip = tile(f"c{number}", "SBUF", 128, columns)
        other = QUEUES[(QUEUES.index(queue) + 1) % len(QUEUES)]
        target_count = max(0, issued[other] - back)
        body.append(
            DmaCopy(
                dst=whole(hbm) if queue == "store" else whole(chip),
                src=whole(chip) if queue == "store" else whole(hbm),
                on={"load": "sync", "store": "scalar", "gather": "gpsimd"}[queue],
                queue=queue,
                waits=waits(**{other: target_count}) if back and target_count else (),
                signals=signals(**{queue: 1}),
            )
        )
        issued[queue] += 1
        moved += chip.bytes_per_partition * 128
    timing = simulate_timing(program(*body, target=target), arch)
    span = timing.latency_ns - timing.begin_ns - arch.postamble_ns
    assert span >= moved / (arch.dma_engines * arch.dma_bytes_per_ns)

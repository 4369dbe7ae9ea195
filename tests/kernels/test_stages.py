"""Stages of tiles that overlap: every stage of every item once, in the order that was asked for."""

from __future__ import annotations

from typing import Any

from glia.kernels.parts.stages import idle_stage, run_stages


def ran(count: int, **options: Any) -> str:
    """What three stages of items 0, 1, ... did, one word each."""
    words: list[str] = []

    def stage(letter: str) -> Any:
        def run(item: int) -> int:
            words.append(f"{letter}{item}")
            return item

        return run

    run_stages(range(count), stage("a"), stage("b"), stage("c"), **options)
    return " ".join(words)


def test_stages_of_consecutive_items_overlap() -> None:
    assert ran(3) == "a0 a1 b0 a2 b1 c0 b2 c1 c2"


def test_an_order_holds_within_each_step() -> None:
    assert ran(3, order=(2, 0, 1)) == "a0 a1 b0 c0 a2 b1 c1 b2 c2"


def test_without_overlap_items_run_one_after_the_other() -> None:
    assert ran(2, overlap=False) == "a0 b0 c0 a1 b1 c1"


def test_a_stage_gets_what_the_one_before_returned() -> None:
    found: list[int] = []
    run_stages([1, 2], lambda n: n + 1, idle_stage, lambda n: n * 10, found.append)
    assert found == [20, 30]

"""Evaluation of one program by several ranks, which exchange values at its collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph

Array = np.ndarray[Any, Any]


class ExchangeBarrier:
    """A barrier at which every participant contributes a value and receives those of all."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._barrier = threading.Barrier(count)
        self._contributions: list[tuple[object, Any]] = [(None, None)] * count

    def exchange(self, number: int, topic: object, value: Any) -> list[Any]:
        """The values of all participants by number; TypeError unless all name one topic."""
        self._contributions[number] = (topic, value)
        self._barrier.wait()
        contributions = list(self._contributions)
        self._barrier.wait()
        if any(other is not topic for other, _ in contributions):
            raise TypeError(f"participant {number} is at {topic!r} while another is elsewhere")
        return [value for _, value in contributions]

    def abort(self) -> None:
        """Break the barrier, so that the other participants stop waiting."""
        self._barrier.abort()


@dataclass(frozen=True)
class Participant:
    """One rank: a partition of a replica; alone unless `run_participants` runs it."""

    number: int = 0
    partitions: int = 1
    barrier: ExchangeBarrier = field(default_factory=lambda: ExchangeBarrier(1))

    @property
    def count(self) -> int:
        return self.barrier.count

    @property
    def replicas(self) -> int:
        return self.count // self.partitions

    @property
    def replica(self) -> int:
        return self.number // self.partitions

    @property
    def partition(self) -> int:
        return self.number % self.partitions

    def exchange(self, topic: object, value: Any) -> list[Any]:
        """The values of all participants by number."""
        return self.barrier.exchange(self.number, topic, value)


_CURRENT: ContextVar[Participant] = ContextVar("participant")


def current() -> Participant:
    """The participant that is evaluating; number 0 of 1 outside `run_participants`."""
    return _CURRENT.get(None) or Participant()


def evaluate_participants(
    graph: Graph, inputs: Sequence[Sequence[Array]], *, partitions: int = 0
) -> list[list[Array]]:
    """Each rank's results on its own inputs; collectives exchange between them.

    `partitions` is how many each replica has: those that the graph says, or else all ranks are the
    partitions of one. Raises what `run_participants` raises.
    """
    partitions = partitions or graph.partitions or len(inputs)
    calls = [lambda given=given: evaluate(graph, given) for given in inputs]
    return run_participants(calls, partitions)


def run_participants(calls: Sequence[Callable[[], Any]], partitions: int) -> list[Any]:
    """What the evaluation of each rank returns.

    Raises what the first failing participant raises, and TypeError when they reach different
    collectives.
    """
    barrier = ExchangeBarrier(len(calls))
    results: list[Any] = [None for _ in calls]
    failures: list[Exception] = []

    def run(number: int) -> None:
        _CURRENT.set(Participant(number, partitions, barrier))
        try:
            results[number] = calls[number]()
            barrier.exchange(number, calls, None)
        except threading.BrokenBarrierError:
            return  # another participant failed and says why
        except Exception as error:
            failures.append(error)
            barrier.abort()

    threads = [
        threading.Thread(target=copy_context().run, args=(run, number))
        for number in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results

"""The default DMA queues, and streams: engines and queues, which complete in order."""

from __future__ import annotations

from glia.isa.kit import Instr

QUEUE_OWNERS = {
    "load": "sync",
    "reload": "gpsimd",
    "store": "scalar",
    "move": "gpsimd",
    "exchange": "gpsimd",
    "overlap.store": "gpsimd",
    "overlap.move": "sync",
}  # one engine issues each queue, in order
QUEUES_OF_OVERLAP = {"store": "overlap.store", "move": "overlap.move"}
"""Of groups and blocks, whose issuers compute least: they wait for what a transfer waits for."""
_QUEUE = "queue."


def stream_of(instruction: Instr) -> str:
    """The stream in which an instruction completes: its DMA queue, else its engine."""
    return _QUEUE + instruction.queue if instruction.queue else instruction.runs_on


def queue_of(stream: str) -> str:
    """The name of a stream's DMA queue; "" for an engine."""
    return stream.removeprefix(_QUEUE) if stream.startswith(_QUEUE) else ""

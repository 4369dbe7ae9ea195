"""The DMA queues that programs have unless they name others."""

from __future__ import annotations

QUEUE_OWNERS = {"load": "sync", "store": "scalar"}  # one engine issues each queue, in order

"""Tests with Flax, optax and Equinox, which the environment of `make test-flax` has."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flax") else ["test_*.py"]

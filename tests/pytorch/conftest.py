"""Tests with PyTorch, which the environment of `make test-torch` has: others collect none."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]

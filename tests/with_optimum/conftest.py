"""Tests with optimum-neuron, which `make nightly-optimum` installs: others collect none."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("optimum") else ["test_*.py"]

"""Packages whose modules are plug-ins: what each declares registers on import."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def import_modules(package: str, prefix: str = "") -> tuple[ModuleType, ...]:
    """Import the modules of a package whose names start with `prefix`, in alphabetical order."""
    path = importlib.import_module(package).__path__
    names = sorted(each.name for each in pkgutil.iter_modules(path))
    chosen = (name for name in names if name.startswith(prefix))
    return tuple(importlib.import_module(f"{package}.{name}") for name in chosen)

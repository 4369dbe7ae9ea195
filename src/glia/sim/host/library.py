"""Functions in machine code, made once in a process and found by name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from llvmlite import binding, ir

from glia.base.fork_safe_lock import ForkSafeLock
from glia.base.machine_code.object_cache import ObjectCache, cache_folder, host_machine, loaded
from glia.sim.host.scalar_code import NotLowered


class Code(Protocol):
    """What can be written as a function of a module: equal names are equal code."""

    @property
    def name(self) -> str: ...

    def write(self, module: Any) -> None: ...


class CodeLibrary:
    """The functions of this process; those of one call of `load` are loaded together."""

    def __init__(self, kept: ObjectCache | None = None) -> None:
        self.kept = kept or ObjectCache(None)
        self._addresses: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._objects: dict[str, bytes] = {}  # not yet loaded
        self._written: dict[str, str] = {}  # not yet compiled
        self._engines: list[Any] = []
        self._lock = ForkSafeLock()

    def refusal(self, code: Code) -> str:
        """Why there is no machine code for this; "" where there is."""
        name = code.name
        if name not in self._addresses and name not in self._refused:
            try:
                self._write(code)
            except NotLowered as problem:
                self._refused[name] = str(problem)
        return self._refused.get(name, "")

    def _write(self, code: Code) -> None:
        """Find object code on disk or write the function's text."""
        name = code.name
        if name in self._objects or name in self._written:
            return
        if (found := self.kept.find(name)) is not None:
            self._objects[name] = found
            return
        module = ir.Module(name)
        code.write(module)
        self._written[name] = str(module)

    def load(self, codes: Iterable[Code]) -> None:
        """Compile what is not yet there."""
        with self._lock:
            new = {code.name: code for code in codes if code.name not in self._addresses}
            if not new:
                return
            for code in new.values():
                self._write(code)
            self._add(new, map(self._object, new))

    def load_kept(self, names: Iterable[str]) -> bool:
        """Load functions of which only the names are known; whether all of them were kept."""
        with self._lock:
            new = sorted({*names} - self._addresses.keys())
            objects = [self._objects.get(name) or self.kept.find(name) for name in new]
            found = [each for each in objects if each is not None]
            if len(found) < len(new):
                return False
            if new:
                self._add(new, found)
            return True

    def _add(self, names: Iterable[str], objects: Iterable[bytes]) -> None:
        engine = loaded(objects)
        self._engines.append(engine)
        for name in names:
            self._addresses[name] = engine.get_function_address(name)

    def _object(self, name: str) -> bytes:
        """The object code of what was found or written."""
        if name not in self._objects:
            self._objects[name] = _compiled(self._written.pop(name))
            self.kept.store(name, self._objects[name])
        return self._objects.pop(name)

    def address(self, name: str) -> int:
        """Where a loaded function begins."""
        return self._addresses[name]

    def function(self, name: str) -> int:
        """Where another function begins that some loaded code has written."""
        found = (engine.get_function_address(name) for engine in self._engines)
        return int(next(filter(None, found)))


def _compiled(text: str) -> bytes:
    """A module as object code; it is in its final shape but for stack slots and repeats."""
    machine = host_machine(2)
    parsed = binding.parse_assembly(text)
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    tuning = binding.create_pipeline_tuning_options(speed_level=1)
    passes.run(parsed, binding.create_pass_builder(machine, tuning))
    found: bytes = machine.emit_object(parsed)
    return found


@cache
def host_library() -> CodeLibrary:
    """The library of this process."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return CodeLibrary(ObjectCache(cache_folder(sources)))

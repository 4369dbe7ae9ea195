"""Functions in machine code, made once in a process and found by name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from threading import Lock
from typing import Any, Protocol

from llvmlite import binding, ir

from glia.sim.host.scalar_code import NotLowered


class Code(Protocol):
    """What can be written as a function of a module: equal names are equal code."""

    @property
    def name(self) -> str: ...

    def write(self, module: Any) -> None: ...


class CodeLibrary:
    """The functions of this process; those of one call of `load` are compiled together."""

    def __init__(self) -> None:
        self._addresses: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._engines: list[Any] = []
        self._lock = Lock()

    def refusal(self, code: Code) -> str:
        """Why there is no machine code for this; "" where there is."""
        if code.name not in self._addresses and code.name not in self._refused:
            try:
                code.write(ir.Module("trial"))
            except NotLowered as problem:
                self._refused[code.name] = str(problem)
        return self._refused.get(code.name, "")

    def load(self, codes: Iterable[Code]) -> None:
        """Compile what is not yet there."""
        with self._lock:
            new = {code.name: code for code in codes if code.name not in self._addresses}
            if not new:
                return
            module = ir.Module("host")
            for code in new.values():
                code.write(module)
            engine = _compiled(module)
            self._engines.append(engine)
            for name in new:
                self._addresses[name] = engine.get_function_address(name)

    def address(self, code: Code) -> int:
        """Where a loaded function begins."""
        return self._addresses[code.name]

    def function(self, name: str) -> int:
        """Where another function begins that some loaded code has written."""
        found = (engine.get_function_address(name) for engine in self._engines)
        return int(next(filter(None, found)))


def _compiled(module: Any) -> Any:
    """A module as machine code; the code is in its final shape but for stack slots and repeats."""
    machine = _target_machine()
    parsed = binding.parse_assembly(str(module))
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    tuning = binding.create_pipeline_tuning_options(speed_level=1)
    passes.run(parsed, binding.create_pass_builder(machine, tuning))
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    return engine


@cache
def _initialised() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


def _target_machine() -> Any:
    _initialised()
    target = binding.Target.from_triple(binding.get_process_triple())
    features = binding.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=2, jit=True
    )


@cache
def host_library() -> CodeLibrary:
    """The library of this process."""
    return CodeLibrary()

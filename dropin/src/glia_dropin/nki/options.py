"""`CompileOptions`: the options of nki.compiler.driver and the frontends."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from glia.nki.names.errors import NotInGlia
from glia.nki.names.targets import target_name


class CompilationMode(enum.Enum):
    """The purpose of a compilation; glia compiles alike for each."""

    STANDALONE = "standalone"
    INTEGRATION = "integration"


@dataclass(frozen=True)
class CompileOptions:
    """The target and output paths of a compilation.

    `target`, `lnc` (the cores that run the kernel together), `output_path` (of the NEFF) and
    `artifacts_dir` (of the program's text) are followed. The others steer passes of AWS's compiler
    and are accepted and ignored. NotInGlia for enable_simulation and enable_device_dump.
    """

    target: str = field(default_factory=target_name)
    lnc: int = 1
    verbose: bool = False
    verbose_neuronx_cc: bool = False
    artifacts_dir: str | None = None
    neuronx_cc_args: tuple[str, ...] = ()
    neuronx_cc_backend_opts: tuple[str, ...] = ()
    neuronx_cc_path: str = "neuronx-cc"
    output_path: str = "file.neff"
    enable_simulation: bool = False
    enable_device_dump: bool = False
    mode: CompilationMode = CompilationMode.STANDALONE
    nki_opt_pipeline_options: tuple[str, ...] = ()
    kernel_json_filename: str = "kernel.json"
    debug: bool = False
    lower_dma_transpose: bool = False

    def __post_init__(self) -> None:
        for name, cure in (
            ("enable_simulation", "run the NEFF with nki.runtime.SpikeModel, on any machine"),
            ("enable_device_dump", "print tensors with nl.device_print"),
        ):
            if getattr(self, name):
                raise NotInGlia(
                    name=f"CompileOptions({name}=True)", problem="is not supported", cure=cure
                )

    def disable_backend_optimizations(self) -> CompileOptions:
        """These options unchanged: glia's back end has run when a program is compiled."""
        return self

    def set_pipeline_options(self, *options: str) -> CompileOptions:
        """These options with pipeline options of AWS's compiler, which are ignored."""
        return replace(self, nki_opt_pipeline_options=tuple(options))


__all__ = ["CompilationMode", "CompileOptions"]

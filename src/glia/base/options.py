"""What a compilation is asked to do: every option of `neuronx-cc compile`, with its default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompileOptions:
    """The options of one compilation; names and values are those of the command line.

    `logical_nc_config` 0 stands for the target's default (1 on NeuronCore-v2, 2 on later cores).
    """

    target: str = "trn2"  # inf1 inf2 trn1 trn1n trn2 trn3
    framework: str = "XLA"
    model_type: str = "generic"  # generic transformer unet-inference
    auto_cast: str = "matmult"  # matmult none all
    auto_cast_type: str = "bf16"  # bf16 fp16 tf32 fp8_e4m3
    mixed_precision_accumulation: bool = True
    saturate_infinity: bool = False
    native_int64: str = "default"  # default enabled disabled
    implicit_integer_downcast: tuple[str, ...] = ("all",)  # dot scatter all_reduce ... all none
    distribution_strategy: str = ""  # "" llm-training nemo fsdp
    logical_nc_config: int = 0
    optlevel: int = 2
    num_parallel_jobs: int = 8
    fast_context_switch: bool = False
    fast_loading_neuron_binaries: bool = False
    logfile: str = "log-neuron-cc.txt"
    output: str = "file.neff"
    verbose: str = "warning"
    product_limits: bool = False
    verify: bool = False  # check the law of every level after every pass
    dump: str = ""  # directory for every level's text

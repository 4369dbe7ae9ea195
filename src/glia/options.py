"""The options of a compilation: defaults, admissible values, and the errors for other values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypedDict

from glia.arch.instances import COMPILED_TARGETS, get_target
from glia.base.errors import CompileError
from glia.base.suggestions import nearest


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
    implicit_integer_downcast: tuple[str, ...] = ("none",)  # dot scatter all_reduce ... all none
    f64: str = "refuse"  # refuse as-f32
    distribution_strategy: str = ""  # "" llm-training nemo fsdp
    logical_nc_config: int = 0
    replicas: int = 0  # devices that run copies, each of `partitions`; 0: as the module says
    partitions: int = 0
    optlevel: int = 2
    num_parallel_jobs: int = 8
    fast_context_switch: bool = False
    fast_loading_neuron_binaries: bool = False
    logfile: str = "log-neuron-cc.txt"
    output: str = "file.neff"
    verbose: str = "warning"
    product_limits: bool = False  # refuse what the product refuses
    verify: bool = False  # check the law of every level after every pass
    dump: str = ""  # directory for every level's text
    cache_dir: str = ""  # directory of the compile cache; "": that of NEURON_COMPILE_CACHE_URL
    no_cache: bool = False  # compile even what the cache has

    @property
    def cores(self) -> int:
        """The physical cores of the logical core that the model is compiled for."""
        return self.logical_nc_config or get_target(self.target).default_lnc


# Options that change neither the program nor what is recorded in the NEFF
UNRECORDED_OPTIONS = frozenset(
    {
        "logfile", "output", "verbose", "dump", "verify", "num_parallel_jobs", "cache_dir",
        "no_cache",
    }
)  # fmt: skip


class OptionArguments(TypedDict, total=False):
    """The options that `glia.compile` takes by keyword beside those in its signature.

    Type checkers read it, so that a misspelt option is found before it runs; the fields are those
    of `CompileOptions`.
    """

    framework: str
    model_type: str
    auto_cast_type: str
    mixed_precision_accumulation: bool
    saturate_infinity: bool
    native_int64: str
    implicit_integer_downcast: tuple[str, ...]
    f64: str
    distribution_strategy: str
    logical_nc_config: int
    replicas: int
    partitions: int
    num_parallel_jobs: int
    fast_context_switch: bool
    fast_loading_neuron_binaries: bool
    logfile: str
    output: str
    verbose: str
    product_limits: bool
    verify: bool
    dump: str
    cache_dir: str
    no_cache: bool


# The values each option may have, the default first (source: the product's CLI reference).
CHOICES: Mapping[str, tuple[object, ...]] = {
    "target": COMPILED_TARGETS,
    "framework": ("XLA",),
    "model_type": ("generic", "transformer", "unet-inference"),
    "auto_cast": ("matmult", "none", "all"),
    "auto_cast_type": ("bf16", "fp16", "tf32", "fp8_e4m3"),
    "native_int64": ("default", "enabled", "disabled"),
    "f64": ("refuse", "as-f32"),
    "distribution_strategy": ("", "llm-training", "nemo", "fsdp"),
    "optlevel": (2, 1, 3),
}
SEVERITIES = ("debug", "info", "warning", "error", "critical")
DOWNCASTS = ("dot", "scatter", "all_reduce", "reduce_scatter", "pow")


class UnknownOption(CompileError, TypeError):
    """A function that compiles has no option of this name.

    Cause: The option is misspelt, or it is written as on a command line (`auto-cast`).
    Fix: Use the option suggested in the message; `help(glia.compile)` names the options.
    Example: glia.compile(module, autocast="none")
    """

    code = "GLIA121"
    message = "{function} has no option {name!r}{nearest}"
    help = "the options of {function} are {known}"


def check_option_names(function: str, names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Raise UnknownOption unless every name is a field of CompileOptions or one of `others`."""
    known = [*(field.name for field in fields(CompileOptions)), *others]
    for name in names:
        if name not in known:
            raise UnknownOption(
                function=function, name=name, nearest=nearest(name, known), known=", ".join(known)
            )


class BadOption(CompileError):
    """A compile option has an inadmissible value.

    Cause: The value is misspelt, or of the wrong kind (the number 2 and not the text "2").
    Fix: Use one of the values in the message.
    Example: glia.compile(module, auto_cast="some")
    """

    code = "GLIA120"
    message = "{option} cannot be {value!r}; it must be {known}"
    help = "use one of the values in the message"


class UnsupportedLogicalCore(CompileError):
    """The target has no logical NeuronCore of the requested number of physical cores.

    Cause: NeuronCore-v2 targets run one physical core for each logical core; later ones one or two.
    Fix: Leave `--logical-nc-config` out, or give 1 (any target) or 2 (trn2, trn3).
    Example: neuronx-cc compile model.pb --framework XLA --target trn1 --lnc 2
    """

    code = "NCC_EARG001"
    message = "logical NeuronCore configuration {cores} is not supported by target {target}"
    help = "leave --logical-nc-config out, or give {supported}"


def check_options(options: CompileOptions) -> None:
    """Raise BadOption or UnsupportedLogicalCore unless every option has an admissible value."""
    _check_types(options)
    for name, known in CHOICES.items():
        _require(name, getattr(options, name), known)
    if options.implicit_integer_downcast not in (("all",), ("none",)):
        for name in options.implicit_integer_downcast:
            _require("implicit_integer_downcast", name, ("all", "none", *DOWNCASTS))
    supported = sorted(get_target(options.target).lncs)
    if options.logical_nc_config not in (0, *supported):
        raise UnsupportedLogicalCore(
            cores=options.logical_nc_config,
            target=options.target,
            supported=" or ".join(map(str, supported)),
        )


_KINDS: Mapping[str, tuple[type, str]] = {
    "bool": (bool, "True or False"),
    "int": (int, "a whole number"),
    "str": (str, "a text"),
    "tuple[str, ...]": (tuple, "a tuple of texts"),
}


def _check_types(options: CompileOptions) -> None:
    """Raise BadOption for a value of another type than the option's."""
    for each in fields(CompileOptions):
        value = getattr(options, each.name)
        kind, known = _KINDS[str(each.type)]
        is_right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not is_right and each.name not in CHOICES:
            raise BadOption(option=each.name, value=value, known=known)
    for name in ("replicas", "partitions"):
        if getattr(options, name) < 0:
            raise BadOption(option=name, value=getattr(options, name), known="1 or more, or 0")
    if options.num_parallel_jobs < 1:
        jobs = options.num_parallel_jobs
        raise BadOption(option="num_parallel_jobs", value=jobs, known="1 or more")
    is_number = options.verbose.isascii() and options.verbose.isdigit()
    if options.verbose not in SEVERITIES and not is_number:
        known = f"one of {', '.join(SEVERITIES)}, or a number"
        raise BadOption(option="verbose", value=options.verbose, known=known)


def _require(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known or isinstance(value, bool):
        texts = ", ".join(repr(each) for each in known)
        raise BadOption(option=name, value=value, known=f"one of {texts}")

"""THE list: every pass from the imported graph to the machine program, in order, with its reasons.

`compile` is the public entry; `run_pipeline` runs the list and tells an observer after each pass,
which is how progress, timings, `--dump` and `glia show --after` see inside.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glia.arch.instances import get_target
from glia.base.errors import CompileError, InternalError
from glia.base.options import CompileOptions

if TYPE_CHECKING:
    from glia.graph.ir import Graph
    from glia.neff.package import Neff


@dataclass(frozen=True)
class Recovery:
    """Where to go back to when a pass fails: `function` maps what the pass `to` made to something
    easier, or to None when nothing is left to try."""

    to: str
    function: str


@dataclass(frozen=True)
class Pass:
    """One step: `function` ("module:name", imported when it runs) maps (ir, options) to ir.

    `makes` is the level of its result: graph, tile or machine. `after` names earlier passes it
    relies on, each with the reason. `options` names the options it obeys. When it raises a
    CompileError and has a `recovery`, the pipeline goes back and tries again.
    """

    name: str
    function: str
    makes: str
    after: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    recovery: Recovery | None = None

    def __call__(self, ir: Any, options: CompileOptions) -> Any:
        """Run the pass."""
        return _resolve(self.function)(ir, options)


@dataclass(frozen=True)
class Step:
    """What an observer learns after a pass: its place in the list, its result and its time."""

    name: str
    level: str
    ir: Any
    seconds: float
    index: int
    total: int


Observer = Callable[[Step], None]

IMPORT = "import"  # the name of the step before the first pass

_GRAPH = "glia.graph.passes."
_TILE = "glia.tile.passes."
_MACHINE = "glia.machine.passes."


def _graph_pass(
    name: str,
    after: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    function: str = "",
) -> Pass:
    path = f"{_GRAPH}{function or name}:{function or name}"
    return Pass(name, path, makes="graph", after=after or {}, options=options)


PIPELINE: tuple[Pass, ...] = (
    _graph_pass("check_dtypes"),
    _graph_pass(
        "canonicalize",
        after={"check_dtypes": "the user sees an instruction of his own in the error"},
    ),
    _graph_pass(
        "simplify",
        after={"canonicalize": "its equations are written for merged movement"},
    ),
    _graph_pass(
        "propagate_constants",
        after={"canonicalize": "constants lie under merged movement, so each is computed once"},
    ),
    _graph_pass(
        "cast_dtypes",
        after={"propagate_constants": "weights are folded in the type they were given in"},
        options=("auto_cast", "auto_cast_type", "mixed_precision_accumulation"),
    ),
    _graph_pass("expand_collective"),
    _graph_pass("expand_random"),
    _graph_pass(
        "expand_fft",
        after={"cast_dtypes": "its contractions are glia's own and stay in float32"},
    ),
    _graph_pass(
        "expand_linear_algebra",
        after={"cast_dtypes": "its contractions are glia's own and stay in float32"},
    ),
    _graph_pass(
        "expand_complex",
        after={
            "expand_fft": "transforms are complex arithmetic",
            "expand_linear_algebra": "so are factorisations of complex matrices",
        },
    ),
    _graph_pass(
        "expand_int64",
        after={"expand_random": "random states are 64-bit integers"},
        options=("native_int64",),
    ),
    _graph_pass(
        "narrow_integers",
        after={"expand_int64": "what is to be exact in 64 bits is pairs of words by now"},
        options=("native_int64",),
    ),
    _graph_pass(
        "expand_select_and_scatter",
        after={"narrow_integers": "positions are 32-bit integers"},
    ),
    _graph_pass(
        "expand_reduce_window",
        after={"expand_select_and_scatter": "the window's choice is itself a window reduction"},
    ),
    _graph_pass(
        "expand_scatter", after={"expand_complex": "a complex scatter has several operands"}
    ),
    _graph_pass("expand_sort", after={"expand_complex": "a complex sort has several operands"}),
    _graph_pass(
        "expand_reduce",
        after={
            "expand_reduce_window": "windows of several tensors become reductions of several",
            "expand_select_and_scatter": "the position in a window is found by a reduction",
            "expand_complex": "a complex reduction has several operands",
        },
    ),
    _graph_pass(
        "fold_windows",
        after={
            "cast_dtypes": "narrow operands multiply faster, which decides whether copies pay",
            "expand_complex": "a complex convolution is several real ones",
        },
    ),
    _graph_pass(
        "expand_bitcast",
        after={
            "expand_random": "random bits are bitcast to floats",
            "narrow_integers": "words of 64-bit integers are bitcasts between widths",
        },
    ),
    _graph_pass("widen_nibbles", after={"expand_bitcast": "it takes bytes apart into nibbles"}),
    _graph_pass(
        "simplify_expanded",
        after={
            "expand_reduce": "expansions leave neutral elements and identities behind",
            "fold_windows": "rows of a kernel that is constant are folded once",
        },
        function="simplify",
    ),
    _graph_pass(
        "propagate_expanded",
        after={"simplify_expanded": "expansions leave small constants behind"},
        function="propagate_constants",
    ),
    _graph_pass(
        "eliminate_common_subexpressions",
        after={"simplify_expanded": "equal operations have one form once simplified"},
    ),
    _graph_pass(
        "recognise_functions",
        after={
            "eliminate_common_subexpressions": "a function of one variable reads it from one node"
        },
    ),
    _graph_pass(
        "turn_contractions",
        after={"recognise_functions": "it needs the final number of readers"},
    ),
    _graph_pass(
        "eliminate_dead_code",
        after={"recognise_functions": "what made up a recognised function is left behind"},
    ),
    _graph_pass(
        "simplify_living",
        after={"eliminate_dead_code": "tuples that lost elements fold once more"},
        function="simplify",
    ),
    Pass(
        "build",
        "glia.tile.build.lower:build",
        makes="tile",
        after={"simplify_living": "every operation left becomes a nest, read or not"},
    ),
    Pass("expand_scalars", f"{_TILE}expand_scalars:expand_scalars", makes="tile"),
    Pass(
        "schedule_nests",
        f"{_TILE}schedule:schedule_nests",
        makes="tile",
        after={"expand_scalars": "tile extents follow from how many values a body holds at once"},
    ),
    Pass(
        "choose_layouts",
        f"{_TILE}choose_layouts:choose_layouts",
        makes="tile",
        after={"schedule_nests": "a buffer stays on chip where every nest's tiling reaches it"},
    ),
    Pass(
        "read_kernels",
        "glia.neff.kernels:read_kernels",
        makes="tile",
        after={"build": "a call names the buffers that its kernel must fit"},
        options=("target",),
    ),
    Pass(
        "emit",
        "glia.machine.emit.program:emit",
        makes="machine",
        after={
            "choose_layouts": "operands are read where their buffers lie",
            "read_kernels": "kernels are put among the instructions of nests",
        },
        options=("target",),
    ),
    Pass(
        "double_buffer",
        f"{_MACHINE}double_buffer:double_buffer",
        makes="machine",
        options=("optlevel",),
    ),
    Pass(
        "schedule",
        f"{_MACHINE}schedule:schedule",
        makes="machine",
        after={"double_buffer": "unrolled iterations are what can run side by side"},
        options=("optlevel",),
    ),
    Pass(
        "place",
        f"{_MACHINE}place:place",
        makes="machine",
        after={
            "double_buffer": "the second copy of a tile needs an address of its own",
            "schedule": "what is live together follows from the order",
        },
        recovery=Recovery("choose_layouts", f"{_TILE}choose_layouts:evict"),
    ),
    Pass(
        "insert_semaphores",
        f"{_MACHINE}insert_semaphores:insert_semaphores",
        makes="machine",
        after={"place": "tiles that share an address must wait for each other"},
    ),
)

# The values each option may have, the default first (source: the product's CLI reference).
CHOICES: Mapping[str, tuple[object, ...]] = {
    "target": ("inf2", "trn1", "trn1n", "trn2", "trn3"),
    "framework": ("XLA",),
    "model_type": ("generic", "transformer", "unet-inference"),
    "auto_cast": ("matmult", "none", "all"),
    "auto_cast_type": ("bf16", "fp16", "tf32", "fp8_e4m3"),
    "native_int64": ("default", "enabled", "disabled"),
    "distribution_strategy": ("", "llm-training", "nemo", "fsdp"),
    "optlevel": (2, 1, 3),
}
DOWNCASTS = ("dot", "scatter", "all_reduce", "reduce_scatter", "pow")


class BadOption(CompileError):
    """A compile option has a value it cannot have.

    Cause: The value is misspelt, or of the wrong kind (the number 2 and not the text "2").
    Fix: Use one of the values in the message.
    Example: glia.compile(module, auto_cast="some")
    """

    code = "GLIA120"
    message = "{option} cannot be {value!r}; it is one of {known}"
    help = "use one of the values in the message"


class UnsupportedLogicalCore(CompileError):
    """The target's cores cannot be joined as asked.

    Cause: NeuronCore-v2 targets run one physical core for each logical core; later ones one or two.
    Fix: Leave `--logical-nc-config` out, or give 1 (any target) or 2 (trn2, trn3).
    Example: neuronx-cc compile model.pb --framework XLA --target trn1 --lnc 2
    """

    code = "NCC_EARG001"
    message = "logical NeuronCore configuration {cores} is not supported by target {target}"
    help = "leave --logical-nc-config out, or give {supported}"


def unheeded(options: CompileOptions) -> dict[str, str]:
    """By option that asks for something and has no effect yet, what is the case instead."""
    return {
        name: instead
        for name, (heeded, instead) in UNHEEDED.items()
        if getattr(options, name) not in heeded
    }


def check_options(options: CompileOptions) -> None:
    """Raise BadOption or UnsupportedLogicalCore unless every option has a value it may have."""
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


def _require(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known or isinstance(value, bool):
        texts = ", ".join(repr(each) for each in known)
        raise BadOption(option=name, value=value, known=texts)


_RECOVERABLE = {each.recovery.to for each in PIPELINE if each.recovery}

EFFECTIVE_OPTIONS = frozenset(name for each in PIPELINE for name in each.options)

# Options that nothing obeys yet: values that ask for what is the case, and what that is.
UNHEEDED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "model_type": (("generic",), "every model is compiled as a generic one"),
    "saturate_infinity": ((False,), "infinities stay what they are"),
    "implicit_integer_downcast": (
        (CompileOptions().implicit_integer_downcast,),
        "integers are narrowed where the default allows it",
    ),
    "distribution_strategy": (("",), "collectives are neither coalesced nor moved"),
    "logical_nc_config": ((0, 1), "a model runs on one core of a logical core"),
    "num_parallel_jobs": ((8, 1), "a model is compiled in one process"),
    "fast_context_switch": ((False,), "all weights are loaded with the model"),
    "product_limits": ((False,), "what only the product refuses is compiled"),
}

# Options that do not change the program, and so are not written into the NEFF.
_NOT_KEPT = {"logfile", "output", "verbose", "dump", "verify", "num_parallel_jobs"}

_TEXTS = {
    "graph": "glia.graph.text:print_graph",
    "tile": "glia.tile.text:print_program",
    "machine": "glia.machine.text:print_program",
}

_LAWS = {
    "graph": "glia.graph.legal:verify",
    "tile": "glia.tile.legal:verify",
    "machine": "glia.machine.legal:verify",
}


def compile(
    module: object,
    *,
    target: str = "trn2",
    optlevel: int = 2,
    auto_cast: str = "none",
    observer: Observer | None = None,
    **options: Any,
) -> Neff:
    """Compile a model for `target` and return it as a `Neff`.

    `module` is what `read_module` takes; further keyword arguments are the fields of
    `CompileOptions`. Raises a CompileError for everything the user can cure, TypeError for an
    unknown option; warns of one that has no effect yet.
    """
    chosen = CompileOptions(target=target, optlevel=optlevel, auto_cast=auto_cast, **options)
    neff = compile_graph(read_module(module), chosen, observer)
    for name, instead in unheeded(chosen).items():
        warnings.warn(f"{name} has no effect yet: {instead}", stacklevel=2)
    return neff


def read_module(module: object) -> Graph:
    """The graph of a model.

    `module` is serialized HLO (bytes), StableHLO (text or bytecode, with jaxlib), the path of a
    file of serialized HLO, a jax `Lowered`, or a graph. Raises the front ends' errors.
    """
    from glia.frontend.hlo import import_hlo, load_hlo
    from glia.frontend.stablehlo import import_lowered, import_stablehlo
    from glia.graph.ir import Graph

    if isinstance(module, Graph):
        return module
    if isinstance(module, str) and ("\n" in module or module.lstrip().startswith("module")):
        return import_stablehlo(module)
    if isinstance(module, (str, os.PathLike)):
        return load_hlo(Path(module))
    if isinstance(module, (bytes, bytearray, memoryview)):
        data = bytes(module)
        is_mlir = data.startswith((b"ML\xefR", b"module"))
        return import_stablehlo(data) if is_mlir else import_hlo(data)
    if hasattr(module, "compiler_ir"):
        return import_lowered(module)
    given = type(module).__name__
    raise TypeError(f"cannot compile a {given}; give HLO bytes, a path or a jax Lowered")


def compile_graph(graph: Graph, options: CompileOptions, observer: Observer | None = None) -> Neff:
    """Run the pipeline on an imported graph and wrap the result."""
    from glia.machine.ir import Program
    from glia.neff.package import Neff

    check_options(options)
    statistics = {"flops": count_flops(graph)}
    result = run_pipeline(graph, options, observer)
    made = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(program, Program) for program in made):
        raise InternalError("the pipeline did not end in machine programs")
    programs = tuple(_with_outside_types(program, graph) for program in made)
    kept = dataclasses.asdict(options)
    return Neff(
        programs=programs,
        options={name: value for name, value in kept.items() if name not in _NOT_KEPT},
        statistics=statistics,
        is_compressed=not options.fast_loading_neuron_binaries,
    )


def _with_outside_types(program: Any, graph: Graph) -> Any:
    """The program with inputs and outputs of the types the model was given with.

    Passes keep the bytes of what is visible outside, not its type: complex numbers become pairs,
    64-bit integers pairs of words.
    """
    inputs = _retyped(program.inputs, [p.type for p in graph.parameters])
    outputs = _retyped(program.outputs, [r.type for r in graph.results])
    return dataclasses.replace(program, inputs=inputs, outputs=outputs)


def _retyped(bindings: tuple[Any, ...], types: list[Any]) -> tuple[Any, ...]:
    found = []
    for binding, kind in zip(bindings, types, strict=True):
        if binding.tile.bytes != kind.bytes:
            raise InternalError(f"{binding.name} has {binding.tile.bytes} bytes, not {kind.bytes}")
        found.append(dataclasses.replace(binding, shape=kind.shape, dtype=kind.dtype))
    return tuple(found)


def count_flops(graph: Graph) -> int:
    """Floating-point operations of the model's contractions; the body of a loop counts once."""
    from glia.graph.ops import Convolution, Dot

    total = 0
    for node in graph.nodes:
        if isinstance(node, Dot):
            contracted = math.prod(node.a.shape[axis] for axis in node.a_contract)
            total += 2 * contracted * math.prod(node.shape)
        elif isinstance(node, Convolution):
            contracted = math.prod(node.kernel.shape[1:])
            total += 2 * contracted * math.prod(node.shape)
        for name in node.region_fields:
            region = getattr(node, name)
            for inner in region if isinstance(region, tuple) else (region,):
                total += count_flops(inner)
    return total


def run_pipeline(
    graph: Graph,
    options: CompileOptions,
    observer: Observer | None = None,
    stop_after: str = "",
) -> Any:
    """The result of every pass in order, or of those up to and including `stop_after`."""
    ir: Any = graph
    total = len(PIPELINE)
    made: dict[str, tuple[int, Any]] = {}  # what recoveries go back to
    if observer:
        observer(Step(IMPORT, "graph", ir, 0.0, 0, total))
    index = 0
    while index < total and stop_after != IMPORT:
        each = PIPELINE[index]
        index += 1
        started = time.perf_counter()
        try:
            ir = _run(each, ir, options)
        except CompileError:
            if each.recovery is None:
                raise
            index, before = made[each.recovery.to]
            ir = _resolve(each.recovery.function)(before, options)
            if ir is None:
                raise
            made[each.recovery.to] = index, ir
            continue
        if each.name in _RECOVERABLE:
            made[each.name] = index, ir
        if observer:
            observer(Step(each.name, each.makes, ir, time.perf_counter() - started, index, total))
        if stop_after == each.name:
            break
    return ir


def _run(each: Pass, ir: Any, options: CompileOptions) -> Any:
    try:
        result = each(ir, options)
        if options.verify and each.makes in _LAWS:
            _resolve(_LAWS[each.makes])(result)
        return result
    except CompileError:
        raise
    except Exception as error:
        error.add_note(f"in pass {each.name}")
        raise


def text_of(level: str, ir: Any) -> str:
    """The text form of a program at a level: graph, tile or machine."""
    write = _resolve(_TEXTS[level])
    programs = ir if isinstance(ir, tuple) else (ir,)
    return "\n".join(write(program) for program in programs)


def _resolve(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)

"""The pipeline: every pass from graph to machine program, in order, with the reasons for it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glia.options import CompileOptions


@dataclass(frozen=True)
class Recovery:
    """What to retry when a pass fails.

    `function` maps (the result of the earlier pass `to`, options, the error, the number of this
    attempt, from 1) to an easier result, or to None when there is none; the pipeline continues
    after `to`.
    """

    to: str
    function: str


@dataclass(frozen=True)
class Pass:
    """One step: `function` ("module:name", imported when it runs) maps (ir, options) to ir.

    `makes` is the level of its result: graph, tile or machine. `after` names earlier passes it
    relies on, each with the reason. `options` names the options that influence it. When it raises a
    CompileError or a Misfit, the first of its `recoveries` that finds something easier is taken.
    """

    name: str
    function: str
    makes: str
    after: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    recoveries: tuple[Recovery, ...] = ()

    def __call__(self, ir: Any, options: CompileOptions) -> Any:
        """Run the pass."""
        return resolve(self.function)(ir, options)


def resolve(path: str) -> Any:
    """The function that "module:name" names, imported now."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


BEFORE_CORES = "expand_scalars"
"""The pass after which a program for several cores is divided; each then takes the others."""

_GRAPH = "glia.graph."
_TILE = "glia.tile.passes."
_MACHINE = "glia.machine.passes."

PIPELINE: tuple[Pass, ...] = (
    Pass(
        "check_product_limits",
        f"{_GRAPH}passes.product_limits:check_product_limits",
        makes="graph",
        options=("product_limits", "implicit_integer_downcast", "target"),
    ),
    Pass(
        "number_ranks",
        f"{_GRAPH}exchanges.number_ranks:number_ranks",
        makes="graph",
        after={"check_product_limits": "what the product refuses is refused as written"},
        options=("replicas", "partitions"),
    ),
    Pass(
        "canonicalize",
        f"{_GRAPH}passes.canonicalize:canonicalize",
        makes="graph",
    ),
    Pass(
        "simplify",
        f"{_GRAPH}passes.simplify:simplify",
        makes="graph",
        after={"canonicalize": "its equations are written for merged movement"},
    ),
    Pass(
        "propagate_constants",
        f"{_GRAPH}passes.propagate_constants:propagate_constants",
        makes="graph",
        after={"canonicalize": "constants lie under merged movement, so each is computed once"},
    ),
    Pass(
        "check_dtypes",
        f"{_GRAPH}passes.check_dtypes:check_dtypes",
        makes="graph",
        after={"propagate_constants": "frameworks convert numbers of 64 bits, which is folded"},
        options=("f64", "product_limits"),
    ),
    Pass(
        "expand_float64",
        f"{_GRAPH}expand.float64:expand_float64",
        makes="graph",
        after={"propagate_constants": "what is known is computed in 64 bits and rounded once"},
        options=("f64",),
    ),
    Pass(
        "expand_small_floats",
        f"{_GRAPH}expand.small_floats:expand_small_floats",
        makes="graph",
        after={
            "propagate_constants": "constants are folded in the type they were given in",
            "check_dtypes": "the product refuses some of the formats",
        },
        options=("target",),
    ),
    Pass(
        "cast_dtypes",
        f"{_GRAPH}passes.cast_dtypes:cast_dtypes",
        makes="graph",
        after={
            "propagate_constants": "weights are folded in the type they were given in",
            "expand_float64": "64-bit floats are float32 by then",
        },
        options=("auto_cast", "auto_cast_type", "mixed_precision_accumulation"),
    ),
    Pass(
        "downcast_integers",
        f"{_GRAPH}passes.downcast_integers:downcast_integers",
        makes="graph",
        after={"cast_dtypes": "float32 holds more of an integer than what --auto-cast casts to"},
        options=("implicit_integer_downcast",),
    ),
    Pass(
        "move_exchanges",
        f"{_GRAPH}exchanges.move_exchanges:move_exchanges",
        makes="graph",
        after={
            "number_ranks": "where the piece of a rank begins follows from its number",
            "propagate_constants": "factors of sums are known",
        },
        options=("distribution_strategy",),
    ),
    Pass(
        "expand_collective",
        f"{_GRAPH}expand.collective:expand_collective",
        makes="graph",
        after={
            "move_exchanges": "sums over any dimension are scattered, and moved whole",
            "number_ranks": "its groups are of ranks",
            "downcast_integers": "which reductions of integers stay exact is known by then",
        },
        options=("native_int64",),
    ),
    Pass(
        "expand_random",
        f"{_GRAPH}expand.random:expand_random",
        makes="graph",
    ),
    Pass(
        "expand_fft",
        f"{_GRAPH}expand.fft:expand_fft",
        makes="graph",
        after={"cast_dtypes": "its contractions are glia's own and stay in float32"},
    ),
    Pass(
        "expand_linear_algebra",
        f"{_GRAPH}expand.linear_algebra:expand_linear_algebra",
        makes="graph",
        after={"cast_dtypes": "its contractions are glia's own and stay in float32"},
    ),
    Pass(
        "expand_complex",
        f"{_GRAPH}expand.complex:expand_complex",
        makes="graph",
        after={
            "expand_fft": "transforms are complex arithmetic",
            "expand_linear_algebra": "so are factorisations of complex matrices",
        },
    ),
    Pass(
        "expand_select_and_scatter",
        f"{_GRAPH}expand.select_and_scatter:expand_select_and_scatter",
        makes="graph",
        after={"expand_complex": "it has no form for pairs of tensors"},
    ),
    Pass(
        "narrow_by_range",
        f"{_GRAPH}passes.narrow_by_range:narrow_by_range",
        makes="graph",
        after={
            "propagate_constants": "ranges begin at constants",
            "expand_random": "counters of random bits are 64-bit integers",
        },
        options=("native_int64",),
    ),
    Pass(
        "expand_int64",
        f"{_GRAPH}expand.int64:expand_int64",
        makes="graph",
        after={
            "narrow_by_range": "values that fit 32 bits are no pairs",
            "expand_random": "random states are 64-bit integers",
            "expand_select_and_scatter": "what it picks and adds up may be 64-bit integers",
        },
        options=("native_int64",),
    ),
    Pass(
        "narrow_integers",
        f"{_GRAPH}passes.narrow_integers:narrow_integers",
        makes="graph",
        after={"expand_int64": "integers that stay exact in 64 bits are pairs of words by then"},
        options=("native_int64",),
    ),
    Pass(
        "recognise_recurrences",
        f"{_GRAPH}recurrences.recognise_recurrences:recognise_recurrences",
        makes="graph",
        after={
            "narrow_integers": "loops count in 32 bits",
            "expand_complex": "a complex state is two real ones",
        },
    ),
    Pass(
        "expand_reduce_window",
        f"{_GRAPH}expand.reduce_window:expand_reduce_window",
        makes="graph",
        after={
            "expand_select_and_scatter": "picking a window's element is itself a window reduction"
        },
    ),
    Pass(
        "expand_scatter",
        f"{_GRAPH}expand.scatter:expand_scatter",
        makes="graph",
        after={"expand_complex": "a complex scatter has several operands"},
    ),
    Pass(
        "expand_top_k",
        f"{_GRAPH}expand.sorting.top_k:expand_top_k",
        makes="graph",
        after={"expand_complex": "a complex sort has several operands"},
    ),
    Pass(
        "expand_sort",
        f"{_GRAPH}expand.sorting.sort:expand_sort",
        makes="graph",
        after={
            "expand_complex": "a complex sort has several operands",
            "expand_top_k": "what needs only the first elements does not sort all",
        },
        options=("target",),
    ),
    Pass(
        "expand_reduce",
        f"{_GRAPH}expand.reduce:expand_reduce",
        makes="graph",
        after={
            "expand_reduce_window": "windows of several tensors become reductions of several",
            "expand_select_and_scatter": "the position in a window is found by a reduction",
            "expand_complex": "a complex reduction has several operands",
        },
    ),
    Pass(
        "expand_bitcast",
        f"{_GRAPH}expand.bitcast:expand_bitcast",
        makes="graph",
        after={
            "expand_random": "random bits are bitcast to floats",
            "narrow_integers": "words of 64-bit integers are bitcasts between widths",
        },
    ),
    Pass(
        "widen_nibbles",
        f"{_GRAPH}expand.nibbles:widen_nibbles",
        makes="graph",
        after={"expand_bitcast": "it takes bytes apart into integers of two and four bits"},
    ),
    Pass(
        "simplify_expanded",
        f"{_GRAPH}passes.simplify:simplify",
        makes="graph",
        after={"expand_reduce": "expansions leave neutral elements and identities behind"},
    ),
    Pass(
        "propagate_expanded",
        f"{_GRAPH}passes.propagate_constants:propagate_constants",
        makes="graph",
        after={"simplify_expanded": "expansions leave small constants behind"},
    ),
    Pass(
        "eliminate_common_subexpressions",
        f"{_GRAPH}passes.eliminate_common_subexpressions:eliminate_common_subexpressions",
        makes="graph",
        after={"simplify_expanded": "equal operations have one form once simplified"},
    ),
    Pass(
        "compute_elements_alone",
        f"{_GRAPH}passes.compute_elements_alone:compute_elements_alone",
        makes="graph",
        after={
            "eliminate_common_subexpressions": "who reads a value says whether it is stored anyway"
        },
    ),
    Pass(
        "recognise_functions",
        f"{_GRAPH}passes.recognise_functions:recognise_functions",
        makes="graph",
        after={
            "eliminate_common_subexpressions": "a function of one variable reads it from one node"
        },
    ),
    Pass(
        "swap_contraction_operands",
        f"{_GRAPH}passes.swap_contraction_operands:swap_contraction_operands",
        makes="graph",
        after={"recognise_functions": "it needs the final number of readers"},
    ),
    Pass(
        "eliminate_dead_code",
        f"{_GRAPH}passes.eliminate_dead_code:eliminate_dead_code",
        makes="graph",
        after={"recognise_functions": "the operations of a recognised function are dead"},
    ),
    Pass(
        "simplify_live",
        f"{_GRAPH}passes.simplify:simplify",
        makes="graph",
        after={"eliminate_dead_code": "loops and tuples that lost elements simplify further"},
    ),
    Pass(
        "build",
        "glia.tile.build.lower:build",
        makes="tile",
        after={"simplify_live": "every remaining operation becomes a nest, live or dead"},
        options=("mixed_precision_accumulation",),
    ),
    Pass(
        "defer_factors",
        f"{_TILE}defer_factors:defer_factors",
        makes="tile",
        after={"build": "what precedes a product is one nest, whose factors are seen"},
    ),
    Pass(
        "block_reductions",
        "glia.tile.reductions.block_reductions:block_reductions",
        makes="tile",
        after={"defer_factors": "what is summed is an exponential, without the sum it is over"},
        options=("target",),
    ),
    Pass(
        "narrow_maxima",
        "glia.tile.reductions.narrow_maxima:narrow_maxima",
        makes="tile",
        after={"block_reductions": "the term of a maximum is that of the exponential about it"},
    ),
    Pass(
        "read_pieces",
        f"{_TILE}read_pieces:read_pieces",
        makes="tile",
        after={
            "defer_factors": "what follows a product is in its finish, which stays in one piece"
        },
        options=("target",),
    ),
    Pass(
        "expand_scalars",
        "glia.tile.expand.expand_scalars:expand_scalars",
        makes="tile",
        after={"defer_factors": "a quotient is a factor before it is a reciprocal's product"},
    ),
    Pass(
        "choose_parts",
        "glia.tuning.choose_parts:choose_parts",
        makes="tile",
        after={"expand_scalars": "rows are compared with the accesses of nests that stay"},
        options=("target", "distribution_strategy"),
    ),
    Pass(
        "split_batches",
        f"{_TILE}split_batches:split_batches",
        makes="tile",
        after={"expand_scalars": "it leaves the accesses of nests as they stay"},
    ),
    Pass(
        "merge_rows",
        f"{_TILE}merge_rows:merge_rows",
        makes="tile",
        after={"split_batches": "batches are axes by themselves, which their products keep"},
    ),
    Pass(
        "merge_blocks",
        f"{_TILE}merge_blocks:merge_blocks",
        makes="tile",
        after={"merge_rows": "rows of several axes may be enough"},
    ),
    Pass(
        "fill_partitions",
        f"{_TILE}fill_partitions:fill_partitions",
        makes="tile",
        after={"merge_blocks": "the members of blocks may be enough, or what is left of a sum"},
    ),
    Pass(
        "put_channels_first",
        f"{_TILE}put_channels_first:put_channels_first",
        makes="tile",
        after={"merge_rows": "it merges dimensions that are neighbours"},
        options=("target",),
    ),
    Pass(
        "receive_in_place",
        "glia.tile.exchanges.receive_in_place:receive_in_place",
        makes="tile",
        after={"merge_rows": "a copy to a buffer of another shape is none of a whole buffer"},
    ),
    Pass(
        "start_exchanges",
        "glia.tile.exchanges.start_exchanges:start_exchanges",
        makes="tile",
        after={
            "expand_scalars": "it compares what nests take, which is known by then",
            "receive_in_place": "one that writes a state waits for the reads of the old one",
        },
        options=("target", "distribution_strategy"),
    ),
    Pass(
        "schedule_nests",
        f"{_TILE}schedule:schedule_nests",
        makes="tile",
        after={
            "expand_scalars": "tile extents follow from how many values a body holds at once",
            "put_channels_first": "which axis lies on the partitions follows from the order in HBM",
        },
        options=("target", "model_type"),
    ),
    Pass(
        "group_nests",
        f"{_TILE}group_nests:group_nests",
        makes="tile",
        after={"schedule_nests": "nests run together that have the same axis on the partitions"},
        options=("target",),
    ),
    Pass(
        "skip_masked_blocks",
        f"{_TILE}skip_masked_blocks:skip_masked_blocks",
        makes="tile",
        after={"group_nests": "a group says which rows are computed together"},
    ),
    Pass(
        "place_exchanges",
        "glia.tile.exchanges.place_exchanges:place_exchanges",
        makes="tile",
        after={
            "start_exchanges": "they are in the order in which they are needed",
            "group_nests": "an exchange between nests of a group would keep them apart",
        },
        options=("target", "distribution_strategy"),
    ),
    Pass(
        "choose_layouts",
        f"{_TILE}choose_layouts:choose_layouts",
        makes="tile",
        after={
            "schedule_nests": "a buffer stays on chip where every nest's tiling reaches it",
            "group_nests": "what a group keeps on chip is not resident",
        },
    ),
    Pass(
        "update_in_place",
        f"{_TILE}update_in_place:update_in_place",
        makes="tile",
        after={"choose_layouts": "what stays in SBUF for its readers needs the copy to HBM"},
    ),
    Pass(
        "order_dimensions",
        f"{_TILE}order_dimensions:order_dimensions",
        makes="tile",
        after={
            "choose_layouts": "what stays in SBUF has no order in HBM",
            "update_in_place": "what is computed in an output has the order given",
        },
        options=("target",),
    ),
    Pass(
        "choose_blocks",
        "glia.tuning.choose_blocks:choose_blocks",
        makes="tile",
        after={
            "choose_layouts": "blocks share SBUF with what is resident, and need not load it",
            "order_dimensions": "what a block takes to load depends on the order in HBM",
        },
        options=("target", "optlevel"),
    ),
    Pass(
        "read_kernels",
        "glia.custom_call.read_kernels:read_kernels",
        makes="tile",
        after={"build": "a call names the buffers that its kernel must fit"},
        options=("target",),
    ),
    Pass(
        "emit",
        "glia.machine.emit.lower:emit",
        makes="machine",
        after={
            "choose_layouts": "operands are read where their buffers lie",
            "read_kernels": "kernels are put among the instructions of nests",
        },
        options=("target", "saturate_infinity", "model_type"),
        recoveries=(
            Recovery("group_nests", f"{_TILE}skip_masked_blocks:keep_masked_blocks"),
            Recovery("group_nests", f"{_TILE}group_nests:drop_groups"),
            Recovery("choose_layouts", f"{_TILE}choose_layouts:evict_misfits"),
        ),
    ),
    Pass(
        "convert_where_written",
        "glia.machine.emit.groups.convert_where_written:convert_where_written",
        makes="machine",
        after={"emit": "a value that several nests read is written once, and copied for some"},
    ),
    Pass(
        "double_buffer",
        f"{_MACHINE}double_buffer:double_buffer",
        makes="machine",
        options=("optlevel", "model_type"),
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
        recoveries=(
            Recovery("emit", f"{_MACHINE}fix_order:fix_order"),
            Recovery("choose_layouts", f"{_TILE}choose_layouts:evict"),
            Recovery("group_nests", f"{_TILE}group_nests:ungroup"),
        ),
    ),
    Pass(
        "insert_semaphores",
        f"{_MACHINE}insert_semaphores:insert_semaphores",
        makes="machine",
        after={"place": "tiles that share an address must wait for each other"},
    ),
)

BEFORE_CASTS = PIPELINE[[each.name for each in PIPELINE].index("cast_dtypes") - 1].name
"""The pass up to which all alternatives of a model's precision are alike."""

BEFORE_LEVELS = PIPELINE[["optlevel" in each.options for each in PIPELINE].index(True) - 1].name
"""The pass up to which all levels of optimisation are alike."""

"""What release 2.26.1 says instructions cost, beside what they cost here, in engine cycles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glia.arch import Arch, get_target
from glia.isa.kit import Instr
from glia.machine.builder.program_builder import ProgramBuilder

Emit = Callable[[ProgramBuilder], Instr]
SIZES = (32, 512)  # elements of a partition: below and above the least cost
TARGETS = ("trn1", "trn2", "trn3")
FAST = "faster where that generation's guide names a mode for it"
PAIRS = "`two_input_cycles`: profiles of Trn2 have half of it"


@dataclass(frozen=True)
class Cost:
    """A published formula over N elements per partition, and instructions it is for."""

    name: str
    formula: str
    published: Callable[[int], float]
    emit: Callable[[int], Emit]
    why: str = ""  # what explains a difference


def at_least(cycles: float) -> float:
    return max(64, cycles)


def plain(name: str, dtype: str = "f32", **more: object) -> Callable[[int], Emit]:
    """An instruction from one SBUF tile to another of N elements."""

    def sized(n: int) -> Emit:
        return lambda b: getattr(b, name)(b.sbuf((128, n), dtype), b.sbuf((128, n), dtype), **more)

    return sized


def tiled(name: str, *dtypes: str, psum: int = -1, **more: object) -> Callable[[int], Emit]:
    """One of several [128, N] tiles in SBUF, number `psum` in PSUM."""

    def sized(n: int) -> Emit:
        def emit(b: ProgramBuilder) -> Instr:
            tiles = [
                (b.psum if number == psum else b.sbuf)((128, n), dtype)
                for number, dtype in enumerate(dtypes)
            ]
            return getattr(b, name)(*tiles, **more)

        return emit

    return sized


def reduced(dtype: str, op: str) -> Callable[[int], Emit]:
    return lambda n: (
        lambda b: b.tensor_reduce(b.sbuf((128, 1), dtype), b.sbuf((128, n), dtype), op=op)
    )


def with_sums(name: str, *given: object, **more: object) -> Callable[[int], Emit]:
    """An instruction that also stores what it reduced."""
    return lambda n: (
        lambda b: getattr(b, name)(
            b.sbuf((128, n)), b.sbuf((128, n)), *given, reduced=b.sbuf((128, 1)), **more
        )
    )


def mixed(n: int) -> Emit:
    return lambda b: b.scalar_tensor_tensor(
        b.sbuf((128, n), "bf16"), b.sbuf((128, n), "bf16"), 2.0, "subtract",
        b.sbuf((128, n), "bf16"), "multiply",
    )  # fmt: skip


def separate(n: int) -> Emit:
    tiles = lambda b: (b.sbuf((128, n)), b.sbuf((128, n)))  # noqa: E731
    return lambda b: b.scalar_tensor_tensor(
        tiles(b)[0], tiles(b)[0], 2.0, "add", tiles(b)[1], "multiply"
    )


def product(dtype: str) -> Callable[[int], Emit]:
    return lambda n: (
        lambda b: b.nc_matmul(b.psum((128, n)), b.sbuf((128, 128), dtype), b.sbuf((128, n), dtype))
    )


def found(name: str) -> Callable[[int], Emit]:
    """Of eight values for each partition."""

    def sized(n: int) -> Emit:
        def emit(b: ProgramBuilder) -> Instr:
            data, eight = b.sbuf((128, n)), b.sbuf((128, 8))
            index = b.sbuf((128, 8), "u32")
            if name == "max8":
                return b.max8(eight, data)
            if name == "find_index8":
                return b.find_index8(index, data, eight)
            return b.match_replace8(b.sbuf((128, n)), index, data, eight, imm=0.0)

        return emit

    return sized


def counted(n: int) -> Emit:
    return lambda b: b.iota(
        b.sbuf((128, n), "s32"), offset=0, channel_multiplier=0, steps=(1,), counts=(n,)
    )


def selected(n: int) -> Emit:
    return lambda b: b.affine_select(
        b.sbuf((128, n)), b.sbuf((128, n)), offset=0, channel_multiplier=0, steps=(1,),
        counts=(n,), compare_op="greater_equal", false_value=0.0,
    )  # fmt: skip


def turned(n: int) -> Emit:
    side = min(n, 32)
    return lambda b: b.nc_transpose(b.sbuf((side, side)), b.sbuf((side, side)), on="vector")


COSTS: tuple[Cost, ...] = (
    Cost("nc_matmul bf16", "max(64, N)", at_least, product("bf16")),
    Cost("nc_matmul fp32", "4 max(64, N)", lambda n: 4 * at_least(n), product("f32")),
    Cost("nc_transpose on Vector", "max(64, N)", lambda n: at_least(min(n, 32)), turned),
    Cost("activation", "max(64, N)", at_least, plain("activation", function="exp")),
    Cost(
        "activation_reduce", "max(64, N) + 64", lambda n: at_least(n) + 64,
        with_sums("activation", function="exp"),
    ),
    Cost(
        "tensor_tensor fp32", "max(64, 2 N)", lambda n: at_least(2 * n),
        tiled("tensor_tensor", "f32", "f32", "f32", op="add"), PAIRS,
    ),
    Cost(
        "tensor_tensor fp32, one in PSUM", "max(64, N)", at_least,
        tiled("tensor_tensor", "f32", "f32", "f32", psum=2, op="add"),
    ),
    Cost(
        "tensor_tensor bf16 add", "max(64, N)", at_least,
        tiled("tensor_tensor", "bf16", "bf16", "bf16", op="add"), FAST,
    ),
    Cost(
        "tensor_scalar fp32", "max(64, N)", at_least,
        lambda n: lambda b: b.tensor_scalar(b.sbuf((128, n)), b.sbuf((128, n)), 2.0, "multiply"),
        FAST,
    ),
    Cost("scalar_tensor_tensor bf16, (x - y) z", "N", at_least, mixed, "never below 64"),
    Cost(
        "scalar_tensor_tensor fp32", "2 N", lambda n: at_least(2 * n), separate, PAIRS
    ),
    Cost(
        "tensor_reduce bf16 maximum", "N / 2", lambda n: at_least(n / 2),
        reduced("bf16", "maximum"), "never below 64",
    ),
    Cost("tensor_reduce fp32 add", "N", at_least, reduced("f32", "add"), "never below 64"),
    Cost("tensor_copy fp32", "max(64, N)", at_least, plain("tensor_copy"), FAST),
    Cost("tensor_copy bf16", "max(64, N)", at_least, plain("tensor_copy", "bf16"), FAST),
    Cost(
        "tensor_copy_predicated", "max(64, 2 N)", lambda n: at_least(2 * n),
        tiled("tensor_copy_predicated", "f32", "f32", "u8"), PAIRS,
    ),
    Cost(
        "tensor_tensor_scan", "max(64, 2 N)", lambda n: at_least(2 * n),
        tiled("tensor_tensor_scan", "f32", "f32", "f32", initial=0.0, op0="multiply", op1="add"),
    ),
    Cost(
        "tensor_scalar_reduce", "max(64, N) + 64", lambda n: at_least(n) + 64,
        with_sums("tensor_scalar_reduce", 2.0, "multiply", reduce_op="add"),
    ),
    Cost(
        "bn_stats", "max(64, N)", at_least,
        lambda n: lambda b: b.bn_stats(b.sbuf((128, 6)), b.sbuf((128, n))),
    ),
    Cost(
        "bn_aggr", "max(64, 13 N / 3)", lambda n: at_least(13 * (3 * (n // 3)) / 3),
        lambda n: lambda b: b.bn_aggr(b.sbuf((128, 2)), b.sbuf((128, 3 * (n // 3)))),
    ),
    Cost("reciprocal", "max(64, 8 N)", lambda n: at_least(8 * n), plain("reciprocal")),
    Cost("max8", "N", at_least, found("max8"), "never below 64"),
    Cost("nc_find_index8", "N", at_least, found("find_index8"), "never below 64"),
    Cost("nc_match_replace8", "min(64, N)", at_least, found("match_replace8"), "read as max"),
    Cost("dropout", "max(64, N)", at_least, plain("dropout", probability=0.5)),
    Cost(
        "memset 0, bf16", "max(64, N / 2)", lambda n: at_least(n / 2),
        lambda n: lambda b: b.memset(b.sbuf((128, n), "bf16"), 0.0),
    ),
    Cost(
        "memset 1, bf16", "max(64, N)", at_least,
        lambda n: lambda b: b.memset(b.sbuf((128, n), "bf16"), 1.0),
    ),
    Cost(
        "nc_stream_shuffle", "max(64, N)", at_least,
        plain("stream_shuffle", mask=tuple(range(32))),
    ),
    Cost("iota", "150 + N", lambda n: 150 + n, counted),
    Cost("affine_select", "150 + N", lambda n: 150 + n, selected),
)  # fmt: skip


def cycles_of(emit: Emit, target: str) -> float:
    """Cycles without the gap between instructions, which the formulas do not know."""
    arch: Arch = get_target(target).arch
    b = ProgramBuilder("cost", target=target)
    emit(b)
    (instr,) = b.finish(synchronise=False, is_checked=False).instructions()
    gaps = {f"issue_gap_cycles.{engine}": 0 for engine in ("vector", "scalar")}
    return instr.cycles(arch.with_values(gaps))


def cost_lines() -> list[str]:
    """A table: instruction, formula, and for each size what is published and what is taken here."""
    heads = [f"N = {size}: published, {', '.join(TARGETS)}" for size in SIZES]
    lines = [f"| nki.isa | published | {' | '.join(heads)} | |", "|---|---|---|---|---|"]
    for cost in COSTS:
        cells, is_equal = [], True
        for size in SIZES:
            published = cost.published(size)
            taken = [cycles_of(cost.emit(size), target) for target in TARGETS]
            is_equal &= all(each == round(published) for each in taken)
            cells.append(f"{published:g}: {', '.join(f'{each:g}' for each in taken)}")
        verdict = "agrees" if is_equal else cost.why
        lines.append(f"| {cost.name} | {cost.formula} | {' | '.join(cells)} | {verdict} |")
    return lines

"""Every published measurement of the timing model's subject, and the program that repeats it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from calibration_gemm import Gemm, Way, blocked, by, fully_blocked, hoisted, tiled
from calibration_kernels import Mamba, Mlp, exponential

from glia.arch import get_target
from glia.base.affine import Affine
from glia.isa.instructions.sync import RegisterMove
from glia.isa.kit import Instr
from glia.isa.operand import Signal, Wait
from glia.machine.builder.program_builder import ProgramBuilder
from glia.machine.ir import Program
from glia.timing.costs import HBM_LANE, PS, cost_transfer
from glia.timing.simulate import Timing, simulate_timing

Emit = Callable[[ProgramBuilder], Instr]
WARM = 40  # instructions after which the array runs at its full rate
STATIC = ("qSyncIO0", "sync", "none")
HARDWARE, SOFTWARE = ("qSyncDynamic", "sync", "hwdge"), ("qGpSimdDynamic", "gpsimd", "swdge")


@dataclass(frozen=True)
class Row:
    """One published number and the function that predicts it, both in `unit`."""

    section: str
    name: str
    target: str
    published: float
    unit: str
    predict: Callable[[], float]
    source: str
    held_out: bool = False  # no constant was fitted to it
    contradicted_by: str = ""  # another publication of the same measurement, with its number


def time_of(program: Program, target: str) -> Timing:
    """The timing of a program on one core, with its events."""
    return simulate_timing(program, get_target(target).arch)


def latency(build: Callable[[], Program], target: str) -> float:
    """Milliseconds from start to end, preamble and postamble included."""
    return time_of(build(), target).latency_ns / 1e6


def written(emit: Emit, target: str, times: int = 1) -> Program:
    """A program of one instruction, as often as it is asked for."""
    b = ProgramBuilder("row", target=target)
    emit(b)
    program = b.finish(synchronise=False, is_checked=False)
    return replace(program, body=program.body * times)


def duration(emit: Emit, target: str, *, before: int = 1) -> float:
    """Nanoseconds from an instruction's start to its result being visible.

    `before` runs of it load tables and warm up what has to be. An instruction of another engine
    waits for the result; its wake-up is not counted.
    """
    program = written(emit, target, before + 1)
    last = replace(program.body[-1], signals=(Signal("done"),))
    waiting = RegisterMove(register="r", value=0, on="gpsimd", waits=(Wait("done", Affine.of(1)),))
    timing = time_of(replace(program, body=(*program.body[:-1], last, waiting)), target)
    wake = get_target(target).arch.semaphore_wake_ns
    return timing.events[-1].start_ns - wake - timing.events[-2].start_ns


def interval(emit: Emit, target: str) -> float:
    """Nanoseconds between the starts of equal instructions, one behind the other."""
    starts = [event.start_ns for event in time_of(written(emit, target, WARM), target).events]
    return starts[-1] - starts[-2]


def load(partitions: int, columns: int, dtype: str = "u8", where: Way = STATIC) -> Emit:
    """A load of contiguous rows, one for each partition."""

    def emit(b: ProgramBuilder) -> Instr:
        source, here = b.hbm((partitions, columns), dtype), b.sbuf((partitions, columns), dtype)
        return b.dma_copy(here, source, **by(where))

    return emit


def window(emit: Emit, target: str) -> float:
    """Nanoseconds from a transfer's first byte to its last."""
    event = time_of(written(emit, target), target).events[0]
    return event.end_ns - event.start_ns


def gemm(target: str) -> Gemm:
    """The tutorials' 4096 x 8192 x 8192.

    Releases up to 2.26 prepared descriptors before the run; later ones make them at run time, loads
    by GpSimd (as the Trn2 profiles show) and stores by the hardware.
    """
    if target == "trn1":
        return Gemm(4096, 8192, 8192, "bf16", target)
    return Gemm(4096, 8192, 8192, "f32", target, SOFTWARE, HARDWARE, "vector")


def kernel_rows() -> list[Row]:
    """Section 3: whole kernels."""
    tutorial = "matrix multiplication tutorial, releases 2.20 to 2.26"
    optimization = "kernel optimization tutorial"
    mamba = "fused mamba tutorial"
    kernels: list[tuple[str, str, float, Callable[[], Program], str]] = [
        ("GEMM bf16, tiled", "trn1", 51.80, lambda: tiled(gemm("trn1")), tutorial),
        ("GEMM bf16, hoisted", "trn1", 42.96, lambda: hoisted(gemm("trn1")), tutorial),
        (
            "GEMM bf16, blocked m n", "trn1", 22.07,
            lambda: blocked(gemm("trn1"), is_kept=True), tutorial,
        ),
        ("GEMM bf16, blocked m n k", "trn1", 6.97, lambda: fully_blocked(gemm("trn1")), tutorial),
        ("GEMM fp32, tiled", "trn2", 39.894938, lambda: tiled(gemm("trn2")), optimization),
        ("GEMM fp32, hoisted", "trn2", 28.197982, lambda: hoisted(gemm("trn2")), optimization),
        (
            "GEMM fp32, blocked m n", "trn2", 28.414015,
            lambda: blocked(gemm("trn2"), is_kept=False), optimization,
        ),
        (
            "GEMM fp32, blocked m n k", "trn2", 28.301971,
            lambda: fully_blocked(gemm("trn2")), optimization,
        ),
        ("exp 250 x 512", "trn1", 0.02926, exponential, "profile of the exp kernel"),
        ("mamba v1, 256 channels", "trn1", 0.17293, Mamba(256, "trn1").first_version, mamba),
        ("mamba v1, 4096 channels", "trn1", 2.34, Mamba(4096, "trn1").first_version, mamba),
        ("mamba v2, 4096 channels", "trn1", 1.61, Mamba(4096, "trn1").second_version, mamba),
        ("MLP of 3 layers, fp32", "trn2", 1.867543, lambda: Mlp().write(), "profiling guide"),
    ]  # fmt: skip
    contradicted = {
        "GEMM bf16, tiled": "20.99 ms for the same kernel, shape and instance (autocomp)",
        "GEMM bf16, hoisted": "the row above, measured with it",
        "GEMM bf16, blocked m n": "the rows above, measured with it",
    }
    return [
        Row(
            "3", name, target, ms, "ms", partial(latency, build, target), source,
            contradicted_by=contradicted.get(name, ""),
        )
        for name, target, ms, build, source in kernels
    ]  # fmt: skip


SEQUENCES = (
    (1024, 3.3), (2048, 6.6), (3072, 10.1), (4096, 13.3), (5120, 17.3), (6144, 19.6), (7168, 24.2),
    (8192, 27.8),
)  # fmt: skip


def sequence_rows() -> list[Row]:
    """Section 3, not fitted to: the mamba tutorial's last version on longer sequences."""
    return [
        Row(
            "3", f"mamba v3, 4096 channels, {length} steps", "trn1", ms, "ms",
            partial(latency, Mamba(4096, "trn1", length).third_version, "trn1"),
            "fused mamba tutorial", held_out=True,
        )
        for length, ms in SEQUENCES
    ]  # fmt: skip


CURVE = (
    (32, 0.017), (64, 0.028), (128, 0.053), (256, 0.105), (512, 0.210), (1024, 0.427),
    (2048, 0.811), (4096, 0.967), (8192, 0.983), (16384, 0.991), (32768, 1.0),
)  # fmt: skip


def load_rate(bytes_per_partition: int) -> float:
    """Bytes per nanosecond of loads of 128 partitions one behind the other, hardware descriptors.

    On Trn3: the curve's axis has no label and its generation is not stated; where it is flat a load
    takes the documented 600 ns if the plateau is Trn3's rate.
    """
    emit = load(128, bytes_per_partition, where=HARDWARE)
    ends = [event.end_ns for event in time_of(written(emit, "trn3", WARM), "trn3").events]
    return 128 * bytes_per_partition / (ends[-1] - ends[-2])


def plateau_part(bytes_per_partition: int) -> float:
    """`load_rate` relative to that of the longest rows."""
    return load_rate(bytes_per_partition) / load_rate(CURVE[-1][0])


def engine_rate(rows: tuple[tuple[int, int], ...]) -> float:
    """Bytes per nanosecond of a busy DMA engine of Trn2 on (bytes per row, loads) of a kernel."""
    arch = get_target("trn2").arch
    moved = busy = 0.0
    for length, times in rows:
        cost = cost_transfer(written(load(128, length), "trn2").body[0], arch)
        moved += cost.moved_bytes * times
        busy += times * sum(ps * len(set(lanes) - {HBM_LANE}) for ps, lanes in cost.lanes) / PS
    return moved / busy


def dma_rows() -> list[Row]:
    """Section 2.4: efficiency by row length, engines' rates in kernels, descriptor generation."""
    rows = [
        Row(
            "2.4", f"part of plateau, {length} bytes per partition", "trn3", published, "",
            partial(plateau_part, length), "DMA overview, curve",
        )
        for length, published in CURVE
    ]  # fmt: skip
    kernels = (
        ("tiled", 20.9, ((512, 1), (2048, 1))),
        ("hoisted", 22.0, ((512, 1), (2048, 16))),
        ("blocked m n", 22.2, ((512, 1), (2048, 16))),
        ("blocked m n k", 22.2, ((8192, 2), (4096, 1))),
    )
    for name, published, lengths in kernels:
        predict = partial(engine_rate, lengths)
        name = f"rate of a DMA engine, GEMM {name}"
        rows.append(Row("2.4", name, "trn2", published, "B/ns", predict, "kernel optimization"))
    small = load(128, 512, where=SOFTWARE)
    predict = partial(interval, small, "trn2")
    source = "kernel optimization: 65,536 loads in 39.87 ms"
    rows.append(Row("2.4", "loads by GpSimd, interval", "trn2", 608, "ns", predict, source))
    return rows


def example(partitions: int, columns: int, where: Way) -> dict[str, float]:
    """A load, its exponential and the store: what the DMA overview's timelines show, in ns."""
    b = ProgramBuilder("example", target="trn2")
    shape = (partitions, columns)
    x, y = b.input("x", shape, "bf16"), b.output("y", shape, "bf16")
    given, made = b.sbuf(shape, "bf16"), b.sbuf(shape, "bf16")
    b.dma_copy(given, x, **by(where))
    b.activation(made, given, function="exp")
    b.dma_copy(y, made, **by(where))
    timing = time_of(b.finish(), "trn2")
    arch = get_target("trn2").arch
    loaded, act, stored = timing.events
    visible = arch.latency_cycles["scalar"] - arch.issue_gap_cycles["scalar"]
    computed = act.end_ns + visible / arch.clocks_ghz["scalar"]
    begun = act.start_ns - arch.activation_table_load_ns
    return {
        "load": loaded.end_ns - loaded.start_ns,
        "trigger to consumer": begun - timing.begin_ns,
        "table load and activation": computed - begun,
        "activation": computed - act.start_ns,
        "store": stored.end_ns - stored.start_ns,
        "end of activation to stored": stored.end_ns + arch.dma_completion_ns - computed,
        "all": stored.end_ns + arch.dma_completion_ns - timing.begin_ns,
    }


def moment(arguments: tuple[int, int, Way], what: str) -> float:
    """One of the times of an example."""
    return example(*arguments)[what]


def anatomy_rows() -> list[Row]:
    """Section 2.5: the two timelines of the DMA overview."""
    examples = (
        ("A[4, 4096]", (4, 4096, STATIC), {
            "load": 1416, "trigger to consumer": 2739, "table load and activation": 5049,
            "store": 1225, "end of activation to stored": 2477, "all": 10265,
        }),
        ("A[128, 128]", (128, 128, SOFTWARE), {
            "load": 468, "trigger to consumer": 1501, "activation": 401,
        }),
    )  # fmt: skip
    return [
        Row(
            "2.5", f"{name}: {what}", "trn2", published, "ns",
            partial(moment, arguments, what), "DMA overview, timeline",
        )
        for name, arguments, measured in examples
        for what, published in measured.items()
    ]  # fmt: skip


def reduced_by_two(megabytes: int) -> float:
    """Milliseconds of an all-reduce by the two ranks of a Trn1 chip, from trigger to use."""
    b = ProgramBuilder("row", target="trn1")
    shape = (megabytes * 2**20 // 4,)
    b.all_reduce(srcs=(b.hbm(shape),), dsts=(b.hbm(shape),), op="add", groups=((0, 1),))
    timing = time_of(b.finish(synchronise=False, is_checked=False), "trn1")
    return (timing.latency_ns - timing.begin_ns - get_target("trn1").arch.postamble_ns) / 1e6


def collective_rows() -> list[Row]:
    """Section 2.7: what two ranks reach; one row says how fast their links are."""
    published = ((16, 0.332, True), (64, 1.214, True), (256, 4.750, True), (1024, 18.930, False))
    return [
        Row(
            "2.7", f"all-reduce of {megabytes} MiB by 2 ranks", "trn1", ms, "ms",
            partial(reduced_by_two, megabytes), "nccom-test guide", held_out,
        )
        for megabytes, ms, held_out in published
    ]  # fmt: skip


def two(name: str, columns: int, dtype: str = "f32", partitions: int = 128, **more: object) -> Emit:
    """An instruction from one SBUF tile to another."""

    def emit(b: ProgramBuilder) -> Instr:
        dst, src = (b.sbuf((partitions, columns), dtype) for _ in range(2))
        return getattr(b, name)(dst, src, **more)

    return emit


def pair(columns: int, partitions: int = 128, *, in_psum: bool = False) -> Emit:
    """A sum of two fp32 tiles, both in SBUF or one in PSUM."""

    def emit(b: ProgramBuilder) -> Instr:
        dst, first = b.sbuf((partitions, columns)), b.sbuf((partitions, columns))
        second = b.psum((partitions, columns)) if in_psum else b.sbuf((partitions, columns))
        return b.tensor_tensor(dst, first, second, op="add")

    return emit


def product(columns: int, dtype: str, rows: int = 128) -> Emit:
    """A matrix product with `columns` moving columns."""

    def emit(b: ProgramBuilder) -> Instr:
        out = b.psum((rows, columns))
        return b.nc_matmul(out, b.sbuf((128, rows), dtype), b.sbuf((128, columns), dtype))

    return emit


def onezero(b: ProgramBuilder) -> Instr:
    moving = b.sbuf((128, 512))
    return b.nc_matmul(b.psum((128, 512)), b.sbuf((128, 128)), moving, is_moving_onezero=True)


def turn(dtype: str) -> Emit:
    """A transposition of 128 x 128 through the array."""
    return lambda b: b.nc_transpose(b.psum((128, 128), dtype), b.sbuf((128, 128), dtype))


def from_psum(b: ProgramBuilder) -> Instr:
    return b.tensor_copy(b.sbuf((128, 512)), b.psum((128, 512)))


def fused(b: ProgramBuilder) -> Instr:
    """(data * number) + tensor, data in SBUF as bf16, the tensor in PSUM."""
    dst, data = b.sbuf((128, 512)), b.sbuf((128, 512), "bf16")
    summed = b.psum((128, 512))
    return b.scalar_tensor_tensor(dst, data, 2.0, "multiply", summed, "add")


def to_fp8(b: ProgramBuilder) -> Instr:
    dst, data = b.sbuf((128, 16384), "f8e4m3"), b.sbuf((128, 16384), "bf16")
    return b.tensor_scalar(dst, data, 2.0, "multiply")


def largest(b: ProgramBuilder) -> Instr:
    """The greatest magnitude of a row, as the library's quantization finds it."""
    dst, data = b.sbuf((128, 16384), "bf16"), b.sbuf((128, 16384), "bf16")
    return b.tensor_scalar_reduce(
        dst, data, op0="abs", reduce_op="maximum", reduced=b.sbuf((128, 1))
    )


def dependent(b: ProgramBuilder) -> Instr:
    tile = b.sbuf((128, 1))
    return b.activation(tile, tile, function="exp")


def summing(b: ProgramBuilder) -> Instr:
    dst, data = b.sbuf((128, 16384), "bf16"), b.sbuf((128, 16384), "bf16")
    return b.activation(dst, data, function="exp", reduced=b.sbuf((128, 1)))


def act(columns: int, dtype: str = "f32") -> Emit:
    """An activation of SBUF."""
    return two("activation", columns, dtype, function="exp")


def scalar_copy(columns: int, dtype: str) -> Emit:
    """A copy of PSUM to float32 in SBUF on Scalar."""
    return lambda b: b.tensor_copy(
        b.sbuf((128, columns)), b.psum((128, columns), dtype), on="scalar"
    )


def shifted(in_psum: bool) -> Emit:
    """The exponential of 512 columns plus a number for each partition."""

    def emit(b: ProgramBuilder) -> Instr:
        data = b.psum((128, 512)) if in_psum else b.sbuf((128, 512))
        return b.activation(b.sbuf((128, 512)), data, function="exp", bias=b.sbuf((128, 1)))

    return emit


def scaled(b: ProgramBuilder) -> Instr:
    """512 columns times a number for each partition."""
    return b.tensor_scalar(b.sbuf((128, 512)), b.sbuf((128, 512)), b.sbuf((128, 1)), "multiply")


def greatest(columns: int) -> Emit:
    """The maximum of a row of PSUM."""
    return lambda b: b.tensor_reduce(b.sbuf((128, 1)), b.psum((128, columns)), op="maximum")


def table_load(emit: Emit, target: str) -> float:
    """Nanoseconds by which another table delays an activation."""
    program = written(emit, target, 3)
    first, other, again = program.body
    others = (replace(each, function="gelu") for each in (other, again))
    events = time_of(replace(program, body=(first, *others)), target).events
    starts = [event.start_ns for event in events]
    return (starts[1] - starts[0]) - (starts[2] - starts[1])


def warm(emit: Emit, target: str) -> float:
    """`duration` on an array at its full rate."""
    return duration(emit, target, before=WARM)


def half_interval(emit: Emit, target: str) -> float:
    """Of one of the two instructions that a product of float32 takes."""
    return interval(emit, target) / 2


def second_half(emit: Emit, target: str) -> float:
    """`warm` of the second of the two."""
    return warm(emit, target) - half_interval(emit, target)


def instruction_rows() -> list[Row]:
    """Section 2.6: single instructions."""
    guide, profiler, library = "NKI performance guide", "NKI profiler guide", "NKI library"
    device, overview, mamba = "device profile", "DMA overview", "fused mamba tutorial"
    gemm_page = "kernel optimization tutorial"
    fusion = "allenkchau/trainium-kernel-fusion, profiles"
    full, mixed = product(512, "f32"), pair(512, in_psum=True)
    copied = two("tensor_copy", 512)
    rows: list[tuple[str, str, float, Callable[[Emit, str], float], Emit, str]] = [
        ("activation, N = 1", "trn1", 159, duration, act(1), guide),
        ("activation, N = 1, dependent interval", "trn1", 189, interval, dependent, guide),
        ("tensor_tensor fp32 128 x 8192", "trn1", 14987, duration, pair(8192), guide),
        ("tensor_tensor fp32 64 x 8192", "trn1", 14968, duration, pair(8192, 64), guide),
        ("tensor_tensor fp32 N = 512, interval", "trn1", 931, interval, pair(512), mamba),
        ("matmul bf16, 128 columns", "trn1", 219, duration, product(128, "bf16", 96), guide),
        ("transposition bf16 128 x 128", "trn1", 195, duration, turn("bf16"), guide),
        ("matmul bf16, 1 column", "trn1", 188, duration, product(1, "bf16"), guide),
        ("table load", "trn1", 368, table_load, act(64), "instruction details picture"),
        ("reload of 4 MiB", "trn1", 16955, window, load(128, 32768), guide),
        ("32 KiB on one DMA engine", "trn1", 1810, window, load(8, 4096), guide),
        ("matmul fp32, one of two instructions", "trn2", 590, second_half, full, profiler),
        ("the same, interval", "trn2", 428.5, half_interval, full, gemm_page),
        ("matmul fp32 of ones and zeros, interval", "trn2", 422, interval, onezero, profiler),
        ("transposition fp32 128 x 128", "trn2", 272, warm, turn("f32"), device),
        ("the same, throttled", "trn2", 444, duration, turn("f32"), device),
        ("tensor_copy PSUM to SBUF fp32 N = 512", "trn2", 701, duration, from_psum, profiler),
        ("tensor_tensor PSUM + SBUF fp32 N = 512", "trn2", 694, duration, mixed, profiler),
        ("the same, interval", "trn2", 604, interval, mixed, profiler),
        ("tensor_copy SBUF to SBUF fp32 N = 512", "trn2", 428.5, duration, copied, profiler),
        ("the same, interval", "trn2", 338.5, interval, copied, profiler),
        ("tensor_scalar_reduce abs, max bf16 N = 16384", "trn2", 17235, duration, largest, library),
        ("tensor_scalar bf16 to fp8 N = 16384", "trn2", 8750, duration, to_fp8, library),
        ("scalar_tensor_tensor SBUF, PSUM N = 512", "trn2", 730, duration, fused, library),
        ("the same, interval", "trn2", 661, interval, fused, library),
        ("activation with row sum bf16 N = 16384", "trn2", 13943, duration, summing, library),
        ("activation exp bf16 N = 128", "trn2", 401, duration, act(128, "bf16"), overview),
        ("activation exp bf16 N = 4096", "trn2", 3712, duration, act(4096, "bf16"), overview),
        ("table load", "trn2", 1285, table_load, act(64), overview),
        ("copy on Scalar fp32 N = 512, interval", "trn2", 477, interval, scalar_copy(512, "f32"),
         fusion),
        ("copy on Scalar bf16 N = 128, interval", "trn2", 156.5, interval, scalar_copy(128, "bf16"),
         fusion),
        ("exp with a bias, PSUM N = 512, interval", "trn2", 570, interval, shifted(True), fusion),
        ("exp with a bias, SBUF N = 512, interval", "trn2", 612, interval, shifted(False), fusion),
        ("times a column fp32 N = 512, interval", "trn2", 396, interval, scaled, fusion),
        ("maximum PSUM fp32 N = 512, interval", "trn2", 598, interval, greatest(512), fusion),
        ("maximum PSUM fp32 N = 8, interval", "trn2", 67.5, interval, greatest(8), fusion),
    ]  # fmt: skip
    return [
        Row("2.6", name, target, published, "ns", partial(measure, emit, target), source)
        for name, target, published, measure, emit, source in rows
    ]


def repeated_rows() -> list[Row]:
    """Programs of the tutorial that others measured as well."""
    autocomp = "ucb-bar/autocomp, trn1.2xlarge, p99 of nki.benchmark"
    programs: list[tuple[str, float, Callable[[], Program]]] = [
        ("product bf16, tiled", 20.99, lambda: tiled(gemm("trn1"))),
        ("product bf16, blocked m n k", 6.96, lambda: fully_blocked(gemm("trn1"))),
    ]
    return [
        Row("3", name, "trn1", published, "ms", partial(latency, build, "trn1"), autocomp, True)
        for name, published, build in programs
    ]


def every_row() -> list[Row]:
    """All rows, kernels first."""
    return [
        *kernel_rows(),
        *repeated_rows(),
        *sequence_rows(),
        *dma_rows(),
        *anatomy_rows(),
        *instruction_rows(),
        *collective_rows(),
    ]


@dataclass(frozen=True)
class Fit:
    """A constant that was read off measurements, and the beginnings of the names of those rows."""

    target: str
    constant: str
    rows: tuple[str, ...]


FITS = (
    Fit("trn1", "latency_cycles.tensor", ("matmul bf16", "transposition bf16")),
    Fit("trn1", "latency_cycles.vector", ("tensor_tensor fp32 128", "tensor_tensor fp32 64")),
    Fit("trn1", "latency_cycles.scalar", ("activation, N = 1",)),
    Fit("trn1", "issue_gap_cycles.vector", ("tensor_tensor fp32 N = 512", "mamba v1, 256")),
    Fit("trn1", "activation_table_load_ns", ("table load",)),
    Fit("trn1", "preamble_ns", ("exp 250",)),
    Fit("trn1", "postamble_ns", ("exp 250", "mamba v1, 256")),
    Fit("trn1", "collective_bytes_per_ns", ("all-reduce of 1024",)),
    Fit("trn2", "issue_gap_cycles.tensor", ("the same, interval", "matmul fp32, one")),
    Fit("trn2", "issue_gap_cycles.vector", ("the same, interval",)),
    Fit("trn2", "latency_cycles.tensor", ("matmul fp32, one", "transposition fp32 128")),
    Fit("trn2", "latency_cycles.vector", ("tensor_copy PSUM", "tensor_tensor PSUM")),
    Fit("trn2", "latency_cycles.scalar", ("activation exp", "A[128, 128]: activation")),
    Fit("trn2", "issue_gap_cycles.scalar", ("copy on Scalar",)),
    Fit("trn2", "operand_read_cycles.scalar", ("exp with a bias",)),
    Fit("trn2", "operand_read_cycles.vector", ("times a column",)),
    Fit("trn2", "activation_table_load_ns", ("table load", "A[4, 4096]: table load")),
    Fit("trn2", "dma_descriptor_ns", ("rate of a DMA engine",)),
    Fit("trn2", "dma_start_ns, _ring_skew_ns, _completion_ns", ("A[",)),
    Fit("trn2", "dma_software_issue_ns", ("loads by GpSimd", "GEMM fp32, tiled")),
)

EXCLUDED = (
    ("mamba in PyTorch, 151.83 ms", "the program is the vendor compiler's own and not published"),
    ("DMA of 2 KiB, 457 ns; DMA of 256 KiB, 3,046 ns (Trn1)",
     "single packets amid traffic that is not published; A[128, 128] shows 97 ns for such 2 KiB"),
    ("DMA of 4 bytes, 7 ns (Trn1); EVENT_SEMAPHORE, 9 ns; DMA triggers, 8 to 88 ns",
     "constants of the model themselves"),
    ("dma_transpose, 4,810 ns (Trn1)", "neither shape nor dtype is published"),
    ("matmul bf16, 416 columns, 411 ns",
     "the picture names no instance; Trn1's other rows give 149 + 165 ns for 416 columns"),
    ("LDWEIGHTS, 67 and 198 ns; matmul after a load, 48 ns",
     "loading weights is part of the product here, hidden as the guide says"),
    ("first matmul after a cold start, 675 ns (Trn2)",
     "contradicts the documented half rate, which the throttled transposition agrees with"),
    ("semaphore wait before a weights load, 58 ns", "begin and end are not defined"),
    ("all other times of collectives", "they have a table of their own: Collectives"),
    ("CC barrier, 369 ns (Trn1)", "the picture does not say what ranks waited for"),
)  # fmt: skip

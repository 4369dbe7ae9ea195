"""What publications give for the constants of the timing model that were read off measurements.

A constant that is not here is stated in a text that nothing else doubts, or `assumed`. Intervals
are those of the pictures and tables; what was derived from them says how.
"""

from __future__ import annotations

from glia.arch.constant import Reading

GUIDE = "Trainium/Inferentia2 architecture guide"
PERFORMANCE = "NKI performance guide"
BANDWIDTH = "DMA bandwidth guide"
OVERVIEW = "DMA overview"
MAMBA = "fused mamba tutorial"
OPTIMIZATION = "kernel optimization tutorial"
PROFILER = "NKI profiler guide"
DEVICE = "device profile"
LIBRARY = "NKI library"
EXPONENTIAL = "profile of the exp kernel"
DETAILS = "instruction details picture"
ISA = "NKI release 2.26.1, nki.isa"
FIELDS = "NKI API common fields"
GENERATION = "DGE deep dive"
NCCOM = "nccom-test guide"
COLLECTIVES = "intra-node collectives"
TRNBLAS = "trnsci/trnblas, profile of its energy kernel"
KERNELS = "two published profiles of float32 kernels, Trn1"
FUSION = "allenkchau/trainium-kernel-fusion, profiles and nki.benchmark, Trn2"
COURSE = "CS 149 assignment 4, solutions on Trn1"
KDA = "Jerry2423/kda-for-trainium, profiles, Trn2"
AUTOCOMP = "ucb-bar/autocomp, trn1.2xlarge, p99 of nki.benchmark"

_WAKE = (Reading(OVERVIEW, 19, 24, "timelines: semaphore written to engine started"),)
_SEMAPHORE = (
    Reading(PERFORMANCE, 9, 9, "fig. 12 and 13, Trn1"),
    Reading(OVERVIEW, 9, 9, "first timeline, Trn2"),
)
_RECIPROCAL = (
    Reading(ISA, 8, 8, "nki.isa.reciprocal: max(64, 8 N)"),
    Reading(FIELDS, 8, 8, "Vector eight times slower than Scalar, later releases too"),
    Reading(TRNBLAS, 8, 17, "Vector 96 % busy in 12.8 us a strip; above 8 if nothing else ran"),
    Reading(KERNELS, 0, 2.7, "Vector busy 0.99 and 1.80 ms, if every division was compiled to it"),
)
_TWO_INPUTS = (Reading(ISA, 2, 2, "nki.isa.tensor_tensor: max(64, 2 N), whatever the core"),)
_HOP = (
    Reading(COLLECTIVES, 1000, 2000, "1 to 2 us for each hop"),
    Reading(NCCOM, 2340, 2340, "32 ranks gather 1 KiB in 6.16 us: two hops and a transfer"),
)

READINGS_V2: dict[str, tuple[Reading, ...]] = {
    "clocks_ghz.vector": (
        Reading(GUIDE, 1.12, 1.12, "compute engines"),
        Reading(PERFORMANCE, 1.09, 1.1, "fig. 10 and 17: 2 x 8192 elements in 14.97 us"),
    ),
    "latency_cycles.tensor": (
        Reading(PERFORMANCE, 418, 485, "fig. 18, 20, 26: 149 to 173 ns beyond the columns"),
    ),
    "latency_cycles.vector": (Reading(PERFORMANCE, 60, 100, "fig. 10 and 17"),),
    "latency_cycles.scalar": (
        Reading(PERFORMANCE, 159, 200, "fig. 16: 159 ns long, 189 ns from one to the next"),
    ),
    "issue_gap_cycles.vector": (
        Reading(MAMBA, 17, 22, "160 operations of 512 elements in 148.99 us with 21 others"),
    ),
    "activation_table_load_ns": (Reading(DETAILS, 368, 368, "ACT_TABLE_LOAD, Trn1"),),
    "reciprocal_cycles": _RECIPROCAL,
    "two_input_cycles": (
        *_TWO_INPUTS,
        Reading(PERFORMANCE, 2, 2.05, "fig. 10 and 17: 8192 elements in 14.97 us"),
    ),
    "semaphore_ns": _SEMAPHORE,
    "semaphore_wake_ns": _WAKE,
    "dma_bytes_per_ns": (
        Reading(BANDWIDTH, 17, 17, "effective rate of an engine"),
        Reading(OVERVIEW, 17, 17, "effective rate of an engine"),
        Reading(PERFORMANCE, 15.4, 18.1, "fig. 14: 4 MiB in 16.96 us; fig. 30: 32 KiB in 1.81 us"),
    ),
    "dma_descriptor_ns": (Reading(PERFORMANCE, 7, 7, "fig. 29: 4 bytes"),),
    "dma_start_ns": (
        Reading(BANDWIDTH, 700, 1005, "1300 ns in all, less what completion takes"),
        Reading(OVERVIEW, 615, 1007, "timelines, Trn2"),
    ),
    "dma_completion_ns": (Reading(OVERVIEW, 295, 395, "timelines, Trn2"),),
    "dma_transpose_rate": (
        Reading(AUTOCOMP, 0.25, 0.9, "float32 attention, seven versions within 10 %"),
    ),
    "collective_hop_ns": _HOP,
    "collective_bytes_per_ns": (
        Reading(NCCOM, 43.7, 56.7, "2 ranks: 32 MiB in 768 us, 1 GiB in 18.93 ms"),
    ),
    "preamble_ns": (Reading(EXPONENTIAL, 13000, 14000, "digitised"),),
    "unmeasured_ns": (
        Reading(COURSE, -1000, 1000, "additions of 256000 elements: 30 us measured, 29 profiled"),
    ),
    "postamble_ns": (
        Reading(EXPONENTIAL, 3700, 5500, "digitised; what the total leaves"),
        Reading(MAMBA, 4300, 4300, "v1: total less the busy time and the preamble"),
    ),
}

READINGS_V3: dict[str, tuple[Reading, ...]] = {
    "tensor_ramp_ns": (
        Reading(FUSION, 3413, 6827, "a window of 4096 cycles and what precedes it, 18 times"),
    ),
    "tensor_ramp_part": (
        Reading(FUSION, 0.75, 0.76, "busy 0.75 of a window: slow in the next; 0.76: not"),
    ),
    "tensor_rest_ns": (Reading(FUSION, 2200, 5550, "what is left of a window, and one more"),),
    "tensor_rest_part": (
        Reading(FUSION, 0.33, 0.38, "busy 0.33 of a window: slow in the next; 0.38: not"),
    ),
    "issue_gap_cycles.scalar": (
        Reading(FUSION, 59, 60, "copies from PSUM: 156.5 ns for 128 elements, 477 for 512"),
    ),
    "operand_read_cycles.vector": (
        Reading(
            FUSION, 57, 63, "multiplications by a column: 268 and 396 ns, 128 and 512 elements"
        ),
    ),
    "operand_read_cycles.scalar": (
        Reading(FUSION, 112, 161, "exp with a bias: 570 ns from PSUM, 612 from SBUF, 512 elements"),
    ),
    "preamble_ns": (Reading(FUSION, 13242, 13991, "first instruction of a kernel"),),
    "postamble_ns": (Reading(FUSION, 1650, 1850, "from the last signal to the end"),),
    "unmeasured_ns": (Reading(FUSION, 4300, 9900, "profiled less measured, eight kernels"),),
    "logical_core_ns": (
        Reading(
            LIBRARY,
            5200,
            31000,
            "two cores beyond their work: 5.2 to 7.6 us of quantised rows, 6 to 14 of small "
            "attention, 13 to 31 of small perceptrons and projections, 15 of them unexplained",
        ),
    ),
    "issue_gap_cycles.tensor": (
        Reading(OPTIMIZATION, 4, 4, "1028 cycles from one to the next for 1024"),
    ),
    "issue_gap_cycles.vector": (
        Reading(PROFILER, 67, 70, "604 ns from one to the next, 512 elements"),
        Reading(LIBRARY, 80, 80, "its cost model of top-k: 144 cycles besides the elements"),
        Reading(FUSION, 61, 67, "598 to 603 ns from one to the next, 512 elements"),
    ),
    "two_input_cycles": (
        *_TWO_INPUTS,
        Reading(
            KDA,
            0.98,
            1.07,
            "Vector busy in 14 updates of AdamW and 9 rotations, 512 to 4096 elements, by the "
            "clock that Scalar's activations show there",
        ),
        Reading(
            FUSION,
            0.9,
            1.6,
            "5 and 13 us that GELU's polynomial takes beyond the table, float32, one tile and four",
        ),
    ),
    "latency_cycles.tensor": (
        Reading(PROFILER, 386, 413, "589 ns long, 428.5 from one to the next"),
        Reading(DEVICE, 396, 396, "transposition of 128 columns, 272 ns"),
    ),
    "latency_cycles.vector": (Reading(PROFILER, 150, 161, "160 to 168 ns beyond the elements"),),
    "latency_cycles.scalar": (
        Reading(OVERVIEW, 348, 359, "290 to 299 ns beyond the elements"),
        Reading(LIBRARY, 348, 348, "16384 elements in 13.94 us"),
    ),
    "activation_table_load_ns": (
        Reading(OVERVIEW, 1284, 1286, "ACT_TABLE_LOAD, timelines"),
        Reading(FUSION, 1283, 1283, "ACT_TABLE_LOAD"),
    ),
    "reciprocal_cycles": _RECIPROCAL,
    "semaphore_ns": _SEMAPHORE,
    "semaphore_wake_ns": _WAKE,
    "dma_bytes_per_ns": (
        Reading(BANDWIDTH, 23, 23, "effective rate of an engine"),
        Reading(OVERVIEW, 22.5, 23.1, "32 KiB in 1416 ns; plateau of the curve"),
        Reading(OPTIMIZATION, 22, 22.2, "packets of three kernels"),
    ),
    "dma_descriptor_ns": (
        Reading(OPTIMIZATION, 2.2, 5, "20.9 B/ns with rows of 512 bytes, 22.2 with 2 KiB"),
    ),
    "dma_issue_ns": (Reading(OVERVIEW, 78, 158, "timelines: 88 and 70 ns"),),
    "dma_hardware_issue_ns": (Reading(GENERATION, 600, 600, "about 600 ns for an instruction"),),
    "dma_software_issue_ns": (
        Reading(FUSION, 576, 598, "from one DMA_DIRECT2D of GpSimd to the next"),
        Reading(OPTIMIZATION, 598, 608, "65,536 loads in 39.87 ms"),
        Reading(GENERATION, 600, 600, "about 600 ns for an instruction"),
    ),
    "dma_start_ns": (
        Reading(OVERVIEW, 615, 1007, "timelines"),
        Reading(BANDWIDTH, 700, 1005, "1300 ns in all, less what completion takes"),
    ),
    "dma_ring_skew_ns": (Reading(OVERVIEW, 13, 25, "timelines: 211 to 370 ns over 16 engines"),),
    "dma_completion_ns": (Reading(OVERVIEW, 295, 395, "timelines"),),
    "collective_hop_ns": _HOP,
    "collective_bytes_per_ns": (Reading(NCCOM, 103.9, 103.9, "512 MiB all-reduced by 16 ranks"),),
}

# No publication times a kernel on Trn3: what is documented for all generations, and what
# contradicts it on others, holds here as well.
READINGS_V4: dict[str, tuple[Reading, ...]] = {"reciprocal_cycles": _RECIPROCAL}

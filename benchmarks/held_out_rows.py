"""What two public repositories of kernels say their kernels take, and the calls that are meant.

Every number is a bound of a test there: what was measured when the test was written, some with a
few per cent on top.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Attention over whole prompts; sizes in elements, `us` what its test says."""

    us: float
    cores: int
    batch: int
    keys: int
    queries: int
    width: int
    dtype: str
    is_causal: bool
    turns_query: bool
    turns_output: bool
    has_sink: bool = False
    window: int = 0
    scale: float = 1.0

    @property
    def name(self) -> str:
        kind = "causal" if self.is_causal else "full"
        more = f", window {self.window}" if self.window else ""
        return (
            f"attention {self.dtype} {self.batch} x {self.queries} x {self.keys} x {self.width}, "
            f"{kind}{more}"
        )


@dataclass(frozen=True)
class Mlp:
    """A gated MLP in bf16 over whole prompts."""

    us: float
    cores: int
    batch: int
    rows: int
    hidden: int
    inner: int
    norm: str = "NO_NORM"
    adds: bool = False  # a second input is added first
    has_gate: bool = True
    function: str = "SiLU"
    up_bias: bool = False
    down_bias: bool = False

    @property
    def name(self) -> str:
        gate = "gated " if self.has_gate else ""
        extra = {"NO_NORM": "", "RMS_NORM": ", RMS norm"}[self.norm] + ", sum" * self.adds
        return f"{gate}MLP {self.batch} x {self.rows} x {self.hidden} x {self.inner}{extra}"


@dataclass(frozen=True)
class Quantized:
    """Rows of bf16 to 8-bit floats with a scale for each row."""

    us: float
    cores: int
    rows: int
    hidden: int
    norms: bool

    @property
    def name(self) -> str:
        return f"quantized{' RMS norm' * self.norms} {self.rows} x {self.hidden}"


@dataclass(frozen=True)
class Qkv:
    """Query, key and value of few tokens in bf16, two cores sharing the hidden dimension."""

    us: float
    cores: int
    batch: int
    tokens: int
    hidden: int
    fused: int
    width: int
    norm: str
    adds: bool = False

    @property
    def name(self) -> str:
        extra = {"NO_NORM": "", "RMS_NORM": ", RMS norm"}[self.norm] + ", sums" * self.adds
        return f"QKV {self.batch} x {self.tokens} x {self.hidden} x {self.fused}{extra}"


LIBRARY: tuple[Attention | Mlp | Quantized | Qkv, ...] = (
    Attention(209, 1, 3, 2048, 2048, 128, "f16", True, True, False),
    Attention(155, 1, 3, 2048, 1024, 128, "bf16", False, False, False, scale=0.125),
    Attention(520, 1, 1, 16384, 2048, 128, "f32", False, True, False),
    Attention(981, 1, 1, 16384, 4096, 128, "bf16", False, True, False),
    Attention(580, 1, 1, 9216, 4096, 64, "f32", False, True, False, scale=0.5),
    Attention(567, 1, 1, 4096, 9216, 64, "f32", False, True, False, scale=0.5),
    Attention(1250, 1, 1, 9216, 9216, 64, "bf16", False, True, False, scale=0.134),
    Attention(694, 1, 1, 9216, 9216, 64, "bf16", True, True, False),
    Attention(520, 2, 1, 8192, 8192, 64, "f32", False, True, False, scale=0.125),
    Attention(296, 2, 1, 8192, 4096, 64, "f32", False, True, False, scale=0.125),
    Attention(352, 2, 1, 8192, 8192, 128, "f32", True, True, False),
    Attention(115, 2, 3, 2048, 1024, 128, "bf16", False, False, False, scale=0.125),
    Attention(71, 2, 2, 1024, 1024, 128, "bf16", True, False, True),
    Attention(55, 2, 2, 512, 512, 128, "bf16", True, False, True),
    Attention(59, 2, 1, 1024, 1024, 128, "bf16", True, False, True),
    Attention(43, 2, 1, 256, 256, 128, "bf16", True, False, True),
    Attention(52, 2, 1, 512, 512, 128, "bf16", True, False, True),
    Attention(69, 2, 2, 1024, 1024, 64, "bf16", True, False, True),
    Attention(56, 2, 2, 577, 577, 88, "bf16", False, True, False),
    Attention(82, 2, 3, 729, 729, 128, "bf16", True, True, True),
    Attention(354, 2, 1, 8192, 8192, 64, "bf16", True, False, False, has_sink=True),
    Attention(135, 2, 1, 8192, 8192, 64, "bf16", True, False, False, has_sink=True, window=128),
    Attention(103, 2, 2, 2048, 2048, 64, "bf16", True, False, True, has_sink=True),
    Attention(78, 2, 2, 2048, 2048, 64, "bf16", True, False, True, has_sink=True, window=128),
    Attention(211, 2, 2, 4096, 4096, 64, "bf16", True, False, True, has_sink=True),
    Mlp(92.239439, 2, 1, 1024, 1024, 448, "RMS_NORM", adds=True),
    Mlp(88.019279, 2, 1, 1024, 1024, 448, adds=True),
    Mlp(90.017692, 2, 1, 1024, 1024, 448),
    Mlp(140.496530, 1, 1, 768, 1024, 896, "RMS_NORM", adds=True),
    Mlp(107.670831, 2, 1, 768, 1024, 896, "RMS_NORM", adds=True),
    Mlp(882.105371, 1, 1, 1024, 16384, 416),
    Mlp(1176.268151, 1, 1, 1024, 16384, 416, "RMS_NORM"),
    Mlp(756.458068, 2, 1, 1024, 16384, 832),
    Mlp(895.261601, 2, 1, 1024, 16384, 832, "RMS_NORM"),
    Mlp(1437.844003, 2, 1, 2048, 8448, 1408),
    Mlp(941.321030, 2, 1, 4096, 8192, 448),
    Mlp(1176.746495, 2, 1, 4096, 8192, 448, "RMS_NORM"),
    Mlp(66.365979, 1, 1, 578, 1408, 352, has_gate=False),
    Mlp(65.561487, 2, 1, 578, 1408, 352, has_gate=False),
    Mlp(71.063222, 1, 1, 578, 1408, 352, "NO_NORM", False, False, "SiLU", True, True),
    Mlp(69.290891, 2, 1, 578, 1408, 352, "NO_NORM", False, False, "SiLU", True, True),
    Mlp(81.643622, 1, 1, 578, 1408, 352, "NO_NORM", False, True, "SiLU", True, True),
    Mlp(81.231123, 2, 1, 578, 1408, 352, "NO_NORM", False, True, "SiLU", True, True),
    Mlp(84.836617, 1, 1, 578, 1408, 352, function="GELU"),
    Mlp(81.332790, 2, 1, 578, 1408, 352, function="GELU"),
    Mlp(93.398179, 1, 1, 578, 1408, 352, "RMS_NORM", True, False, "SiLU", True, True),
    Mlp(83.390954, 2, 1, 578, 1408, 352, "RMS_NORM", True, False, "SiLU", True, True),
    Mlp(97.224098, 1, 1, 578, 1408, 352, "RMS_NORM", True, True, "GELU", True, True),
    Mlp(88.505279, 2, 1, 578, 1408, 352, "RMS_NORM", True, True, "GELU", True, True),
    Mlp(564.325284, 1, 14, 578, 1408, 352, has_gate=False, function="GELU", up_bias=True),
    Mlp(351.045201, 2, 14, 578, 1408, 352, has_gate=False, function="GELU", up_bias=True),
    Quantized(51.564336, 2, 2, 16384, norms=False),
    Quantized(89.102777, 2, 2, 16384, norms=True),
    Quantized(683.281265, 2, 2048, 16384, norms=True),
    Quantized(106.546750, 2, 160, 16384, norms=True),
    Quantized(68.355309, 2, 160, 16384, norms=False),
    Qkv(75.977297, 2, 16, 5, 8192, 104, 26, "RMS_NORM"),
    Qkv(74.809216, 2, 4, 1, 16384, 512, 128, "RMS_NORM"),
    Qkv(74.415967, 2, 3, 1, 16384, 384, 128, "RMS_NORM", adds=True),
    Qkv(105.265002, 2, 1, 6, 16384, 896, 128, "RMS_NORM", adds=True),
    Qkv(62.466402, 2, 3, 1, 8192, 512, 128, "NO_NORM", adds=True),
    Qkv(61.577737, 2, 4, 5, 8192, 384, 128, "RMS_NORM"),
    Qkv(265.156919, 2, 8, 5, 8192, 5120, 1024, "RMS_NORM"),
    Qkv(137.652784, 2, 1, 1, 32768, 896, 128, "NO_NORM"),
    Qkv(55.897912, 2, 4, 1, 3072, 640, 64, "RMS_NORM"),
    Qkv(105.167419, 2, 1, 1, 8448, 1920, 128, "NO_NORM"),
)


@dataclass(frozen=True)
class Sample:
    """A kernel of the samples: its module and name, what it is called with, how long it takes."""

    us: float
    module: str
    function: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    constants: tuple[object, ...] = ()
    grid: int = 0

    @property
    def name(self) -> str:
        shapes = ", ".join(" x ".join(map(str, shape)) for shape in self.shapes[:2])
        return f"{self.function} {self.dtype} {shapes}"


def _attention(us: float, module: str, function: str, rows: int, width: int, dtype: str) -> Sample:
    turned, plain = (1, width, rows), (1, rows, width)
    keys = turned if module == "allocated_attention" else plain
    return Sample(us, module, function, (turned, keys, plain), dtype, grid=1)


_ALLOCATED = "allocated_attention", "allocated_fused_self_attn_for_SD_small_head_size"
_FUSED = "attention", "fused_self_attn_for_SD_small_head_size"
_NORM = "allocated_fused_linear", "allocated_fused_rms_norm_qkv"
_POOL = "vision", "adaptive_avg_pool2d_kernel"

SAMPLES: tuple[Sample, ...] = (
    Sample(25, *_NORM, ((1, 128, 512), (512, 512)), "f16"),
    Sample(40, *_NORM, ((1, 512, 1024), (1024, 384)), "bf16"),
    Sample(28, *_NORM, ((1, 128, 1024), (1024, 512)), "bf16"),
    Sample(301, *_NORM, ((1, 1024, 8192), (8192, 512)), "bf16"),
    _attention(410, *_ALLOCATED, 4096, 128, "f32"),
    _attention(380, *_ALLOCATED, 4096, 128, "bf16"),
    _attention(586, *_ALLOCATED, 5120, 128, "bf16"),
    _attention(675, *_FUSED, 4096, 128, "f32"),
    _attention(536, *_FUSED, 4096, 128, "bf16"),
    _attention(600, *_FUSED, 4096, 64, "f16"),
    Sample(65, *_POOL, ((1, 64, 56, 56),), "f32", (7,)),
    Sample(109, *_POOL, ((2, 128, 28, 28),), "f32", (7,)),
    Sample(88, *_POOL, ((1, 256, 14, 14),), "f16", (7,)),
    Sample(152, *_POOL, ((4, 64, 56, 56),), "f32", ((7, 7),)),
    Sample(327, *_POOL, ((2, 128, 28, 28),), "f32", ((14, 14),)),
    Sample(14, *_POOL, ((1, 512, 7, 7),), "f32", (1,)),
    Sample(103, *_POOL, ((8, 64, 32, 32),), "f16", ((4, 4),)),
    Sample(564, *_POOL, ((2, 2048, 32, 32),), "f32", ((3, 3),)),
    Sample(255, *_POOL, ((2, 64, 256, 256),), "f32", (1,)),
    Sample(
        4500, "vision", "select_and_scatter_kernel", ((8, 64, 112, 112), (8, 64, 56, 56)), "f32"
    ),
)


@dataclass(frozen=True)
class Fusion:
    """A kernel of trainium-kernel-fusion: attention of `sizes` rows, or a product and gelu."""

    us: float  # p50 of nki.benchmark; where there are two kernels, of both
    kernels: tuple[str, ...]
    sizes: tuple[int, ...]  # rows; or rows, contracted and columns
    dtype: str

    @property
    def name(self) -> str:
        sizes = " x ".join(map(str, self.sizes))
        return f"{', '.join(self.kernels)} {self.dtype} {sizes}"


def _fusions() -> tuple[Fusion, ...]:
    attention = {  # rows: without and with fusion
        "f32": {512: (52, 31), 1024: (107, 69), 2048: (274, 215), 4096: (1137, 839)},
        "bf16": {512: (48, 28), 1024: (96, 60), 2048: (260, 188), 4096: (1035, 684)},
    }
    perceptrons = {  # sizes: without fusion; with gelu by table, and by its series
        "f32": {
            (128, 128, 512): (37, 21, 26),
            (256, 512, 1024): (59, 40, 53),
            (512, 1024, 2048): (182, 150, 159),
            (1024, 2048, 4096): (1173, 1074, 1297),
            (2048, 4096, 4096): (4085, 4187, 4620),
        },
        "bf16": {
            (128, 128, 512): (34, 19, 23),
            (256, 512, 1024): (48, 28, 40),
            (512, 1024, 2048): (82, 56, 96),
            (1024, 2048, 4096): (340, 288, 403),
            (2048, 4096, 4096): (1687, 1554, 1919),
        },
    }
    kinds = ("gemm_kernel", "gelu_kernel"), ("fused_mlp_pwl",), ("fused_mlp_taylor",)
    return (
        *(
            Fusion(us, (kernel,), (rows,), dtype)
            for dtype, table in attention.items()
            for rows, times in table.items()
            for us, kernel in zip(times, ("baseline_attention", "fused_attention"), strict=True)
        ),
        *(
            Fusion(us, kernels, sizes, dtype)
            for dtype, by_sizes in perceptrons.items()
            for sizes, all_us in by_sizes.items()
            for us, kernels in zip(all_us, kinds, strict=True)
        ),
    )


FUSIONS = _fusions()

LEFT_OUT = (
    ("MLPs of the library whose bound other shapes or norms have too, and bounds of whole millions",
     "such a bound is the measured time of at most one of them"),
    ("MLPs of the library by another approximation of gelu at the same shape", "within 2 %"),
    ("rows of the library with longer sequences, more heads, caches or context parallelism",
     "the same kernels on more of the same; these are the shorter ones of each table"),
    ("rows of the library given as None, and with bounds said to be timeouts",
     "nothing was measured"),
    ("flash attention forwards of the samples", "its bounds are 10^6 times what is possible"),
    ("resize_nearest", "one program for each image, run one by one or together"),
)  # fmt: skip

"""Operators of MXNet with attributes and operands, and what MXNet 1.9.1 computes of them.

The results are recorded: `results.json` is written with `--bless` where MXNet is installed.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glia.plugins.mxnet.operators.pointwise_operators import _FUNCTIONS
from glia.plugins.mxnet.symbol_file import VARIABLE, NodeResult, Symbol, SymbolNode

RECORDED = Path(__file__).with_name("results.json")

Operand = tuple[int, ...] | np.ndarray


@dataclass(frozen=True)
class Sample:
    """One call of an operator; operands that are shapes are filled from `low` to `high`."""

    operator: str
    attributes: dict[str, str]
    operands: tuple[Operand, ...]
    low: float = -2.0
    high: float = 2.0
    results: int = 1

    @property
    def name(self) -> str:
        """What identifies the sample."""
        shapes = "x".join(str(list(np.shape(each))) for each in self.arrays())
        given = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"{self.operator}({given}){shapes}"

    def arrays(self) -> list[np.ndarray]:
        """The operands; equal samples have equal ones."""
        found = []
        for place, each in enumerate(self.operands):
            key = f"{self.operator} {self.attributes} {place}"
            random = np.random.default_rng(zlib.crc32(key.encode()))
            is_given = isinstance(each, np.ndarray)
            array = each if is_given else random.uniform(self.low, self.high, each)
            found.append(array if is_given else np.float32(array))
        return found

    def symbol(self) -> Symbol:
        """The call as a model, whose inputs are a, b, c ..."""
        count = len(self.operands)
        names = "abcdefgh"[:count]
        variables = tuple(SymbolNode(VARIABLE, name) for name in names)
        inputs = tuple(NodeResult(place) for place in range(count))
        node = SymbolNode(self.operator, "node", self.attributes, inputs)
        heads = tuple(NodeResult(count, output) for output in range(self.results))
        return Symbol((*variables, node), heads)

    def named(self) -> dict[str, np.ndarray]:
        """The operands by the names of the symbol's inputs."""
        return dict(zip("abcdefgh", self.arrays(), strict=False))


def recorded() -> dict[str, list[Any]]:
    """The results by sample: arrays as nested lists."""
    found: dict[str, list[Any]] = json.loads(RECORDED.read_text())
    return found


def record(results: dict[str, list[np.ndarray]]) -> None:
    """Write the results that MXNet computes."""
    rounded = {
        name: [np.asarray(each, np.float64).round(6).tolist() for each in arrays]
        for name, arrays in sorted(results.items())
    }
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in rounded.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _of(operator: str, *operands: Operand, **attributes: Any) -> Sample:
    special = {key: attributes.pop(key) for key in ("low", "high", "results") if key in attributes}
    texts = {key: str(value) for key, value in attributes.items()}
    return Sample(operator, texts, operands, **special)


def ints(*values: Any) -> np.ndarray:
    """Whole numbers as the floats that MXNet takes for indices."""
    return np.float32(values)


_DOMAINS = {
    "arcsin": (-1, 1), "arccos": (-1, 1), "arctanh": (-0.9, 0.9), "arccosh": (1, 3),
    "log": (0.1, 3),
    "log1p": (-0.5, 3), "sqrt": (0, 3), "rsqrt": (0.1, 3),
}  # fmt: skip

_UNARY = (
    *_FUNCTIONS, "floor", "ceil", "rint", "round", "abs", "sign", "negative", "square", "trunc",
    "fix", "degrees", "radians", "logical_not", "relu", "softsign", "hard_sigmoid", "zeros_like",
    "ones_like", "identity", "_copy", "BlockGrad", "make_loss", "Dropout", "MakeLoss",
    "_contrib_div_sqrt_dim", "smooth_l1", "Flatten", "squeeze",
)  # fmt: skip
_POSITIVE = ("reciprocal", "rcbrt", "log2", "log10")

_BROADCAST = (
    "add", "sub", "mul", "div", "maximum", "minimum", "equal", "not_equal", "greater",
    "greater_equal", "lesser", "lesser_equal", "logical_and", "logical_or", "logical_xor", "hypot",
    "mod",
)  # fmt: skip
_SAME_SHAPE = (
    "elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div", "_plus", "_minus", "_mul",
    "_div", "_maximum", "_minimum", "_equal", "_not_equal", "_greater", "_greater_equal", "_lesser",
    "_lesser_equal", "_hypot", "_mod", "_grad_add",
)  # fmt: skip
_SCALARS = (
    "_plus_scalar", "_minus_scalar", "_rminus_scalar", "_mul_scalar", "_div_scalar",
    "_maximum_scalar", "_minimum_scalar", "_equal_scalar", "_not_equal_scalar", "_greater_scalar",
    "_greater_equal_scalar", "_lesser_scalar", "_lesser_equal_scalar", "_mod_scalar",
)  # fmt: skip

_POINTWISE = (
    *(_of(name, (2, 3), low=_DOMAINS.get(name, (-2, 2))[0], high=_DOMAINS.get(name, (-2, 2))[1])
      for name in _UNARY),
    *(_of(name, (2, 3), low=0.2, high=3) for name in _POSITIVE),
    *(_of(f"broadcast_{name}", (2, 1, 3), (1, 4, 3)) for name in _BROADCAST),
    *(_of(name, (2, 3), (2, 3)) for name in _SAME_SHAPE),
    *(_of(name, (2, 3), scalar=0.75) for name in _SCALARS),
    _of("broadcast_power", (2, 3), (1, 3), low=0.1), _of("_power", (2, 3), (2, 3), low=0.1),
    _of("_rdiv_scalar", (2, 3), scalar=2, low=0.5), _of("_rpower_scalar", (2, 3), scalar=2),
    *(_of("_power_scalar", (2, 3), scalar=each, low=0.1) for each in (2, 0.5, 1.7)),
    _of("add_n", (2, 3), (2, 3), (2, 3), num_args=3), _of("clip", (2, 3), a_min=-0.5, a_max=0.25),
    _of("where", ints((1, 0, 0), (0, 1, 1)), (2, 3), (2, 3)),
    _of("where", ints(1, 0), (2, 3), (2, 3)),
    *(_of("Cast", (2, 3), dtype=each) for each in ("int32", "float16", "float64")),
    *(_of("Activation", (2, 3), act_type=each)
      for each in ("relu", "sigmoid", "tanh", "softrelu", "softsign")),
    *(_of("LeakyReLU", (2, 3), act_type=each, slope=0.1)
      for each in ("leaky", "elu", "selu", "gelu")),
    _of("LeakyReLU", (2, 3, 2), (3,), act_type="prelu"),
    _of("LinearRegressionOutput", (2, 3), (2, 3)), _of("LogisticRegressionOutput", (2, 3), (2, 3)),
)  # fmt: skip

_LAYERS = (
    _of("FullyConnected", (2, 3, 2), (4, 6), (4,), num_hidden=4),
    _of("FullyConnected", (2, 3, 2), (4, 2), num_hidden=4, flatten=False, no_bias=True),
    _of("Convolution", (1, 4, 5, 6), (6, 4, 3, 3), (6,), kernel="(3, 3)", num_filter=6,
        pad="(1, 1)", stride="(2, 1)"),
    _of("Convolution", (1, 4, 7, 7), (4, 2, 3, 3), kernel="(3, 3)", num_filter=4, num_group=2,
        no_bias=True, dilate="(2, 2)"),
    _of("Convolution", (2, 3, 8), (2, 3, 3), (2,), kernel="(3,)", num_filter=2),
    _of("Convolution", (1, 2, 3, 4, 4), (2, 2, 2, 2, 2), (2,), kernel="(2, 2, 2)", num_filter=2),
    _of("Deconvolution", (1, 4, 3, 3), (4, 3, 3, 3), kernel="(3, 3)", num_filter=6, num_group=2,
        stride="(2, 2)", pad="(1, 1)", adj="(1, 0)", no_bias=True),
    _of("Deconvolution", (1, 2, 4), (2, 3, 3), (3,), kernel="(3,)", num_filter=3, no_bias=False,
        dilate="(2,)"),
    *(_of("Pooling", (1, 2, 5, 6), kernel="(3, 2)", stride="(2, 2)", pad="(1, 0)", pool_type=kind,
          pooling_convention=convention)
      for kind in ("max", "avg", "sum") for convention in ("valid", "full")),
    _of("Pooling", (1, 2, 5, 5), kernel="(3, 3)", pad="(1, 1)", pool_type="avg",
        count_include_pad=False),
    *(_of("Pooling", (1, 2, 4, 5), global_pool=True, pool_type=kind, kernel="(1, 1)")
      for kind in ("max", "avg")),
    _of("Pooling", (1, 2, 7), kernel="(3,)", stride="(2,)", pool_type="max"),
    _of("UpSampling", (1, 2, 2, 3), scale=2, sample_type="nearest", num_args=1),
    _of("Embedding", ints((0, 3), (9, 1)), (4, 3), input_dim=4, output_dim=3),
    _of("BatchNorm", (2, 3, 2), (3,), (3,), (3,), (3,), low=0.1),
    _of("BatchNorm", (2, 3, 2), (3,), (3,), (3,), (3,), low=0.1, fix_gamma=False, eps=1e-5),
    _of("LayerNorm", (2, 3, 4), (4,), (4,)), _of("LayerNorm", (2, 3, 4), (3,), (3,), axis=1),
    _of("InstanceNorm", (2, 3, 4), (3,), (3,), eps=1e-3),
    _of("GroupNorm", (2, 4, 3), (2,), (2,), num_groups=2),
    *(_of("L2Normalization", (2, 3, 4), mode=each) for each in ("instance", "channel", "spatial")),
    _of("LRN", (1, 6, 2, 2), nsize=3, alpha=0.1, beta=0.75, knorm=2),
    _of("softmax", (2, 3)), _of("softmax", (2, 3), axis=0, temperature=2),
    _of("softmax", (2, 4), np.int32([2, 4]), use_length=True, axis=-1), _of("softmin", (2, 3)),
    _of("log_softmax", (2, 3)), _of("SoftmaxActivation", (2, 3)),
    _of("SoftmaxActivation", (2, 3, 2), mode="channel"), _of("SoftmaxOutput", (2, 3), (2,)),
    _of("SoftmaxOutput", (2, 3, 2), (2, 2), multi_output=True),
)  # fmt: skip

_REDUCTIONS = (
    *(_of(name, (2, 3, 4), **each) for name in ("sum", "mean", "prod", "max", "min", "norm")
      for each in ({"axis": "1"}, {"axis": "(0, 2)", "keepdims": True}, {})),
    _of("sum", (2, 3, 4), axis="(1,)", exclude=True), _of("norm", (2, 3), ord=1, axis=1),
    *(_of(name, (2, 3), axis=1) for name in ("argmax", "argmin")), _of("argmax", (2, 3)),
    _of("argmax", (2, 3), axis=0, keepdims=True), _of("sort", (2, 4)), _of("sort", (2, 4), axis=0),
    _of("argsort", (2, 4), is_ascend=False), _of("topk", (2, 5), k=2),
    _of("topk", (2, 5), k=2, ret_typ="both", results=2), _of("topk", (2, 5), k=3, ret_typ="value"),
    _of("dot", (2, 3), (3, 4)), _of("dot", (3, 2), (4, 3), transpose_a=True, transpose_b=True),
    _of("dot", (2, 3, 4), (4, 2)), _of("batch_dot", (2, 3, 4), (2, 4, 5)),
    _of("batch_dot", (2, 4, 3), (2, 5, 4), transpose_a=True, transpose_b=True),
    _of("_linalg_gemm2", (2, 3, 4), (2, 4, 5), alpha=0.5),
    _of("_contrib_interleaved_matmul_selfatt_qk", (3, 2, 24), heads=2),
    _of("_contrib_interleaved_matmul_selfatt_valatt", (3, 2, 24), (4, 3, 3), heads=2),
)  # fmt: skip

_SHAPES = (
    *(_of("Reshape", (2, 3, 4), shape=each) for each in
      ("(6, 4)", "(0, -1)", "(-2,)", "(-3, 0)", "(0, -4, -1, 1, 4)", "(-4, 1, 2, -2)",
       "(0, 0, -1)")),
    _of("Reshape", (10, 5, 4), shape="(-1, 0)", reverse=True),
    _of("reshape_like", (2, 6), (3, 4)), _of("transpose", (2, 3, 4)),
    _of("transpose", (2, 3, 4), axes="(1, 2, 0)"), _of("SwapAxis", (2, 3, 4), dim1=0, dim2=2),
    _of("expand_dims", (2, 3), axis=1), _of("expand_dims", (2, 3), axis=-1),
    _of("squeeze", (2, 1, 3), axis=1), _of("squeeze", (1, 2, 1)),
    _of("broadcast_to", (1, 3), shape="(2, 0)"), _of("broadcast_like", (1, 3), (2, 3)),
    _of("broadcast_axis", (1, 3, 1), axis="(0, 2)", size="(2, 4)"),
    _of("tile", (2, 3), reps="(2, 1, 2)"),
    _of("repeat", (2, 3), repeats=2, axis=1), _of("repeat", (2, 3), repeats=2),
    _of("reverse", (2, 3), axis="(1,)"), _of("slice", (4, 5), begin="(1, None)", end="(3, -1)"),
    _of("slice", (4, 5), begin="(0, 1)", end="(None, 5)", step="(2, 3)"),
    _of("slice_axis", (4, 5), axis=1, begin=1, end="None"), _of("slice_like", (4, 5), (2, 3)),
    _of("slice_like", (4, 5), (2, 3), axes="(1,)"),
    _of("SliceChannel", (2, 4), num_outputs=2, results=2),
    _of("SliceChannel", (2, 3), num_outputs=3, axis=1, squeeze_axis=True, results=3),
    _of("_split_v2", (2, 5), indices="(0, 1, 3)", axis=1, results=3),
    _of("_split_v2", (4, 2), sections=2, axis=0, indices="()", results=2),
    _of("Concat", (2, 3), (2, 2), dim=1, num_args=2),
    _of("stack", (2, 3), (2, 3), axis=1, num_args=2),
    *(_of("Pad", (1, 2, 3, 4), mode=each, pad_width="(0, 0, 0, 0, 1, 2, 2, 1)", constant_value=3)
      for each in ("constant", "edge", "reflect")),
    _of("depth_to_space", (1, 8, 2, 3), block_size=2),
    _of("space_to_depth", (1, 2, 4, 6), block_size=2),
    _of("take", (4, 3), ints((0, 3), (7, -5))), _of("take", (2, 4), ints(1, 2), axis=1),
    _of("take", (4, 3), ints(-1, 5), mode="wrap"), _of("pick", (2, 3), ints(1, 5), axis=1),
    _of("pick", (2, 3), ints(1, 0, 1), axis=0, keepdims=True),
    _of("one_hot", ints(0, 2, 5), depth=4),
    _of("gather_nd", (3, 4, 2), ints((0, 2), (1, 3))),
    _of("SequenceMask", (3, 2, 2), ints(1, 3), use_sequence_length=True, value=-1),
    _of("SequenceMask", (2, 3), ints(1, 3), use_sequence_length=True, axis=1),
    _of("_zeros", shape="(2, 3)", dtype="float32"), _of("_ones", shape="(2,)", dtype="int32"),
    _of("_full", shape="(2,)", value=1.5, dtype="float32"),
    _of("_arange", start=1, stop=4, step=0.5, repeat=2, dtype="float32"),
    _of("_contrib_arange_like", (2, 3)),
    _of("_contrib_arange_like", (2, 3), axis=1, start=2, step=2),
)  # fmt: skip

SAMPLES = (*_POINTWISE, *_LAYERS, *_REDUCTIONS, *_SHAPES)

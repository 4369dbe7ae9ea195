"""The instruction set: importing it completes the registry `kit.INSTRUCTIONS`."""

from glia.isa import dma, gpsimd, scalar, sync, tensor, vector, vector_statistics
from glia.isa.dma import DmaCopy, DmaGather, DmaScatter
from glia.isa.gpsimd import AffineSelect, Iota, TensorPartitionReduce
from glia.isa.kit import INSTRUCTIONS, Instr, Operand, Rule
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait
from glia.isa.scalar import Activation
from glia.isa.sync import Barrier, RegisterAlu, RegisterLoad, RegisterMove
from glia.isa.tensor import NcMatmul, NcTranspose
from glia.isa.vector import (
    Memset,
    Reciprocal,
    ScalarTensorTensor,
    StreamShuffle,
    TensorCopy,
    TensorCopyPredicated,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from glia.isa.vector_statistics import (
    BnAggr,
    BnStats,
    FindIndex8,
    MatchReplace8,
    Max8,
    TensorTensorScan,
)

__all__ = [
    "INSTRUCTIONS",
    "Activation",
    "AffineSelect",
    "Barrier",
    "BnAggr",
    "BnStats",
    "DmaCopy",
    "DmaGather",
    "DmaScatter",
    "FindIndex8",
    "Instr",
    "Iota",
    "MatchReplace8",
    "Max8",
    "Memory",
    "Memset",
    "NcMatmul",
    "NcTranspose",
    "Operand",
    "Pattern",
    "Reciprocal",
    "RegisterAlu",
    "RegisterLoad",
    "RegisterMove",
    "Rule",
    "ScalarTensorTensor",
    "Signal",
    "StreamShuffle",
    "TensorCopy",
    "TensorCopyPredicated",
    "TensorPartitionReduce",
    "TensorReduce",
    "TensorScalar",
    "TensorTensor",
    "TensorTensorScan",
    "Tile",
    "Wait",
    "dma",
    "gpsimd",
    "scalar",
    "sync",
    "tensor",
    "vector",
    "vector_statistics",
]

"""A model that MXNet has saved, as HLO; MXNet itself is not needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from glia.base.dtype import F32
from glia.base.files import map_file
from glia.frontend.errors import UnreadableFile
from glia.graph.ir import TensorType
from glia.plugins.mxnet.lowering import symbol_to_hlo
from glia.plugins.mxnet.parameter_file import parse_parameters, without_prefixes
from glia.plugins.mxnet.symbol_file import MOST_BYTES, parse_symbol

LARGEST_FILE_BYTES = 1 << 36

FilePath = str | os.PathLike[str]


def model_to_hlo(
    symbol: FilePath,
    parameters: FilePath,
    inputs: Mapping[str, Sequence[int] | TensorType],
) -> bytes:
    """The HLO module of a saved model, which `glia.compile` takes.

    `symbol` is a `-symbol.json`, `parameters` a `.params`; `inputs` are shapes of float32, or
    types, by name. Raises UnreadableFile, BadSymbolFile, BadParameterFile, BadSymbolInputs,
    BadAttribute and UnsupportedOperator.
    """
    kinds = {
        name: each if isinstance(each, TensorType) else TensorType(F32, tuple(each))
        for name, each in inputs.items()
    }
    parsed = parse_symbol(bytes(_content(symbol, MOST_BYTES)))
    arrays = without_prefixes(parse_parameters(_content(parameters, LARGEST_FILE_BYTES)))
    name = Path(symbol).name.removesuffix(".json").removesuffix("-symbol")
    return symbol_to_hlo(parsed, kinds, arrays, name)


def _content(path: FilePath, most_bytes: int) -> memoryview:
    try:
        return map_file(Path(path), most_bytes)
    except OSError as error:
        raise UnreadableFile(path=path, reason=(error.strerror or str(error)).lower()) from error

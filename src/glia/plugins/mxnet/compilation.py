"""Symbols and blocks of MXNet, compiled: the arrays and the blocks are MXNet's own."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import mxnet
import numpy as np

import glia
from glia.base.dtype import from_numpy
from glia.base.output_files import writing
from glia.graph.ir import TensorType
from glia.plugins.mxnet.errors import BadSymbolInputs
from glia.plugins.mxnet.symbol_file import NodeResult, Symbol, parse_symbol
from glia.plugins.mxnet.symbol_parts import CompiledSymbol, compile_in_parts

Inputs = Mapping[str, Any]


def compile_symbol(
    symbol: Any,
    arguments: Mapping[str, Any],
    states: Mapping[str, Any],
    inputs: Inputs,
    *,
    excluded: Collection[str] = (),
    directory: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A symbol whose parts that the device has are compiled, and its parameters and states.

    `inputs` are example arrays by name, or their shapes. With `directory`, the HLO module and the
    NEFF of each part are left there. What the device lacks, and nodes whose names are `excluded`,
    stay with MXNet.
    """
    parsed = parse_symbol(symbol.tojson())
    kinds = {name: _type_of(name, each) for name, each in inputs.items()}
    parameters = {name: each.asnumpy() for name, each in {**arguments, **states}.items()}
    parameters = {name: each for name, each in parameters.items() if name not in kinds}
    types = _types(symbol, parsed, kinds, parameters)
    compiler = _Compiler(options or {}, directory)
    found = compile_in_parts(parsed, parameters, types, compiler, excluded)
    return (
        mxnet.sym.load_json(found.symbol.text()),
        _arguments(found, arguments, kinds),
        {name: each for name, each in states.items() if name in found.symbol.variables},
    )


def _arguments(
    found: CompiledSymbol, arguments: Mapping[str, Any], inputs: Mapping[str, TensorType]
) -> dict[str, Any]:
    """The parameters that a compiled symbol still has, and its NEFFs."""
    left = {n: a for n, a in arguments.items() if n in found.symbol.variables and n not in inputs}
    neffs = {name: np.frombuffer(neff, np.uint8) for name, neff in found.neffs.items()}
    return {**left, **{name: mxnet.nd.array(a, dtype=a.dtype) for name, a in neffs.items()}}


class _Compiler:
    """Compiles the parts of one symbol."""

    def __init__(self, options: Mapping[str, Any], directory: str | Path | None) -> None:
        self.options = options
        self.directory = None if directory is None else Path(directory)

    def __call__(self, hlo: bytes, name: str) -> bytes:
        """The NEFF of a part's module."""
        neff = glia.compile(hlo, **self.options)
        if self.directory is not None:
            with writing(self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
                (self.directory / f"{name}.hlo.pb").write_bytes(hlo)
            neff.save(self.directory / f"{name}.neff")
        return neff.to_bytes()


def _type_of(name: str, given: Any) -> TensorType:
    """The type of an example array, or of a shape of floats."""
    if isinstance(given, tuple | list):
        return TensorType(from_numpy(np.float32), tuple(given))
    if not hasattr(given, "dtype") or not hasattr(given, "shape"):
        raise BadSymbolInputs(reason=f"input {name!r:.60} is a {type(given).__name__}, no array")
    return TensorType(from_numpy(given.dtype), tuple(given.shape))


def _types(
    symbol: Any, parsed: Symbol, kinds: Mapping[str, TensorType], parameters: Mapping[str, Any]
) -> dict[NodeResult, TensorType]:
    """The types of all nodes' results, as MXNet infers them."""
    known = {name: TensorType(from_numpy(a.dtype), a.shape) for name, a in parameters.items()}
    known |= kinds
    internals = symbol.get_internals()
    listed = set(internals.list_inputs())
    if unknown := sorted(kinds.keys() - listed):
        raise BadSymbolInputs(reason=f"there is no input {unknown[0]!r:.80}")
    given = {name: kind for name, kind in known.items() if name in listed}
    _, shapes, _ = internals.infer_shape_partial(**{n: k.shape for n, k in given.items()})
    _, dtypes, _ = internals.infer_type_partial(**{n: k.dtype.numpy.type for n, k in given.items()})
    entries = _entries(internals, parsed)
    missing = np.dtype(np.float32)
    return {
        entry: TensorType(from_numpy(dtype or missing), tuple(shape))
        for entry, shape, dtype in zip(entries, shapes, dtypes, strict=True)
        if shape
    }


def _entries(internals: Any, parsed: Symbol) -> list[NodeResult]:
    """The entries of all nodes' results, in the order in which MXNet lists them."""
    counts = itertools.groupby(mxnet.sym.Group(list(internals)), key=lambda each: each.name)
    found: list[NodeResult] = []
    for place, (_, results) in enumerate(counts):
        found += [NodeResult(place, output) for output, _ in enumerate(results)]
    assert len(parsed.nodes) == 1 + max((entry.node for entry in found), default=-1)
    return found


def compile_block(block: Any, inputs: Any, **arguments: Any) -> Any:
    """A SymbolBlock of a HybridBlock; `inputs` are example arrays by name, in order, or one."""
    named = _named(inputs)
    symbols = [mxnet.sym.var(name) for name in named]
    result = block(*symbols)
    symbol = mxnet.sym.Group(list(result)) if isinstance(result, list | tuple) else result
    held = {name: each.data() for name, each in block.collect_params().items()}
    states = {name: held[name] for name in symbol.list_auxiliary_states()}
    values = {name: each for name, each in held.items() if name not in states}
    compiled, values, states = compile_symbol(symbol, values, states, named, **arguments)
    kinds = {name: _type_of(name, each) for name, each in named.items()}
    variables = [
        mxnet.sym.var(name, shape=kind.shape, dtype=kind.dtype.numpy.type)
        for name, kind in kinds.items()
    ]
    made = mxnet.gluon.SymbolBlock(compiled, variables)
    for name, parameter in made.collect_params().items():
        value = {**values, **states}[name]
        parameter.cast(value.dtype)
        parameter.shape = value.shape
        parameter.initialize(mxnet.init.Zero(), value.context)
        parameter.set_data(value)
    return made


def _named(inputs: Any) -> dict[str, Any]:
    """Inputs by name: those of one that has none are data, or data0, data1 ... of several."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    several = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    names = ["data"] if len(several) == 1 else [f"data{place}" for place in range(len(several))]
    return dict(zip(names, several, strict=True))

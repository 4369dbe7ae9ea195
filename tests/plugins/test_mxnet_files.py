"""Models of MXNet are read from their files, without MXNet."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import glia
from glia.base.dtype import F32, S32
from glia.base.errors import CompileError
from glia.frontend.errors import DynamicShape, UnreadableFile, UnsupportedOperator
from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import evaluate
from glia.graph.ir import TensorType
from glia.plugins.mxnet.errors import (
    BadAttribute,
    BadParameterFile,
    BadSymbolFile,
    BadSymbolInputs,
    UnusableSubgraph,
)
from glia.plugins.mxnet.lowering import symbol_to_hlo, type_of
from glia.plugins.mxnet.model_files import model_to_hlo
from glia.plugins.mxnet.operators.families import TABLE
from glia.plugins.mxnet.parameter_file import (
    ARRAY_V1,
    ARRAY_V2,
    ARRAY_V3,
    parse_parameters,
    without_prefixes,
)
from glia.plugins.mxnet.subgraphs import SUBGRAPH, Subgraph, parse_types, types_text
from glia.plugins.mxnet.symbol_file import NodeResult, Symbol, SymbolNode, parse_symbol
from glia.plugins.mxnet.symbol_parts import CUSTOM, compile_in_parts
from support.mxnet_models.files import parameter_file
from support.mxnet_models.samples import SAMPLES, Sample, recorded

RESULTS = recorded()

X = TensorType(F32, (2, 4))
WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_an_operator_computes_what_mxnet_has_computed(sample: Sample) -> None:
    kinds = {name: type_of(array) for name, array in sample.named().items()}
    found = evaluate(import_hlo(symbol_to_hlo(sample.symbol(), kinds, {})), sample.arrays())
    for array, known in zip(found, RESULTS[sample.name], strict=True):
        np.testing.assert_allclose(np.float64(array), known, rtol=1e-3, atol=1e-4)
        assert array.shape == np.shape(known)


def test_every_lowering_has_a_sample() -> None:
    sampled = {TABLE[sample.operator] for sample in SAMPLES}
    by_kind = {name for name in TABLE if TABLE[name] not in sampled}
    # made by one function each, of which others of the family have samples
    families = ("_Plus", "_add", "_Minus", "_sub", "_Mul", "_Div", "_Power", "_Maximum", "_Minimum")
    numbers = ("PlusScalar", "MinusScalar", "MulScalar", "DivScalar")
    assert {n for n in by_kind if n not in families and not n.endswith(numbers)} == set()


# --- files ---------------------------------------------------------------------------------------


def layer(**attributes: str) -> Symbol:
    """A layer that is fully connected."""
    nodes = (
        SymbolNode("null", "data"),
        SymbolNode("null", "weight"),
        SymbolNode(
            "FullyConnected", "layer", {"num_hidden": "3", "no_bias": "True", **attributes},
            (NodeResult(0), NodeResult(1)),
        ),
    )  # fmt: skip
    return Symbol(nodes, (NodeResult(2),))


def test_a_saved_model_compiles_without_mxnet(tmp_path: Path) -> None:
    (tmp_path / "net-symbol.json").write_text(layer().text())
    (tmp_path / "net-0000.params").write_bytes(parameter_file({"arg:weight": WEIGHT}))
    files = (tmp_path / "net-symbol.json", tmp_path / "net-0000.params")
    hlo = model_to_hlo(*files, {"data": (2, 4)})
    x = np.float32(np.arange(8).reshape(2, 4))
    (found,) = glia.load(glia.compile(hlo))(x)
    np.testing.assert_allclose(found, x @ WEIGHT.T, rtol=1e-5)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"none\.json"):
        model_to_hlo(tmp_path / "none.json", tmp_path / "none.params", {})


@pytest.mark.parametrize("magic", [ARRAY_V1, ARRAY_V2, ARRAY_V3])
def test_arrays_are_read_as_they_were_written(magic: int) -> None:
    arrays = {
        "arg:w": WEIGHT, "aux:m": np.arange(4, dtype=np.int64), "arg:h": np.float16([[1.5]]),
        "arg:b": np.array([1, 2], ml_dtypes.bfloat16),
    }  # fmt: skip
    found = parse_parameters(parameter_file(arrays, magic))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and (found[name] == array).all()
    assert list(without_prefixes(found)) == ["w", "m", "h", "b"]


def test_a_symbol_is_read_back_from_its_text() -> None:
    symbol = layer(flatten="False")
    assert parse_symbol(symbol.text()) == symbol
    older = symbol.text().replace('"attrs": {"num', '"param": {"num')
    assert parse_symbol(older) == symbol


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "[" * 100000, '{"nodes": 3, "heads": []}', '{"nodes": [], "heads": []}',
        '{"nodes": [{"op": 3, "name": "x", "inputs": []}], "heads": [[0, 0, 0]]}',
        '{"nodes": [{"op": "relu", "name": "x", "inputs": [[0, 0]]}], "heads": [[0, 0, 0]]}',
        '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[7, 0, 0]]}',
        '{"nodes": [{"op": "null", "name": "x", "inputs": [], "attrs": 3}], "heads": [[0, 0]]}',
        '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[true, 0]]}',
    ],
)  # fmt: skip
def test_a_text_that_is_no_symbol_is_refused(text: str) -> None:
    with pytest.raises(BadSymbolFile):
        parse_symbol(text)


def damaged(offset: int, value: bytes) -> bytes:
    data = bytearray(parameter_file({"arg:w": WEIGHT}))
    data[offset : offset + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"", damaged(0, b"\0"), damaged(16, b"\xff" * 8), damaged(24, b"\0"), damaged(28, b"\1"),
        damaged(32, b"\xff\xff\0\0"), damaged(36, b"\xff" * 8), damaged(40, b"\xff" * 3),
        damaged(60, b"\x77"), damaged(32, b"\0"),
        parameter_file({"arg:w": WEIGHT})[:-3], parameter_file({"arg:w": WEIGHT})[:100],
    ],
)  # fmt: skip
def test_a_file_that_holds_no_arrays_is_refused(data: bytes) -> None:
    with pytest.raises(BadParameterFile):
        parse_parameters(data)


# --- models that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"num_hidden": "three"}, "is not a whole number"), ({"flatten": "maybe"}, "neither True"),
        ({"scale": "2"}, "is not supported"), ({"num_hidden": "9" * 30}, "beyond any size"),
    ],
)  # fmt: skip
def test_an_attribute_that_has_no_meaning_is_named(
    attributes: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadAttribute, match=problem):
        symbol_to_hlo(layer(**attributes), {"data": X}, {"weight": WEIGHT})


def test_operands_of_other_shapes_are_refused() -> None:
    with pytest.raises(BadSymbolInputs, match=r"takes a weight of \[3, 5\]"):
        symbol_to_hlo(layer(), {"data": TensorType(F32, (2, 5))}, {"weight": WEIGHT})
    with pytest.raises(BadSymbolInputs, match="needs 'weight'"):
        symbol_to_hlo(layer(), {"data": X}, {})
    with pytest.raises(BadSymbolInputs, match=r"no input 'dat'; did you mean data\?"):
        symbol_to_hlo(layer(), {"dat": X}, {"weight": WEIGHT})
    with pytest.raises(BadSymbolInputs, match="no name for an input"):
        nodes = (SymbolNode("null", "a,b"),)
        symbol_to_hlo(Symbol(nodes, (NodeResult(0),)), {"a,b": X}, {})


def test_a_shape_that_is_not_known_is_refused() -> None:
    with pytest.raises(DynamicShape):
        symbol_to_hlo(layer(), {"data": TensorType(F32, (-1, 4))}, {"weight": WEIGHT})


def test_an_operator_that_the_table_lacks_is_named() -> None:
    nodes = (SymbolNode("null", "data"), SymbolNode("Convolutoin", "conv", {}, (NodeResult(0),)))
    with pytest.raises(UnsupportedOperator, match="did you mean Convolution"):
        symbol_to_hlo(Symbol(nodes, (NodeResult(1),)), {"data": X}, {})


# --- parts ---------------------------------------------------------------------------------------


def chain(*operators: str) -> Symbol:
    """Operators that each take the result of the one before."""
    nodes = [SymbolNode("null", "data")]
    for place, operator in enumerate(operators):
        nodes.append(SymbolNode(operator, f"n{place}", {}, (NodeResult(place),)))
    return Symbol(tuple(nodes), (NodeResult(len(operators)),))


def types_of(symbol: Symbol) -> dict[NodeResult, TensorType]:
    return {NodeResult(place): X for place in range(len(symbol.nodes))}


def compiled(hlo: bytes, name: str) -> bytes:
    return glia.compile(hlo).to_bytes()


def test_what_the_device_lacks_stays_between_its_parts() -> None:
    symbol = chain("exp", "tanh", "cumsum", "relu")
    found = compile_in_parts(symbol, {}, types_of(symbol), compiled)
    assert [each.operator for each in found.symbol.nodes] == [
        "null", "null", CUSTOM, "cumsum", "null", CUSTOM,
    ]  # fmt: skip
    assert list(found.on_host) == ["n2"] and "cumsum" in found.on_host["n2"]
    first = found.symbol.nodes[2]
    assert first.attributes["op_type"] == SUBGRAPH
    inner = parse_symbol(first.attributes["subgraphs"])
    assert [each.operator for each in inner.nodes] == ["null", "exp", "tanh"]
    assert parse_symbol(found.symbol.text()) == found.symbol


def test_an_excluded_node_stays_where_it_is() -> None:
    symbol = chain("exp", "tanh")
    found = compile_in_parts(symbol, {}, types_of(symbol), compiled, excluded=["n0"])
    assert [each.operator for each in found.symbol.nodes] == ["null", "exp", "null", CUSTOM]
    assert found.on_host == {"n0": "it is excluded"}


def test_a_node_whose_attributes_the_device_lacks_stays_where_it_is() -> None:
    symbol = layer(unknown="1")
    kinds = {
        NodeResult(0): X,
        NodeResult(1): type_of(WEIGHT),
        NodeResult(2): TensorType(F32, (2, 3)),
    }
    found = compile_in_parts(symbol, {"weight": WEIGHT}, kinds, compiled)
    assert "unknown=1" in found.on_host["layer"] and not found.neffs


def test_a_part_is_run_from_its_neff() -> None:
    symbol = chain("exp", "negative")
    found = compile_in_parts(symbol, {}, types_of(symbol), compiled)
    attributes = found.symbol.nodes[-1].attributes
    part = Subgraph(parse_types(attributes["inputs"]), parse_types(attributes["outputs"]))
    neff = np.frombuffer(found.neffs["neuron_subgraph0_neff"], np.uint8)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(part([x], neff)[0], -np.exp(x), rtol=1e-5)
    with pytest.raises(UnusableSubgraph, match="compiled for"):
        part.check_shapes([(3, 4)])
    with pytest.raises(UnusableSubgraph, match="its NEFF takes"):
        Subgraph([TensorType(S32, (2, 4))], part.outputs)([x], neff)
    with pytest.raises(CompileError, match="GLIA"):
        Subgraph(part.inputs, part.outputs)([x], neff[:-200])


@pytest.mark.parametrize(
    "text", ["", "{", "3", '[["float32"]]', '[["float9", [1]]]', '[["int8", [-1]]]']
)
def test_a_text_that_lists_no_types_is_refused(text: str) -> None:
    with pytest.raises(UnusableSubgraph):
        parse_types(text)


def test_types_are_read_back_from_their_text() -> None:
    kinds = [X, TensorType(S32, ()), TensorType(F32, (1,))]
    assert parse_types(types_text(kinds)) == kinds
    assert json.loads(types_text(kinds))[0] == ["float32", [2, 4]]

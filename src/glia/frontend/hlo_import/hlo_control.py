"""HLO constants, tuples, calls, loops, branches, and operations that return their operand."""

from __future__ import annotations

from typing import Any

from glia.frontend.hlo_import.custom_calls import import_composite
from glia.frontend.hlo_import.literals import read_literal
from glia.frontend.hlo_import.module_context import Importer, Site, unflatten
from glia.frontend.hlo_import.node_builder import Value, flatten, has_type
from glia.frontend.hlo_import.shapes import leaves
from glia.graph import ops
from glia.graph.ir import Graph


def _constant(site: Site) -> Value:
    site.expect_operands(0)
    return _literal(site, site.proto.literal)


def _literal(site: Site, literal: Any) -> Value:
    if literal.tuple_literals or not literal.shape.element_type:
        return tuple(_literal(site, element) for element in literal.tuple_literals)
    assert site.module is not None
    array = read_literal(literal, site.label, site.loc, site.module.payloads)
    return site.make(ops.Constant, array)


def _tuple(site: Site) -> Value:
    return site.operands


def _get_tuple_element(site: Site) -> Value:
    (value,) = site.expect_operands(1)
    index: int = site.proto.tuple_index
    if not isinstance(value, tuple) or not 0 <= index < len(value):
        raise site.malformed(f"element {index} of a value without such an element")
    return value[index]


def _identity(site: Site) -> Value:
    (value,) = site.expect_operands(1)
    return value


def _barrier(site: Site) -> Value:
    """opt-barrier: one operand, often a tuple, passed through."""
    return site.operands[0] if len(site.operands) == 1 else site.operands


def _add_dependency(site: Site) -> Value:
    """add-dependency: the value; the token only orders."""
    value, _ = site.expect_operands(2)
    return value


def _after_all(_: Site) -> Value:
    """A token is the empty tuple."""
    return ()


def _call(site: Site) -> Value:
    kernel = import_composite(site)
    return (
        kernel if kernel is not None else site.inline(site.called_computations(1)[0], site.operands)
    )


def _while(site: Site) -> Value:
    (state,) = site.expect_operands(1)
    flat = flatten(state)
    body, condition = site.region(0, 2), site.region(1, 2)
    if not has_type(state, site.type):
        raise site.reject(f"the state is not of the declared type {site.type}")
    for graph in (condition, body):
        _check_parameters(site, graph, [node.type for node in flat])
    if not flat:
        return state
    return unflatten(site.type, iter(site.results(ops.While, flat, condition, body)))


def _check_parameters(site: Site, graph: Graph, expected: list[Any]) -> None:
    found = [parameter.type for parameter in graph.parameters]
    if found != expected:
        raise site.reject(f"{graph.name} does not take the {len(expected)} tensors it is given")


def _conditional(site: Site) -> Value:
    branches = tuple(site.region(i, None) for i in range(len(site.called_computations())))
    if not branches or len(site.operands) != len(branches) + 1:
        raise site.malformed(f"{len(branches)} branches for {len(site.operands)} operands")
    index, *arguments = site.operands
    if isinstance(index, tuple):
        raise site.reject("the branch index is a tuple")
    flat = [flatten(argument) for argument in arguments]
    for graph, operands in zip(branches, flat, strict=True):
        _check_parameters(site, graph, [node.type for node in operands])
    declared = list(leaves(site.type))
    for graph in branches:
        if [result.type for result in graph.results] != declared:
            raise site.reject(f"{graph.name} does not give the declared type {site.type}")
    every = tuple(node for operands in flat for node in operands)
    counts = tuple(len(operands) for operands in flat)
    results = site.results(ops.Conditional, index, every, counts, branches) if declared else ()
    return unflatten(site.type, iter(results))


def _async_start(site: Site) -> Value:
    return site.inline(site.called_computations(1)[0], site.operands)


CONTROL: dict[str, Importer] = {
    "constant": _constant,
    "tuple": _tuple,
    "get-tuple-element": _get_tuple_element,
    "call": _call,
    "fusion": _call,
    "while": _while,
    "conditional": _conditional,
    "async-start": _async_start,
    "opt-barrier": _barrier,
    "add-dependency": _add_dependency,
    "after-all": _after_all,
    **dict.fromkeys(
        ("copy", "copy-start", "copy-done", "domain", "async-update", "async-done"), _identity
    ),
}

"""`glia partition`: the program of one device, and what it exchanges with the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glia.cc_flags import resolve_options

if TYPE_CHECKING:
    from glia.graph.ir import Graph


@click.command(short_help="Show the program of one device, and its collectives.")
@click.argument("model", metavar="FILE")
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=None,
    help="Devices that run copies of the model.  [default: as many as it says]",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=None,
    help="Devices that share each copy.  [default: as many as the model says]",
)
@click.option("--program", is_flag=True, help="Print the program too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def partition(
    model: str, replicas: int | None, partitions: int | None, program: bool, as_json: bool
) -> None:
    """Show what each device has of FILE, a StableHLO module with shardings or an HLO module.

    Of every collective, the tensors of one device, and how many groups of how many devices.

    \b
    Examples:
      glia partition sharded.mlir
      glia partition sharded.mlir --program
      glia partition step.hlo.pb --replicas 8 --json
    """
    from glia.frontend.registry import read_module
    from glia.graph.exchanges.number_ranks import number_ranks
    from glia.graph.text import print_graph

    asked = {"replicas": replicas, "partitions": partitions}
    given = {name: value for name, value in asked.items() if value is not None}
    options, _ = resolve_options("glia partition", given, {})
    graph = number_ranks(read_module(Path(model)), options)
    report = partition_report(graph)
    if program:
        report["program"] = print_graph(graph)
    click.echo(json.dumps(report) if as_json else _text(report))


def partition_report(graph: Graph) -> dict[str, Any]:
    """The ranks of a graph whose ranks are numbered, its tensors and its collectives."""
    from glia.graph.ops import ID_KINDS, Collective
    from glia.graph.rules.regions import all_nodes, tensor_types

    exchanges = []
    for node in all_nodes(graph):
        if not isinstance(node, Collective) or node.kind in ID_KINDS:
            continue
        groups = node.pairs or node.replica_groups
        exchanges.append(
            {
                "kind": node.kind,
                "groups": len(groups),
                "members": max(map(len, groups), default=0),
                "takes": [str(arg.type) for arg in node.args],
                "gives": [str(kind) for kind in tensor_types(node.result)],
                "bytes": sum(kind.bytes for arg in node.args for kind in tensor_types(arg.type)),
                "source": str(node.loc),
            }
        )
    return {
        "replicas": max(1, graph.replicas),
        "partitions": max(1, graph.partitions),
        "inputs": {each.name: str(each.type) for each in graph.parameters},
        "outputs": dict(
            zip(graph.result_names, (str(each.type) for each in graph.results), strict=False)
        ),
        "collectives": exchanges,
    }


def _text(report: dict[str, Any]) -> str:
    replicas, partitions = report["replicas"], report["partitions"]
    count = replicas * partitions
    lines = [f"{count} rank{'s' * (count > 1)}: {replicas} x {partitions}, replicas x partitions"]
    lines += [f"input   {name}: {kind}" for name, kind in report["inputs"].items()]
    lines += [f"output  {name}: {kind}" for name, kind in report["outputs"].items()]
    for each in report["collectives"]:
        among = f"{each['groups']} x {each['members']}"
        what = f"{', '.join(each['takes'])} -> {', '.join(each['gives'])}"
        lines.append(f"{each['kind']:20} {among:8} {each['bytes']:>12,} bytes  {what}")
        if each["source"]:
            lines[-1] += f"  {each['source']}"
    if not report["collectives"]:
        lines.append("no collectives")
    return "\n".join([*lines, *filter(None, [report.get("program", "").rstrip()])])

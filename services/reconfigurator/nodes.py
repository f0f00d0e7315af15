"""The configured nodes; their order gives each its number in a plan."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from services.reconfigurator.planning.plan import Placement
from shared.errors import BadInput
from shared.messages.launch import InstanceSpec, NodeName
from shared.settings import Positive


class Node(msgspec.Struct, frozen=True, kw_only=True):
    name: NodeName
    gpus: Positive


def read_nodes(texts: Sequence[str]) -> tuple[Node, ...]:
    """Read nodes written as NAME:GPUS. Raises: BadInput naming the fault and the accepted form."""
    nodes = tuple(_read_node(text) for text in texts)
    if len({node.name for node in nodes}) < len(nodes):
        raise BadInput(f"nodes must differ in name, got {','.join(texts)}", "nodes")
    return nodes


def gpus_of(nodes: Iterable[Node], up: Collection[str]) -> list[int]:
    """The GPUs to plan with on each node: 0 on a node that is down, which keeps its number."""
    return [node.gpus if node.name in up else 0 for node in nodes]


def to_spec(placement: Placement, nodes: Sequence[Node]) -> InstanceSpec:
    return InstanceSpec(node=nodes[placement.node].name, gpus=tuple(sorted(placement.gpus)))


def to_placements(specs: Iterable[InstanceSpec], nodes: Sequence[Node], up: Collection[str]) -> list[Placement]:
    """The placements, by node and first GPU; instances on nodes that are down or not configured are left out."""
    number = {node.name: i for i, node in enumerate(nodes) if node.name in up}
    known = [spec for spec in specs if spec.node in number and spec.gpus[-1] < nodes[number[spec.node]].gpus]
    places = [Placement(node=number[spec.node], gpus=list(spec.gpus), tp=spec.tp) for spec in known]
    return sorted(places, key=lambda place: (place.node, place.gpus))


def _read_node(text: str) -> Node:
    name, _, gpus = text.rpartition(":")
    try:
        return msgspec.convert({"name": name, "gpus": gpus.strip()}, Node, strict=False)
    except msgspec.ValidationError:
        raise BadInput(f"node {text!r}: accepted is NAME:GPUS, such as node-a:4", "nodes") from None

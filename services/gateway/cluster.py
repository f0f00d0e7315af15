"""The cluster as nodes and instances. Pure."""

from collections.abc import Iterable, Mapping

from services.gateway.views import InstanceView, NodeView
from shared.messages.instances import Instance


def nodes(instances: Iterable[Instance], requests: Mapping[str, int]) -> list[NodeView]:
    """The nodes that have instances. `requests` are those placed on each instance, where they are known."""
    by_node: dict[str, list[Instance]] = {}
    for instance in instances:
        by_node.setdefault(instance.node, []).append(instance)
    return [_node(name, by_node[name], requests) for name in sorted(by_node)]


def _node(name: str, instances: list[Instance], requests: Mapping[str, int]) -> NodeView:
    ordered = sorted(instances, key=lambda instance: (instance.gpus, instance.instance_id))
    return NodeView(
        name=name,
        instances=[_instance(instance, requests.get(instance.instance_id)) for instance in ordered],
        free_gpus=[],
    )


def _instance(instance: Instance, requests: int | None) -> InstanceView:
    return InstanceView(
        id=instance.instance_id,
        state=instance.state.value,
        tp_degree=instance.tp_degree,
        gpus=instance.gpus,
        device=instance.device,
        requests=requests,
        max_batch_requests=instance.max_batch_requests,
        max_batch_tokens=instance.max_batch_tokens,
    )

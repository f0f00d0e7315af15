"""Builds the views of load, nodes and instances. Pure."""

from collections.abc import Iterable, Mapping

from services.gateway.console.console_models import InstanceView, LoadView, NodeView
from shared.messages.instances import Instance
from shared.messages.stats import InstanceLoad, SchedulerStats


def load_of(stats: SchedulerStats, now_s: float) -> LoadView:
    """The point of the charts for stats received at `now_s` (Unix time, s)."""
    return LoadView(
        t_s=now_s,
        rps=stats.rps,
        slo_attainment=stats.slo_attainment,
        mean_threshold=stats.mean_threshold,
        latency_p50_ms=_ms(stats.latency_p50_s),
        latency_p99_ms=_ms(stats.latency_p99_s),
        tokens_per_s=stats.tokens_per_s,
        running=stats.active - stats.deferred,
        waiting=stats.deferred,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def nodes(instances: Iterable[Instance], loads: Iterable[InstanceLoad]) -> list[NodeView]:
    """The nodes that have instances, sorted by name."""
    by_node: dict[str, list[Instance]] = {}
    for instance in instances:
        by_node.setdefault(instance.node, []).append(instance)
    load_by_id = {load.instance_id: load for load in loads}
    return [
        NodeView(
            name=name,
            instances=[
                _instance(instance, load_by_id)
                for instance in sorted(by_node[name], key=lambda instance: (instance.gpus, instance.instance_id))
            ],
        )
        for name in sorted(by_node)
    ]


def _instance(instance: Instance, loads: Mapping[str, InstanceLoad]) -> InstanceView:
    load = loads.get(instance.instance_id)
    return InstanceView(
        id=instance.instance_id,
        state=instance.state.value,
        tp_degree=instance.tp_degree,
        gpus=instance.gpus,
        device=instance.device,
        requests=load.requests if load else None,
        max_requests=instance.max_batch_requests,
        tokens=load.tokens if load else None,
        max_tokens=instance.max_batch_tokens,
        step_latency_ms=_ms(load.step_latency_s) if load else None,
    )

"""Renders the state of a cluster for a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dilaserve.outputs import number, percent
from dilaserve.stack.observer import ClusterReport
from shared.messages.instances import Instance
from shared.messages.stats import InstanceLoad, LastServed, SchedulerStats


def render(report: ClusterReport) -> RenderableType:
    state = Text("ready", "bold green") if report.ready else Text(f"not ready: {report.reason}", "bold red")
    head = Text.assemble(f"gateway {report.url}: ", state)
    if report.scheduler is None:
        return Group(head, "scheduler: no scheduler leads", _instances(report.instances, {}))
    loads = {load.instance_id: load for load in report.scheduler.instances}
    versions = sorted({report.scheduler.version, *(instance.version for instance in report.instances)})
    return Group(head, _load(report.scheduler, versions), _instances(report.instances, loads))


def _load(stats: SchedulerStats, versions: Sequence[int]) -> Table:
    table = Table(box=None, show_header=False)
    thresholds = ", ".join(f"{threshold:g}" for threshold in stats.thresholds)
    served: SchedulerStats | LastServed = stats
    age = ""
    if stats.slo_attainment is None and stats.last is not None:  # idle: the last values, with their age
        served, age = stats.last, f" ({_age(stats.at_s - stats.last.at_s)} ago)"
    rows = {
        "policy": f"{stats.policy}, thresholds {thresholds}",
        "requests": f"{stats.active} active, {stats.deferred} deferred, {stats.waiting} waiting, "
        f"{stats.infeasible} with an SLO that no threshold meets; "
        f"{stats.completed} completed, {stats.failed} failed, {stats.cancelled} cancelled",
        "SLO attainment": percent(served.slo_attainment) + age,
        "mean threshold": number(served.mean_threshold) + age,
        "latency": f"p50 {number(served.latency_p50_s)} s, p99 {number(served.latency_p99_s)} s{age}",
        "rates": f"{stats.rps:.2f} requests/s, {stats.steps_per_s:.0f} steps/s, {stats.tokens_per_s:.0f} tokens/s",
        "predictor": f"{stats.predictions} estimates, {stats.predictor_fallbacks} fallbacks",
    }
    if len(versions) > 1:
        rows["upgrade"] = f"the messages of scheduler and workers have the versions {', '.join(map(str, versions))}"
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _age(seconds: float) -> str:
    """The largest whole unit."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds // length_s:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _instances(instances: list[Instance], loads: dict[str, InstanceLoad]) -> Table:
    table = Table("instance", "state", "TP", "device", "model", "node", "requests", "tokens", box=None)
    for item in instances:
        load = loads.get(item.instance_id)
        state = f"{item.state}: {item.quarantine}" if item.quarantine else item.state
        table.add_row(
            *(item.instance_id, state, str(item.tp_degree), item.device, item.model.name, item.node),
            *((f"{load.requests} of {load.max_requests}", f"{load.tokens}") if load else ("-", "-")),
        )
    return table

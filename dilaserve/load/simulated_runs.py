"""The runs of `dilaserve simulate`: clusters, policies and constant thresholds, each with each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from msgspec.structs import replace as with_settings

from dilaserve.outputs import number, percent
from services.scheduler.registry import find_policy
from shared.instance_counts import read_instance_counts
from simulator.scenario import Scenario

HEAD = (
    "| cluster | policy | SLO attainment | latency, mean and p99, s | mean threshold | mean steps |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)


class SimulatedRun:
    """One cluster under one policy. `threshold` is None for a policy that chooses thresholds."""

    def __init__(self, cluster: str, policy: str, threshold: float | None, instances: tuple[int, ...]) -> None:
        """`instances`: the TP degree of each."""
        self.cluster, self.policy, self.threshold, self.instances = cluster, policy, threshold, instances
        self.label = policy if threshold is None else f"{policy} {threshold:g}"
        self.name = f"{cluster} {self.label}"
        self.result: dict[str, Any] = {}  # RESULT.json, after the run

    @property
    def described(self) -> dict[str, Any]:
        """The result, with what was simulated."""
        return {"cluster": self.cluster, "policy": self.policy, "threshold": self.threshold, **self.result}

    def scenario(self, base: Scenario) -> Scenario:
        """The scenario of this run; all else is that of `base`."""
        settings = with_settings(base.settings, policy=self.policy, threshold=self.threshold or base.settings.threshold)
        options = base.policy_options if self.threshold is None else {}  # for policies that choose thresholds
        return replace(base, instances=self.instances, settings=settings, policy_options=options)


def runs_of(clusters: Sequence[str], policies: Sequence[str], thresholds: Sequence[float]) -> list[SimulatedRun]:
    """Raises: BadInput if a cluster is malformed."""
    return [
        SimulatedRun(cluster, policy, threshold, read_instance_counts(cluster, "--cluster"))
        for cluster, policy in product(clusters, policies)
        for threshold in (thresholds if find_policy(policy).one_threshold else [None])
    ]


def table(runs: Sequence[SimulatedRun], recorded: Mapping[str, Any] | None, title: str) -> str:
    """A Markdown table; the first row is what the cell itself has recorded, if it is known."""
    rows = [] if recorded is None else [_row("", "recorded", recorded)]
    rows += [_row(run.cluster, run.label, run.result) for run in runs]
    return f"{title}\n\n{HEAD}{''.join(rows)}"


def _row(cluster: str, policy: str, result: Mapping[str, Any]) -> str:
    latency = f"{number(result['latency_s']['mean'])}, {number(result['latency_s']['p99'])}"
    figures = f"{percent(result['slo_attainment'])} | {latency} | {number(result['mean_threshold'])}"
    return f"| {cluster} | {policy} | {figures} | {number(result['mean_steps'])} |\n"

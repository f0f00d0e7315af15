"""How many GPUs a workload needs, with queues and bursts: plans clusters of rising size and simulates each."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from services.reconfigurator.planning.plan import Plan, PlanStatus
from services.reconfigurator.planning.plan_input import PlanInput, Workload
from services.reconfigurator.planning.planner import make_plan
from services.reconfigurator.planning.smallest_cluster import TOLERANCE, can_meet_slos, min_gpus, nodes_of, smallest
from services.scheduler.settings import SchedulerSettings
from shared.errors import BadInput
from shared.messages.cell import CacheName
from shared.profile import LatencyProfile
from shared.text import round_up_to_blocks
from simulator.result import Records
from simulator.scenario import Scenario, simulate
from simulator.steps_table import StepsTable
from simulator.workload import ArrivalTrace, make_trace, sorted_by_arrival

MIN_REQUESTS = 1000  # that a simulation has on average
MIN_SLOS = 10.0  # its length, in units of the longest SLO
MAX_REQUESTS = 1_000_000  # that a simulation may have on average


class SizedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that was considered. The figures of a simulation are None without one."""

    gpus: int
    instances_per_tp: dict[int, int] = {}
    planned_threshold: float | None = None  # by Stage 1, which knows no queues; None: it finds no plan
    mean_threshold: float | None = None  # simulated
    slo_attainment: float | None = None  # simulated
    suffices: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSearch:
    """Searches the smallest cluster for a workload, whose largest node gives the GPUs per node."""

    workload: Workload
    profile: LatencyProfile
    cached: bool
    min_threshold: float
    min_attainment: float | None = None  # of a simulation with Poisson arrivals; None: no simulation
    time_limit_s: float = 60.0  # for each stage of each plan
    seed: int = 0

    def run(self, on_tried: Callable[[SizedCluster], None] = lambda _: None) -> tuple[Plan, list[SizedCluster]] | None:
        """Returns: the plan of the smallest cluster, and all clusters that were tried; None if none suffices."""
        p = PlanInput(self.workload, self.profile, cached=self.cached)
        per_node = max(self.workload.nodes)
        plans: dict[int, Plan] = {}
        tried: list[SizedCluster] = []

        def suffices(gpus: int) -> bool:
            resized = p.resized(nodes_of(gpus, per_node))
            plans[gpus] = make_plan(resized, [], time_limit_s=self.time_limit_s)
            tried.append(cluster := self._judged(plans[gpus], gpus))
            on_tried(cluster)
            return cluster.suffices

        gpus = smallest(suffices, min_gpus(p)) if can_meet_slos(p) else None
        return None if gpus is None else (plans[gpus], sorted(tried, key=lambda cluster: cluster.gpus))

    def _judged(self, plan: Plan, gpus: int) -> SizedCluster:
        """The cluster of a plan, simulated if Stage 1 reaches the threshold."""
        if plan.status is PlanStatus.FALLBACK:
            return SizedCluster(gpus=gpus, suffices=False)
        cluster = SizedCluster(
            gpus=gpus,
            instances_per_tp=plan.instances_per_tp,
            planned_threshold=plan.mean_threshold,
            suffices=plan.mean_threshold >= self.min_threshold - TOLERANCE,
        )
        return self._simulated(cluster) if cluster.suffices and self.min_attainment is not None else cluster

    def _simulated(self, cluster: SizedCluster) -> SizedCluster:
        """The cluster with the figures of a simulation, and whether these suffice."""
        records = self._simulate(cluster.instances_per_tp)
        threshold, attainment = records.mean_threshold_used() or 0.0, float(records.met.mean())
        suffices = attainment >= (self.min_attainment or 0.0) and threshold >= self.min_threshold - TOLERANCE
        return msgspec.structs.replace(cluster, mean_threshold=threshold, slo_attainment=attainment, suffices=suffices)

    def _simulate(self, instances_per_tp: dict[int, int]) -> Records:
        workload = self.workload
        thresholds = sorted(workload.thresholds)
        rates = [workload.tokens_per_step[c] for c in thresholds]
        cache: CacheName = "none" if not self.cached else "block" if workload.exact_cache else "dual"
        settings = SchedulerSettings(model="simulated", thresholds=tuple(thresholds), cache=cache)
        scenario = Scenario(
            profile=self.profile,
            steps=StepsTable(np.array(thresholds), np.array(rates)),
            block_length=workload.block_length,
            instances=tuple(tp for tp, count in instances_per_tp.items() for _ in range(count)),
            settings=settings,
            slo_s=workload.slo_s,
            seed=self.seed,
        )
        return simulate(scenario, poisson_arrivals(workload, self.seed))


def poisson_arrivals(workload: Workload, seed: int) -> ArrivalTrace:
    """Arrivals of each class at its rate, for at least MIN_SLOS of the longest SLO and MIN_REQUESTS on average.

    Raises: BadInput if these are more than MAX_REQUESTS.
    """
    random = np.random.default_rng(seed)
    rps = sum(each.rps for each in workload.classes)
    slos = [each.slo_s or workload.slo_s for each in workload.classes]
    span_s = max(MIN_REQUESTS / rps, MIN_SLOS * max(slos))
    if rps * span_s > MAX_REQUESTS:
        raise BadInput(
            f"--min-attainment: {MIN_SLOS:g} times the longest SLO has {rps * span_s:.3g} requests, "
            f"too many to simulate; accepted: at most {MAX_REQUESTS:,}"
        )
    parts = []
    for each, slo_s in zip(workload.classes, slos, strict=True):
        count = random.poisson(each.rps * span_s)
        output = round_up_to_blocks(round(each.output_tokens), workload.block_length)
        lengths = np.full(count, round(each.prompt_tokens)), np.full(count, output)
        part = make_trace(np.sort(random.uniform(0.0, span_s, count)), *lengths)
        part.slo_s[:] = slo_s
        parts.append(part)
    return sorted_by_arrival(parts)

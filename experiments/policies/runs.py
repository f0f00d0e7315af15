"""One simulated run of a row at a load point, and its figures."""

import time
from dataclasses import dataclass

import msgspec
import numpy as np

from experiments.policies.points import Point
from experiments.policies.rows import System
from shared.arrays import Bool, Int64
from simulator.lengths import DATA
from simulator.result import Records
from simulator.scenario import Scenario, simulate
from simulator.workload import ArrivalTrace


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Units: percent; seconds."""

    requests: int
    attainment: float
    accuracy: float  # of GSM8K at the thresholds used, over all tokens
    accuracy_met: float | None  # the same over the requests that met their SLO; None: there are none
    attainment_longest: float  # of the longest tenth by output
    attainment_per_class: dict[str, float]  # by SLO in seconds
    mean_s: float
    p99_s: float
    slo_s: float  # of requests without their own
    steps: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """One cell of the study."""

    point: Point
    row: System
    seed: int

    def scenario(self, arriving: ArrivalTrace) -> Scenario:
        point, row = self.point, self.row
        return Scenario(
            profile=point.profile(),
            steps=point.steps(),
            block_length=point.model.block_length,
            registered=point.registered(),
            instances=(1,) * point.instances,
            settings=row.scheduler(point.model.cache),
            predictor=row.predictor,
            slo_s=point.slo_s(arriving),
            seed=self.seed,
            shared_launch_s=point.shared_launch_s(),
            max_batch_tokens=point.room_tokens,
        )

    def simulate(self) -> Figures:
        start_s = time.process_time()
        arriving = self.point.arrivals(self.seed, DATA)
        scenario = self.scenario(arriving)
        records = simulate(scenario, arriving)
        return figures_of(records, arriving, scenario.slo_s or 0.0, time.process_time() - start_s)


def figures_of(records: Records, arrived: ArrivalTrace, slo_s: float, cpu_s: float) -> Figures:
    met, latency_s = records.met, records.latency_s[records.completed]
    return Figures(
        requests=len(arrived),
        attainment=percent(met),
        accuracy=records.accuracy() or 0.0,
        accuracy_met=float(records.accuracy_sum[met].sum() / arrived.output_tokens[met].sum()) if met.any() else None,
        attainment_longest=percent(met[longest(arrived)]),
        attainment_per_class={f"{slo:g}": percent(met[records.slo_s == slo]) for slo in np.unique(records.slo_s)},
        mean_s=float(latency_s.mean()),
        p99_s=float(np.percentile(latency_s, 99)),
        slo_s=slo_s,
        steps=records.steps_run,
        cpu_s=cpu_s,
    )


def longest(arrived: ArrivalTrace) -> Int64:
    """The tenth of the requests with the longest outputs, of equal ones those with the longest prompts."""
    order: Int64 = np.lexsort((arrived.prompt_tokens, arrived.output_tokens))
    return order[len(order) - max(1, len(order) // 10) :]


def percent(met: Bool) -> float:
    return 100 * float(met.mean())

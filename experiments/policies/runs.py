"""One simulated run of a row at a load point, and its figures."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from experiments.policies.arrivals import FLOOD_KEY
from experiments.policies.bound import bound
from experiments.policies.points import POLICY, Point
from experiments.policies.rows import System
from services.predictor.model import StepPredictor
from services.predictor.queries import Query
from shared.arrays import Bool, Float32, Int64
from simulator.result import Records
from simulator.scenario import Scenario, simulate, with_trained_predictor
from simulator.workload import ArrivalTrace


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Units: percent; seconds."""

    requests: int
    attainment: float
    accuracy: float  # of GSM8K at the thresholds used, over all tokens
    accuracy_met: float | None  # the same over the requests that met their SLO; None: there are none
    attainment_longest: float  # of the longest tenth by output
    attainment_per_class: dict[str, float]  # by SLO in seconds, or by key
    mean_s: float
    p99_s: float
    slo_s: float  # of requests without their own
    steps: int
    cpu_s: float
    accuracy_per_class: dict[str, float] = {}
    bound: float | None = None  # percent of the requests that can be in time, at most; None: not asked for


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
        point = self.point
        arriving = point.arrivals(self.seed)
        scenario = self.scenario(arriving)
        if point.estimates_factor != 1 and self.row.predictor == "trained":
            scenario = with_wrong_predictor(scenario, arriving, point.estimates_factor)
        records = simulate(scenario, arriving)
        cpu_s = time.process_time() - start_s
        at_most = bound(point, arriving, self.seed) if point.bounded and self.row.name == POLICY else None
        return figures_of(records, arriving, scenario.slo_s or 0.0, cpu_s, at_most)


class WrongPredictor(StepPredictor):
    """The answers of another one, times a factor."""

    def __init__(self, predictor: StepPredictor, factor: float) -> None:
        self._predictor, self._factor = predictor, np.float32(factor)

    def steps_left(self, queries: Sequence[Query]) -> list[Float32]:
        return [self._factor * steps for steps in self._predictor.steps_left(queries)]


def with_wrong_predictor(scenario: Scenario, arriving: ArrivalTrace, factor: float) -> Scenario:
    live = with_trained_predictor(scenario, arriving).live
    assert live is not None, "just trained"
    return replace(scenario, live=(WrongPredictor(live[0], factor), live[1]))


def classes(records: Records, arrived: ArrivalTrace) -> dict[str, Bool]:
    """The requests of each class: FLOOD_KEY and the other keys if there are keys, else by SLO. Shapes: [n] each."""
    if arrived.key.any():
        flood = arrived.key == FLOOD_KEY
        return {name: which for name, which in ((FLOOD_KEY, flood), ("other keys", ~flood)) if which.any()}
    return {f"{slo:g}": records.slo_s == slo for slo in np.unique(records.slo_s)}


def figures_of(
    records: Records, arrived: ArrivalTrace, slo_s: float, cpu_s: float, at_most: float | None = None
) -> Figures:
    met, latency_s = records.met, records.latency_s[records.completed]
    by_class = classes(records, arrived)
    accuracy = records.accuracy_sum / arrived.output_tokens
    return Figures(
        requests=len(arrived),
        attainment=percent(met),
        accuracy=records.accuracy() or 0.0,
        accuracy_met=float(records.accuracy_sum[met].sum() / arrived.output_tokens[met].sum()) if met.any() else None,
        attainment_longest=percent(met[longest(arrived)]),
        attainment_per_class={name: percent(met[which]) for name, which in by_class.items()},
        accuracy_per_class={name: float(accuracy[which].mean()) for name, which in by_class.items()},
        mean_s=float(latency_s.mean()),
        p99_s=float(np.percentile(latency_s, 99)),
        slo_s=slo_s,
        steps=records.steps_run,
        cpu_s=cpu_s,
        bound=at_most,
    )


def longest(arrived: ArrivalTrace) -> Int64:
    """The tenth of the requests with the longest outputs, of equal ones those with the longest prompts."""
    order: Int64 = np.lexsort((arrived.prompt_tokens, arrived.output_tokens))
    return order[len(order) - max(1, len(order) // 10) :]


def percent(met: Bool) -> float:
    return 100 * float(met.mean())

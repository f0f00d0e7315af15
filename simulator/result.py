"""The result of a simulation: records of every request, and RESULT.json."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from shared.arrays import Bool, Float64, Int64
from simulator.steps_table import StepsTable
from simulator.unmasking_model import NUM_THRESHOLDS
from simulator.workload import ArrivalTrace

BUCKET_S = 60.0  # length of a timeline entry
HUNDREDTHS = np.linspace(0.0, 1.0, NUM_THRESHOLDS)


class SimulatedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the planner. Units: t_s in virtual seconds."""

    t_s: float
    take: bool
    reason: str
    status: str
    instances_per_tp: dict[int, int]  # of the plan, taken or not


class Records:
    """One entry per request, [n] each; nan, or 0 steps, for those that did not complete. Units: seconds."""

    def __init__(self, slo_s: Float64, steps: StepsTable | None = None) -> None:
        """Before the first request completes."""
        n = len(slo_s)
        self.slo_s = slo_s
        self.latency_s: Float64 = np.full(n, np.nan)
        self.mean_threshold: Float64 = np.full(n, np.nan)
        self.steps, self.migrations = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.accuracy_sum = np.zeros(n)  # of the tokens unmasked: percent, from the steps table; 0 without
        # Of the whole run; None: the steps table has no accuracy
        self.accuracy_at = None if steps is None else steps.accuracy_at(HUNDREDTHS)  # percent, by threshold
        self.tokens_at: Int64 = np.zeros(NUM_THRESHOLDS, dtype=np.int64)  # unmasked, by threshold
        self.instances_at: list[tuple[float, Mapping[Any, int]]] = []  # since when, instances by TP degree
        self.decisions: list[SimulatedDecision] = []
        self.steps_run = 0  # by all instances

    def count_unmasked(self, requests: Int64, hundredths: Int64, tokens: Int64) -> None:
        """Count the tokens that steps unmasked. Shapes: all [n]; `hundredths` of the threshold."""
        np.add.at(self.tokens_at, hundredths, tokens)
        if self.accuracy_at is not None:
            np.add.at(self.accuracy_sum, requests, self.accuracy_at[hundredths] * tokens)

    @property
    def completed(self) -> Bool:
        return ~np.isnan(self.latency_s)

    @property
    def met(self) -> Bool:
        """Whether each request met its SLO; one that did not complete missed it."""
        return self.latency_s <= self.slo_s

    def mean_threshold_used(self) -> float | None:
        """Weighted by tokens unmasked."""
        return mean(HUNDREDTHS, self.tokens_at)

    def accuracy(self) -> float | None:
        """Percent: the steps table's accuracy at the thresholds used, weighted by tokens unmasked."""
        return None if self.accuracy_at is None else mean(self.accuracy_at, self.tokens_at)


def summarize(records: Records, workload: ArrivalTrace) -> dict[str, Any]:
    """RESULT.json; figures without data are None. Times are virtual seconds, `timeline` is by time of arrival;
    `accuracy`, 0..1, is expected from the steps table; `keys`, if requests have keys, holds figures by key."""
    completed = records.completed
    accuracy = records.accuracy()
    result: dict[str, Any] = {
        **outcomes(records, np.full(len(workload), fill_value=True)),
        "mean_threshold": records.mean_threshold_used(),
        "mean_steps": mean(records.steps[completed]),
        "migrations": int(records.migrations.sum()),
        "timeline": timeline(records, workload),
    }
    if accuracy is not None:
        result["accuracy"] = accuracy / 100
    if (workload.key != "").any():
        result["keys"] = {str(key): _of_key(records, workload, key) for key in np.unique(workload.key)}
    if records.decisions:
        result["decisions"] = msgspec.to_builtins(records.decisions, str_keys=True)
    return result


def outcomes(records: Records, part: Bool) -> dict[str, Any]:
    """Numbers and latencies of a part of the requests."""
    completed = records.completed & part
    latency_s = records.latency_s[completed]
    return {
        "requests": int(part.sum()),
        "completed": int(completed.sum()),
        "failed": int((part & ~completed).sum()),
        "slo_attainment": mean(records.met[part]),
        "latency_s": distribution(latency_s),
    }


def distribution(values: Float64) -> dict[str, float | None]:
    """Mean and percentiles; None without values."""
    percentiles = {f"p{q}": float(np.percentile(values, q)) if len(values) else None for q in (50, 90, 99)}
    return {"mean": mean(values), **percentiles}


def _of_key(records: Records, workload: ArrivalTrace, key: np.str_) -> dict[str, Any]:
    """The figures of a key's requests; its threshold and accuracy are those of the completed ones."""
    part = workload.key == key
    completed = records.completed & part
    tokens = workload.output_tokens[completed]
    result = outcomes(records, part) | {"mean_threshold": mean(records.mean_threshold[completed], tokens)}
    if records.accuracy_at is not None:
        result["accuracy"] = float(records.accuracy_sum[completed].sum() / tokens.sum()) / 100 if len(tokens) else None
    return result


def timeline(
    records: Records, workload: ArrivalTrace, bucket_s: float = BUCKET_S, last_s: float = 0.0
) -> list[dict[str, Any]]:
    """One entry for each `bucket_s` of arrivals, at least up to that of `last_s`."""
    bucket = (workload.arrival_s // bucket_s).astype(np.int64)
    entries = []
    for number in range(int(bucket.max(initial=int(last_s // bucket_s))) + 1):
        arrived = bucket == number
        done = arrived & records.completed
        entries.append(
            {
                "t_s": number * bucket_s,
                "rps": int(arrived.sum()) / bucket_s,
                "slo_attainment": mean(records.met[arrived]),
                "mean_threshold": mean(records.mean_threshold[done], workload.output_tokens[done]),
                "mean_latency_s": mean(records.latency_s[done]),
                "p99_latency_s": float(np.percentile(records.latency_s[done], 99)) if done.any() else None,
                "instances_per_tp": _instances_at(records, number * bucket_s),
            }
        )
    return entries


def _instances_at(records: Records, time_s: float) -> dict[str, int]:
    known = [counts for since_s, counts in records.instances_at if since_s <= time_s]
    return {str(tp): count for tp, count in sorted(known[-1].items())} if known else {}


def mean(values: Float64 | Int64 | Bool, weights: Int64 | None = None) -> float | None:
    """The mean; None without values or weights."""
    if not len(values) or (weights is not None and not weights.sum()):
        return None
    return float(np.average(values, weights=weights))

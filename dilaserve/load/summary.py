"""Summarizes a load: RESULT.json."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dilaserve.load.client import LoadReply

BUCKET_S = 1.0  # of the timeline

InstancesAt = tuple[float, dict[str, int]]  # seconds from the start; number of instances by TP degree from then on


def summarize(replies: Sequence[LoadReply], duration_s: float, instances: Sequence[InstancesAt] = ()) -> dict[str, Any]:
    """The result of a load. A failed request has missed its SLO; a mean of nothing is None.

    `mean_threshold` is weighted by the output tokens of each request. Rates are per second until the last reply;
    goodput counts the requests that met their SLO. `timeline` is by arrival time.
    """
    completed = [reply for reply in replies if reply.error is None]
    first_text_s = [reply.first_text_s for reply in completed if reply.first_text_s is not None]
    end_s = max((reply.arrival_s + reply.latency_s for reply in replies), default=0.0)
    graded = [reply.correct for reply in completed if reply.correct is not None]
    result = {
        "requests": len(replies),
        "completed": len(completed),
        "failed": len(replies) - len(completed),
        "slo_attainment": slo_attainment(replies),
        "latency_s": distribution([reply.latency_s for reply in completed]),
        "first_text_s": distribution(first_text_s),
        "requests_per_s": _rate(len(completed), end_s),
        "text_tokens_per_s": _rate(sum(reply.text_tokens for reply in completed), end_s),
        "goodput_per_s": _rate(sum(reply.slo_met for reply in completed), end_s),
        "mean_threshold": mean_threshold(completed),
        "mean_steps": float(np.mean([reply.steps for reply in completed])) if completed else None,
        "migrations": sum(reply.migrations for reply in completed),
        "timeline": timeline(replies, duration_s, instances),
    }
    return result | {"accuracy": sum(graded) / len(graded)} if graded else result


def distribution(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and percentiles; None without values."""
    percentiles = {f"p{q}": float(np.percentile(values, q)) if values else None for q in (50, 90, 99)}
    return {"mean": float(np.mean(values)) if values else None, **percentiles}


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def slo_attainment(replies: Sequence[LoadReply]) -> float | None:
    return sum(reply.slo_met for reply in replies) / len(replies) if replies else None


def mean_threshold(completed: Sequence[LoadReply]) -> float | None:
    tokens = sum(reply.output_tokens for reply in completed)
    return sum(reply.mean_threshold * reply.output_tokens for reply in completed) / tokens if tokens else None


def timeline(
    replies: Sequence[LoadReply], duration_s: float, instances: Sequence[InstancesAt] = ()
) -> list[dict[str, Any]]:
    """One entry per BUCKET_S; `rps` counts arrivals."""
    buckets: list[list[LoadReply]] = [[] for _ in range(max(1, int(np.ceil(duration_s / BUCKET_S))))]
    for reply in replies:
        buckets[min(int(reply.arrival_s / BUCKET_S), len(buckets) - 1)].append(reply)
    return [_entry(number * BUCKET_S, bucket, instances) for number, bucket in enumerate(buckets)]


def _entry(at_s: float, arrived: Sequence[LoadReply], instances: Sequence[InstancesAt]) -> dict[str, Any]:
    completed = [reply for reply in arrived if reply.error is None]
    latency_s = [reply.latency_s for reply in completed]
    counted = [counts for since_s, counts in instances if since_s <= at_s] or [counts for _, counts in instances[:1]]
    return {
        "t_s": at_s,
        "rps": len(arrived) / BUCKET_S,
        "slo_attainment": slo_attainment(arrived),
        "mean_threshold": mean_threshold(completed),
        "mean_latency_s": float(np.mean(latency_s)) if completed else None,
        "p99_latency_s": float(np.percentile(latency_s, 99)) if completed else None,
        "instances_per_tp": counted[-1] if counted else {},
    }

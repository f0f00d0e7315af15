"""Summarizes a load: RESULT.json, with the figures that a simulation has too."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from dilaserve.load.client import InstancesAt, LoadReply
from simulator.result import Records, distribution, mean, outcomes, timeline
from simulator.workload import make_trace

BUCKET_S = 1.0  # of the timeline


def summarize(replies: Sequence[LoadReply], duration_s: float, instances: Sequence[InstancesAt] = ()) -> dict[str, Any]:
    """The result of a load. A failed request has missed its SLO; a mean of nothing is None.

    `mean_threshold` is weighted by the output tokens of each request. Rates are per second until the last reply;
    goodput counts the requests that met their SLO. `timeline` is by arrival time.
    """
    records, completed = _records(replies), [reply for reply in replies if reply.error is None]
    first_text_s = [reply.first_text_s for reply in completed if reply.first_text_s is not None]
    end_s = max((reply.arrival_s + reply.latency_s for reply in replies), default=0.0)
    graded = [reply.correct for reply in completed if reply.correct is not None]
    tokens = np.array([reply.output_tokens for reply in replies], dtype=np.int64)
    last_s = max(np.ceil(duration_s / BUCKET_S) - 1, 0) * BUCKET_S  # a later arrival counts with the last entry
    arrival_s = np.array([min(reply.arrival_s, last_s) for reply in replies])
    records.instances_at = [(0.0, instances[0][1]), *instances] if instances else []
    done = records.completed
    result = {
        **outcomes(records, np.full(len(replies), fill_value=True)),
        "first_text_s": distribution(np.array(first_text_s)),
        "requests_per_s": _rate(len(completed), end_s),
        "text_tokens_per_s": _rate(sum(reply.text_tokens for reply in completed), end_s),
        "goodput_per_s": _rate(int(records.met.sum()), end_s),
        "mean_threshold": mean(records.mean_threshold[done], tokens[done]),
        "mean_steps": mean(records.steps[done]),
        "migrations": int(records.migrations.sum()),
        "timeline": timeline(records, make_trace(arrival_s, tokens, tokens), BUCKET_S, last_s),
    }
    return result | {"accuracy": sum(graded) / len(graded)} if graded else result


def _records(replies: Sequence[LoadReply]) -> Records:
    """An SLO is infinite where the server reports that it was met, so that only its judgement counts."""
    records = Records(np.array([inf if reply.slo_met else -inf for reply in replies]))
    for i, reply in enumerate(replies):
        if reply.error is None:
            records.latency_s[i], records.mean_threshold[i] = reply.latency_s, reply.mean_threshold
            records.steps[i], records.migrations[i] = reply.steps, reply.migrations
    return records


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None

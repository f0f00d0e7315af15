"""The arrivals of the load points."""

from dataclasses import fields, replace

import numpy as np

from shared.arrays import Float64
from simulator.lengths import DATA, benchmark_lengths, rows_of, sharegpt_lengths
from simulator.workload import (
    ArrivalTrace,
    constant_rate_trace,
    make_trace,
    real_world_trace,
    sorted_by_arrival,
    varying_rate_trace,
)

SERVEGEN = "servegen_10min.csv.gz"
SERVEGEN_MODEL = "m-small"  # of the two the one with a daily cycle
SERVEGEN_WINDOW_S = 25.0  # the 144 windows of a day take one hour
WINDOWS_A_DAY = 144
MOONCAKE = "mooncake_conversation_minute.csv.gz"
STEP_RPS = 2.0  # before the step, if the rate after it is STEP_TO_RPS
STEP_TO_RPS = 20.0
STEP_S, AFTER_STEP_S = 300.0, 600.0
TIGHT_SLO_S, LOOSE_SLO_S = 6.6, 39.6
INFEASIBLE_SLO_S, PATIENT_SLO_S = 0.5, 86_400.0
FLOOD_KEY, OTHER_KEYS = "flood", ("a", "b", "c", "d")


def arrivals(workload: str, rps: float, random: np.random.Generator, *, copies: int = 1) -> ArrivalTrace:
    """The arrivals at a rate, of rates that vary the highest; a benchmark has `copies` of each of its samples."""
    match workload:
        case "trace":
            return real_world_trace(sharegpt_lengths(), rps, random)
        case "step":
            rates = rps * np.array([STEP_RPS / STEP_TO_RPS] + [1.0] * round(AFTER_STEP_S / STEP_S))
            return varying_rate_trace(sharegpt_lengths(), rates, STEP_S, random)
        case "servegen":
            rates = rps * servegen_day()
            return varying_rate_trace(sharegpt_lengths(), rates, SERVEGEN_WINDOW_S, random)
        case "mooncake":
            return varying_rate_trace(sharegpt_lengths(), rps * mooncake_hour(), 60.0, random)
        case _:
            return constant_rate_trace(benchmark_lengths(workload), rps, random, copies)


def servegen_day() -> Float64:
    """The rates of the first day without a gap, the highest scaled to 1. Shapes: [WINDOWS_A_DAY]."""
    rates = np.array([float(row["mean_rps"]) for row in rows_of(DATA / SERVEGEN) if row["model"] == SERVEGEN_MODEL])
    days = rates.reshape(-1, WINDOWS_A_DAY)
    first = days[(days > 0).all(axis=1)][0]
    scaled: Float64 = first / first.max()
    return scaled


def mooncake_hour() -> Float64:
    """The rates of each minute, the highest scaled to 1; the last, partial minute is left out. Shapes: [minutes]."""
    counts = np.array([float(row["requests"]) for row in rows_of(DATA / MOONCAKE)])[:-1]
    scaled: Float64 = counts / counts.max()
    return scaled


def with_mixed_slos(workload: ArrivalTrace, slos_s: tuple[float, float], random: np.random.Generator) -> ArrivalTrace:
    """Half of the requests, picked at random, with the first of two SLOs, the others with the second."""
    tight = random.permutation(len(workload)) < len(workload) // 2
    return replace(workload, slo_s=np.where(tight, *slos_s))


def with_other_slo(workload: ArrivalTrace, slo_s: float, share: float, random: np.random.Generator) -> ArrivalTrace:
    """A share of the requests, picked at random, with an SLO of their own, the others with the usual one."""
    return replace(workload, slo_s=np.where(random.random(len(workload)) < share, slo_s, np.nan))


def with_flood(workload: ArrivalTrace, rps: float, random: np.random.Generator) -> ArrivalTrace:
    """The requests, of OTHER_KEYS at random, and at the same time those of FLOOD_KEY at this rate, with lengths drawn
    from them."""
    workload = replace(workload, key=random.choice(OTHER_KEYS, len(workload)))
    end_s = float(workload.arrival_s[-1])
    arrival_s = np.sort(random.uniform(0.0, end_s, round(rps * end_s)))
    drawn = random.integers(len(workload), size=len(arrival_s))
    flood = make_trace(arrival_s, workload.prompt_tokens[drawn], workload.output_tokens[drawn])
    return sorted_by_arrival([workload, replace(flood, key=np.full(len(flood), FLOOD_KEY))])


def first_requests(workload: ArrivalTrace, number: int) -> ArrivalTrace:
    return ArrivalTrace(*(getattr(workload, column.name)[:number] for column in fields(workload)))

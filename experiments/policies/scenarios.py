"""Two situations that no load point shows: one large request among many, and two API keys of which one has a burst.

python -m experiments.policies.scenarios [--rows dilaserve,llumnix-0.9] [--seeds 0,1,2]
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.policies.arrivals import first_requests
from experiments.policies.points import FULL_SCALE, POINTS, POLICY
from experiments.policies.rows import SYSTEMS, System
from experiments.policies.runs import Run
from experiments.policies.study import selected
from experiments.report import RESULTS, Report
from simulator.lengths import DATA, benchmark_lengths
from simulator.result import summarize
from simulator.scenario import simulate
from simulator.workload import ArrivalTrace, make_trace, sorted_by_arrival

POINT = POINTS["gsm8k-16"]  # profile, steps table, lengths and SLO of both situations
LARGE_PROMPT, LARGE_OUTPUT, LARGE_AT_S = 6000, 256, 30.0  # three quarters of an instance
OVERLOAD_RPS, OVERLOAD_REQUESTS = 1.4, 400  # on one instance: GSM8K 22, beyond all capacity
NEIGHBOUR_S = 30.0  # neighbours arrive within this time of the large request
MAX_LATENCY_RATIO = 3.0  # of the large request to its neighbours
TOP_THRESHOLD = 0.895  # mean threshold of the completed requests, above which the level stayed at 0.9
CAPACITY_RPS = (6, 7, 8, 9, 10, 11, 12)  # of FULL_SCALE instances
KEYS_S = 200.0
OWN_SHARE, BURST_SHARE = 0.5, 2.5  # of the capacity: the first key's rate and the second's
MAX_LOST_ATTAINMENT, MAX_LOST_ACCURACY = 1.0, 0.3  # points, of the first key against being alone


def starvation_trace(seed: int, data: Path) -> tuple[ArrivalTrace, int]:
    """A lasting overload of GSM8K requests, and the index of one large request among them."""
    random = np.random.default_rng(seed)
    workload = first_requests(POINT.arrivals(seed, data), OVERLOAD_REQUESTS)
    arrival_s = np.cumsum(random.exponential(1 / OVERLOAD_RPS, len(workload)))
    prompts, outputs = workload.prompt_tokens.copy(), workload.output_tokens.copy()
    large = int(np.searchsorted(arrival_s, LARGE_AT_S))
    prompts[large], outputs[large] = LARGE_PROMPT, LARGE_OUTPUT
    return make_trace(arrival_s, prompts, outputs), large


def keyed_trace(rps: Mapping[str, float], duration_s: float, seed: int, data: Path) -> ArrivalTrace:
    """GSM8K requests of each key at its rate; those of a key do not depend on the other keys."""
    lengths, parts = benchmark_lengths("gsm8k", data), []
    for number, (key, rate) in enumerate(rps.items()):
        random = np.random.default_rng((seed, number))
        count = random.poisson(rate * duration_s)
        part = make_trace(np.sort(random.uniform(0, duration_s, count)), *lengths.draw(random, count))
        parts.append(replace(part, key=np.full(count, key)))
    return sorted_by_arrival(parts)


def starvation(row: System, seed: int, data: Path) -> tuple[float, float]:
    """The latency of the large request, and the mean of its neighbours', in seconds."""
    workload, large = starvation_trace(seed, data)
    scenario = Run(replace(POINT, instances=1), row, seed).scenario(first_requests(workload, large))
    records = simulate(scenario, workload)
    near = np.abs(workload.arrival_s - workload.arrival_s[large]) <= NEIGHBOUR_S
    near[large] = False
    return float(records.latency_s[large]), float(records.latency_s[near].mean())


def capacity_rps(row: System, data: Path) -> float:
    """The highest rate of CAPACITY_RPS at which the thresholds stay at the top, for the point's instances."""
    scale = POINT.instances / FULL_SCALE
    sustained = 0.0
    for rps in CAPACITY_RPS:
        workload = keyed_trace({"only": rps * scale}, KEYS_S, 0, data)
        records = simulate(Run(POINT, row, 0).scenario(workload), workload)
        if float(np.average(records.mean_threshold, weights=workload.output_tokens)) < TOP_THRESHOLD:
            break
        sustained = rps * scale
    return sustained


def first_key(
    row: System, rps: Mapping[str, float], seed: int, data: Path, *, fair: bool = True
) -> tuple[float, float, float]:
    """Attainment and accuracy of the first key's requests in percent, and their mean latency in seconds. Unless `fair`,
    the scheduler knows no keys."""
    workload = keyed_trace(rps, KEYS_S, seed, data)
    served = workload if fair else replace(workload, key=np.full(len(workload), ""))
    records = simulate(Run(POINT, row, seed).scenario(workload), served)
    figures = summarize(records, workload)["keys"][next(iter(rps))]
    return 100 * figures["slo_attainment"], 100 * figures["accuracy"], figures["latency_s"]["mean"]


def report_burst(report: Report, row: System, capacity: float, seeds: Sequence[int]) -> None:
    """Compare the first key beside the burst with being alone, and with a scheduler that knows no keys."""
    alone = {"first": OWN_SHARE * capacity}
    burst = alone | {"second": BURST_SHARE * capacity}
    cases = {"alone": (alone, True), "beside the burst": (burst, True), "without keys": (burst, False)}
    means = {}
    for name, (rps, fair) in cases.items():
        runs = np.array([first_key(row, rps, seed, DATA, fair=fair) for seed in seeds])
        means[name] = runs.mean(axis=0)
        attainment, accuracy, latency_s = means[name].tolist()
        by_seed = ", ".join(f"{run[0]:.2f} / {run[1]:.2f}" for run in runs)
        line = f"attainment / accuracy {attainment:.2f} / {accuracy:.2f} ({by_seed}), mean latency {latency_s:.1f} s"
        report.add(f"- The first key {name}: {line}")
    lost = (means["alone"] - means["beside the burst"])[:2]
    verdict = "reached" if lost[0] <= MAX_LOST_ATTAINMENT and lost[1] <= MAX_LOST_ACCURACY else "MISSED"
    report.add(f"Beside the burst it loses {lost[0]:.2f} points of attainment and {lost[1]:.2f} of accuracy: {verdict}")


def main(
    *,
    rows: Annotated[str, typer.Option(help="Rows, comma-separated; * matches any text.")] = f"{POLICY},llumnix-0.9",
    seeds: Annotated[str, typer.Option(help="Seeds, comma-separated.")] = "0,1,2",
    out: Annotated[Path, typer.Option(help="File of the report.")] = RESULTS / "policy_scenarios.md",
) -> None:
    """Print both tables, and whether the targets are reached."""
    report = Report("A large request, and a burst of one key", f"Seeds: {seeds}. GSM8K lengths, TP-1 instances.")
    systems, numbers = [SYSTEMS[name] for name in selected(SYSTEMS, rows)], [int(seed) for seed in seeds.split(",")]
    for row in systems:
        for seed in numbers:
            large_s, near_s = starvation(row, seed, DATA)
            verdict = "reached" if large_s <= MAX_LATENCY_RATIO * near_s else "MISSED"
            line = f"the large request {large_s:.1f} s, its neighbours {near_s:.1f} s: {verdict}"
            report.add(f"- {row.name}, one instance, seed {seed}: {line}")
    policy = SYSTEMS[POLICY]
    capacity = capacity_rps(policy, DATA)
    report.add(f"The level stays at the top up to {capacity:.2f} requests/s on {POINT.instances} instances.")
    report_burst(report, policy, capacity, numbers)
    report.write(out)


if __name__ == "__main__":
    typer.run(main)

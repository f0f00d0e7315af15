"""Bursts of requests with a short SLO on live clusters with and without `--shed`: met, late and refused requests.

python -m experiments.shedding

Both clusters of a policy have one instance of the demo model with one thread, and get the same bursts in turn. The
cluster without `--shed` shows how many requests of a burst can meet the SLO; with it, no fewer should.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from dilaserve.load.client import LoadReply
from experiments.closed_loop import closed_loop
from experiments.live_cluster import one_instance, unlearnt_requests
from experiments.report import RESULTS, Report, target_list
from experiments.standard_errors import mean_and_error, mean_difference
from services.scheduler.registry import DEFAULT_POLICY

OUTPUT_TOKENS = 64
LOOSE_SLO_S = 60.0  # always met
WARM_UP_REQUESTS = 32
PAUSE_S = 2.0  # before each burst: the scheduler publishes the work left once a second
CLUSTERS = {"without": (), "with": ("--shed",)}
OUTCOMES = ("met", "late", "refused")


def main(
    *,
    policies: Annotated[str, typer.Option(help="As of `up`.")] = f"{DEFAULT_POLICY},fixed",
    requests: Annotated[int, typer.Option(min=1, help="Requests of a burst, sent at once.")] = 40,
    slo_ms: Annotated[float, typer.Option(min=1, help="SLO of the requests.")] = 300.0,
    bursts: Annotated[int, typer.Option(min=2, help="Bursts on each cluster.")] = 8,
    out: Annotated[Path, typer.Option(help="File of the report.")] = RESULTS / "shedding.md",
) -> None:
    """Print requests per burst with standard errors, and whether no fewer meet their SLO with shedding."""
    report = Report("Bursts with and without shedding", f"{bursts} bursts of {requests} requests, SLO {slo_ms:g} ms.")
    report.add_columns("policy", "--shed", *OUTCOMES)
    reached: dict[str, bool] = {}
    for policy in policies.split(","):
        found = measure(policy, requests, slo_ms / 1000, bursts)
        for name, counts in found.items():
            report.add_row(policy, name, *(cell([count[kind] for count in counts]) for kind in OUTCOMES))
        more, error = mean_difference(*([count["met"] for count in found[name]] for name in ("with", "without")))
        text = f"{policy}: {more:+.1f} ± {error:.1f} requests per burst meet their SLO with --shed"
        reached[f"{text} (target: no fewer, within two standard errors)"] = more >= -2 * error
    report.add(target_list(reached))
    report.write(out)


def measure(policy: str, requests: int, slo_s: float, bursts: int) -> dict[str, list[Counter[str]]]:
    """The outcomes of each burst, by cluster."""
    rows = unlearnt_requests(OUTPUT_TOKENS)
    found: dict[str, list[Counter[str]]] = {name: [] for name in CLUSTERS}
    with ExitStack() as stack:
        clusters = {name: one_instance("--policy", policy, *options) for name, options in CLUSTERS.items()}
        urls = {name: stack.enter_context(cluster).url for name, cluster in clusters.items()}
        for url in urls.values():
            closed_loop(url, rows[:WARM_UP_REQUESTS], WARM_UP_REQUESTS, LOOSE_SLO_S, {})
        for number in range(bursts):
            sent = [rows[(number * requests + index) % len(rows)] for index in range(requests)]
            for name, url in urls.items():
                time.sleep(PAUSE_S)
                replies, _ = closed_loop(url, sent, requests, slo_s, {})
                found[name].append(Counter(map(outcome, replies)))
    return found


def outcome(reply: LoadReply) -> str:
    """One of OUTCOMES. Raises: RuntimeError if the request failed otherwise."""
    if reply.error is None:
        return "met" if reply.slo_met else "late"
    if not reply.error.startswith("429 "):
        raise RuntimeError(reply.error)
    return "refused"


def cell(counts: Sequence[int]) -> str:
    mean, error = mean_and_error(counts)
    return f"{mean:.1f} ± {error:.1f}"


if __name__ == "__main__":
    typer.run(main)

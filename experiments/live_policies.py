"""The policies on the embedded cluster: the demo model, held-out problems, Poisson load over HTTP.

python -m experiments.live_policies --loads 0.4,0.8,0.85 --duration 40

The latency profile is measured first, as by `dilaserve profile`, then the cluster under `infaas`. The SLO is 5 times
the isolated latency: the latency at the highest threshold of requests that are alone on the cluster. A load of 1 is the
rate that the cluster sustains at the highest threshold: the rate at which it completes a burst. At a load of 0.85 half
of the requests at the highest threshold miss their SLO, because arrivals are bursty. Every policy gets the same
requests at the same times, all loads on one cluster. Stored results are not measured again, so a run can be
interrupted and resumed, or run in parts (`--policies`).

An instance has one thread, so that the services have the other of two cores to themselves, as they have when the model
runs on a GPU. The lowest candidate threshold is 0.7: exact match falls steeply below it (models/demo/README.md).
"""

import asyncio
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dilaserve.commands.up import DEMO_MODEL
from dilaserve.load.client import LoadReply, run_load
from dilaserve.load.summary import summarize
from dilaserve.load.workload import LoadRequest, RequestLoad, poisson_arrivals
from experiments.live_cluster import held_out_requests, live_cluster
from experiments.report import RESULTS, environment_header, markdown_row, markdown_table, target_list

POLICIES = ("dilaserve", "llumnix", "infaas")
STORE = RESULTS / "live_policies.json"
PROFILE = RESULTS / "live_policies_profile.csv"
SLO_SCALE = 5.0  # SLO over isolated latency
ISOLATED_REQUESTS = 30  # measure the isolated latency
BURST_REQUESTS = 150  # sent at once, to measure the sustained rate
MIN_GAIN, MAX_LOSS = 0.30, 0.02  # at the highest load: attainment above both; exact match below the better one
MAX_SPREAD = 0.01  # difference of exact match between policies at the lowest load

COLUMNS = (
    *("load", "requests/s", "policy", "requests", "failed", "SLO attainment", "exact match", "mean threshold"),
    *("mean steps", "mean latency, s", "p99, s"),
)
ROW = (
    "{load:g} {rate:.1f} {policy} {requests} {failed} {slo_attainment:.1%} {accuracy:.1%} {mean_threshold:.3f} "
    "{mean_steps:.1f} {latency_s[mean]:.2f} {latency_s[p99]:.2f}"
)

Options = dict[str, str]  # of the command line, with their values


class PolicyResults(msgspec.Struct, kw_only=True):
    """All measurements so far, in live_policies.json."""

    setting: Options  # common to all cells
    slo_s: float
    sustained_rps: float
    cells: list[dict[str, Any]] = []  # one per policy and load

    @property
    def calibration(self) -> str:
        return (
            f"SLO {self.slo_s:.2f} s, {SLO_SCALE:g} times the isolated latency; "
            f"a load of 1 is {self.sustained_rps:.1f} requests/s"
        )

    def cell(self, policy: str, load: float) -> dict[str, Any] | None:
        return next((cell for cell in self.cells if (cell["policy"], cell["load"]) == (policy, load)), None)


def main(
    *,
    loads: Annotated[str, typer.Option(help="Shares of the sustained rate, ascending.")] = "0.4,0.8,0.85",
    duration: Annotated[float, typer.Option(help="Seconds of arrivals at each load.")] = 40.0,
    policies: Annotated[str, typer.Option(help="Policies to run now.")] = ",".join(POLICIES),
    thresholds: Annotated[str, typer.Option(help="Candidate thresholds; baselines use the highest.")] = "0.7,0.8,0.9",
    output_tokens: Annotated[int, typer.Option(help="Output tokens of each request.")] = 64,
    cache: Annotated[str, typer.Option(help="KV cache of the workers.")] = "dual",
    instances: Annotated[str, typer.Option(help="As for `dilaserve up`.")] = "1x1",
    afresh: Annotated[bool, typer.Option("--afresh", help="Discard the stored results.")] = False,
) -> None:
    """Print the table; when it is complete, write it with a plot to experiments/results/live_policies.*."""
    up = {"--thresholds": thresholds, "--cache": cache, "--instances": instances}
    setting = {**up, "--duration": f"{duration:g}", "--output-tokens": str(output_tokens)}
    rows = held_out_requests(output_tokens)
    os.environ |= {"DILASERVE_PROFILE": str(PROFILE), "DILASERVE_THREADS": "1"}  # for the workers
    results = None if afresh or not STORE.exists() else msgspec.json.decode(STORE.read_bytes(), type=PolicyResults)
    if results is None or results.setting != setting:
        measure_profile()
        slo_s, sustained_rps = calibrate(rows, up)
        results = PolicyResults(setting=setting, slo_s=slo_s, sustained_rps=sustained_rps)
        store(results)
    print(f"{environment_header()}\n{results.calibration}\n\n{markdown_table(COLUMNS, ())}", flush=True)
    wanted = [float(load) for load in loads.split(",")]
    for policy in policies.split(","):
        measure(results, rows, policy, [load for load in wanted if results.cell(policy, load) is None], duration, up)
    if all(results.cell(policy, load) for policy in POLICIES for load in wanted):
        write_report(results, wanted)


def measure_profile() -> None:
    """Measure PROFILE with one thread, like the instance's."""
    options = ("--threads", "1", "--max-tokens", "2048", "--dtype", "float32", "--repeats", "9", "--out", str(PROFILE))
    command = [sys.executable, "-m", "dilaserve", "profile", "--model", str(DEMO_MODEL), *options]
    subprocess.run(command, check=True)


def calibrate(rows: list[LoadRequest], up: Options) -> tuple[float, float]:
    """The SLO, in seconds, and the rate that the cluster sustains at the highest threshold, in requests/s."""

    with live_cluster("--policy", "infaas", *options(up)) as cluster:
        warm_up(cluster.url, rows)
        alone = [reply for row in rows[:ISOLATED_REQUESTS] for reply in send(cluster.url, [row], [0.0], 60.0)]
        began_s = time.perf_counter()
        send(cluster.url, rows, [0.0] * BURST_REQUESTS, 600.0)
        sustained_rps = BURST_REQUESTS / (time.perf_counter() - began_s)
    return SLO_SCALE * summarize(alone, 1.0)["latency_s"]["mean"], sustained_rps


def measure(
    results: PolicyResults, rows: list[LoadRequest], policy: str, loads: list[float], duration_s: float, up: Options
) -> None:
    """Measure one policy on one cluster: a warm-up, then one load after another, each completed before the next."""
    if not loads:
        return
    with live_cluster("--policy", policy, *options(up)) as cluster:
        warm_up(cluster.url, rows)
        for load in loads:
            rate_rps = load * results.sustained_rps
            replies = send(cluster.url, rows, poisson_arrivals(rate_rps, duration_s, seed=1), results.slo_s)
            cell = {"policy": policy, "load": load, "rate": rate_rps, **summarize(replies, duration_s)}
            print(markdown_row(row(cell)), flush=True)
            results.cells.append(cell | {"timeline": []})
            store(results)


def warm_up(url: str, rows: list[LoadRequest]) -> None:
    send(url, rows, poisson_arrivals(4, 5, seed=99), 60.0)


def send(url: str, rows: list[LoadRequest], arrivals_s: list[float], slo_s: float) -> list[LoadReply]:
    """Run a load, and print its failures."""
    return asyncio.run(run_load(url, RequestLoad(rows, arrivals_s, 0.0), slo_s, report_failure))


def report_failure(reply: LoadReply) -> None:
    if reply.error is not None:
        print(f"failed, sent at {reply.arrival_s:.1f} s: {reply.error}", file=sys.stderr, flush=True)


def options(up: Options) -> list[str]:
    return [part for option in up.items() for part in option]


def store(results: PolicyResults) -> None:
    RESULTS.mkdir(exist_ok=True)
    STORE.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))


def row(cell: dict[str, Any]) -> list[str]:
    """The cells of a table's row."""
    return ROW.format(**cell).split()


def targets(results: PolicyResults, loads: list[float]) -> dict[str, bool]:
    """Each target, and whether it is reached."""
    low, high = ([results.cell(policy, load) or {} for policy in POLICIES] for load in (min(loads), max(loads)))
    own, *others = high
    gain = own["slo_attainment"] - max(cell["slo_attainment"] for cell in others)
    loss = max(cell["accuracy"] for cell in others) - own["accuracy"]
    spread = max(cell["accuracy"] for cell in low) - min(cell["accuracy"] for cell in low)
    return {
        f"highest load: attainment {100 * gain:+.1f} points against the better baseline (target: 30)": gain >= MIN_GAIN,
        f"highest load: exact match {-100 * loss:+.1f} points against the better baseline (target: at least -2)": loss
        <= MAX_LOSS,
        "lowest load: all attain at least 99 %": all(cell["slo_attainment"] >= 0.99 for cell in low),
        f"lowest load: exact match differs by {100 * spread:.1f} points (target: at most 1)": spread <= MAX_SPREAD,
    }


def write_report(results: PolicyResults, loads: list[float]) -> None:
    cells = [cell for load in loads for policy in POLICIES if (cell := results.cell(policy, load))]
    verdict = target_list(targets(results, loads))
    print(f"\n{verdict}")
    text = (
        f"# Policies on the live embedded cluster\n\n{environment_header()}\n\n"
        f"{results.calibration}. {shlex.join(options(results.setting))}\n\n"
        f"{markdown_table(COLUMNS, map(row, cells))}\n\n{verdict}\n\n![](live_policies.png)\n"
    )
    (RESULTS / "live_policies.md").write_text(text, encoding="utf-8")
    plot(cells, RESULTS / "live_policies.png")


def plot(cells: list[dict[str, Any]], path: Path) -> None:
    """SLO attainment and exact match over the rate, one line per policy."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, name, title in zip(
        figure.subplots(1, 2), ("slo_attainment", "accuracy"), ("SLO attainment", "exact match"), strict=True
    ):
        for policy in POLICIES:
            own = [cell for cell in cells if cell["policy"] == policy]
            axes.plot([c["rate"] for c in own], [100 * c[name] for c in own], marker="o", label=policy)
        axes.set(xlabel="requests/s", ylabel="%", title=title, ylim=(0, 102))
        axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)

"""The policies side by side on the real embedded cluster: the demo model, held-out problems, Poisson load.

python -m experiments.live_policies --rates 2,6,10 --slo 3 --duration 60
"""

import asyncio
import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dilaserve.commands.up import DEMO_MODEL
from dilaserve.load.client import run_load
from dilaserve.load.summary import summarize
from dilaserve.load.workload import poisson_arrivals, read_requests
from experiments.live_cluster import live_cluster

POLICIES = ("dilaserve", "llumnix", "infaas")
THRESHOLDS = "0.5,0.6,0.7,0.8,0.9"
RESULTS = Path(__file__).parent / "results"


def run_policy(
    policy: str, rates: list[float], slo_s: float, duration_s: float, output_tokens: int, *up: object
) -> list[dict[str, Any]]:
    """One cluster, one load after another, each ended before the next; a warm-up load first, not counted."""
    rows = [
        msgspec.structs.replace(row, output_tokens=output_tokens) for row in read_requests(DEMO_MODEL / "heldout.jsonl")
    ]
    results = []
    with live_cluster("--policy", policy, "--thresholds", THRESHOLDS, *up) as url:
        asyncio.run(run_load(url, rows, poisson_arrivals(2, 5, seed=99), 60.0, lambda _reply: None))
        for rate in rates:
            arrivals_s = poisson_arrivals(rate, duration_s, seed=1)
            replies = asyncio.run(run_load(url, rows, arrivals_s, slo_s, lambda _reply: None))
            result = {"policy": policy, "rate": rate, **summarize(replies, duration_s)}
            print(line(result), flush=True)
            results.append(result)
    return results


def line(result: dict[str, Any]) -> str:
    """One row of the table."""
    return (
        f"| {result['policy']} | {result['rate']:g} | {result['requests']} | {result['failed']} "
        f"| {result['slo_attainment']:.1%} | {result['accuracy']:.1%} | {result['mean_threshold']:.3f} "
        f"| {result['mean_steps']:.1f} | {result['latency_s']['mean']:.2f} | {result['latency_s']['p99']:.2f} |"
    )


HEAD = (
    "| policy | requests/s | requests | failed | SLO attainment | exact match | mean threshold | mean steps "
    "| mean latency, s | p99, s |\n" + "| --- " * 10 + "|"
)


def main(
    *,
    rates: Annotated[str, typer.Option(help="Requests a second, several separated by commas.")] = "2,6,10",
    slo: Annotated[float, typer.Option(help="Seconds.")] = 3.0,
    duration: Annotated[float, typer.Option(help="Seconds of arrivals at each rate.")] = 60.0,
    output_tokens: Annotated[int, typer.Option(help="Of each request.")] = 64,
    cache: Annotated[str, typer.Option(help="KV cache of the workers.")] = "dual",
    instances: Annotated[str, typer.Option(help="As for `dilaserve up`.")] = "2x1",
) -> None:
    """Print the table, and write it with a plot to experiments/results/live_policies.*."""
    command = f"python -m experiments.live_policies {' '.join(sys.argv[1:])}"
    print(f"{command}\n{platform.machine()}, Python {platform.python_version()}\n\n{HEAD}", flush=True)
    results: list[dict[str, Any]] = []
    for policy in POLICIES:
        results += run_policy(
            policy, [float(r) for r in rates.split(",")], slo, duration, output_tokens,
            "--cache", cache, "--instances", instances,
        )  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    table = "\n".join(line(result) for result in results)
    text = f"# Policies on the live embedded cluster\n\n`{command}` on {machine()}, SLO {slo:g} s\n\n{HEAD}\n{table}\n"
    (RESULTS / "live_policies.md").write_text(text + "\n![](live_policies.png)\n", encoding="utf-8")
    plot(results, RESULTS / "live_policies.png")


def machine() -> str:
    import os  # noqa: PLC0415

    return f"{os.cpu_count()} cores of {platform.machine()}, Python {platform.python_version()}"


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """SLO attainment and exact match over the rate, a line a policy."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, name, title in zip(
        figure.subplots(1, 2), ("slo_attainment", "accuracy"), ("SLO attainment", "exact match"), strict=True
    ):
        for policy in POLICIES:
            own = [result for result in results if result["policy"] == policy]
            axes.plot([r["rate"] for r in own], [100 * r[name] for r in own], marker="o", label=policy)
        axes.set(xlabel="requests/s", ylabel="%", title=title, ylim=(0, 102))
        axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)

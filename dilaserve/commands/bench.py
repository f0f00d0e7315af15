"""`dilaserve bench`: load on a live gateway."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dilaserve.outputs import check_figure, check_file
from shared.errors import BadInput

if TYPE_CHECKING:
    from rich.progress import Progress

    from dilaserve.load.client import LoadReply
    from dilaserve.load.workload import RequestLoad
    from dilaserve.quality.benchmarks import BenchmarkQuestion
    from dilaserve.quality.judge import Judge

EXAMPLE = "Example: dilaserve bench --requests models/demo/heldout.jsonl --rate 2 --duration 30 --slo 5"
DURATION_S = 30.0  # of a load of rows
JUDGE_KEY = "DILASERVE_JUDGE_KEY"


def bench(
    *,
    requests: Annotated[
        Path | None, typer.Option(help='JSONL, rows such as {"prompt": "...", "answer": "29"}.')
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Arrivals and lengths (CSV), with random prompts.")] = None,
    benchmark: Annotated[
        Literal["gsm8k", "mmlu-pro", "mbpp"] | None, typer.Option(help="The paper's questions, each sent once.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Directory of gsm8k_{test,train_500}, mmlu_pro_500 and mbpp.jsonl.gz.")
    ] = None,
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8000",
    rate: Annotated[
        float, typer.Option(min=0.001, max=1e5, help="Requests a second, on average (Poisson arrivals).")
    ] = 1.0,
    duration: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1e7, help="Seconds in which requests arrive.", show_default="30 for --requests, else all"
        ),
    ] = None,
    slo: Annotated[
        float | None, typer.Option(min=0.001, max=86400, help="Seconds a request may take if its row is silent.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the arrival times.")] = 0,
    judge_url: Annotated[
        str | None, typer.Option(help=f"An OpenAI-compatible server that scores replies; its key in {JUDGE_KEY}.")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="The judge's name there.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file, as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the timeline into this .png or .html.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Send requests to a gateway and report latency, SLO attainment, thresholds and how good the replies are.

    A gateway that asks for an API key gets that of DILASERVE_API_KEY.
    """
    import msgspec  # noqa: PLC0415

    from dilaserve.quality.sandbox import isolation  # noqa: PLC0415
    from dilaserve.stack.probes import check_url  # noqa: PLC0415

    check_file("--out", out)
    check_figure("--plot", plot)
    judge = _judge(judge_url, judge_model)
    load, questions = _load(requests, trace, benchmark, data, rate, duration, seed)
    result, replies = _run(check_url("--url", url), load, questions, slo, judge)
    if benchmark == "mbpp":
        result["isolation"] = isolation()
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    if plot is not None:
        from simulator.plot import draw_timelines, write_figure  # noqa: PLC0415

        write_figure(plot, draw_timelines({"": result["timeline"]}))
    if json:
        typer.echo(msgspec.json.encode(result))
    else:
        _print(result, replies)


def _load(
    requests: Path | None,
    trace: Path | None,
    benchmark: str | None,
    data: Path | None,
    rate: float,
    duration: float | None,
    seed: int,
) -> "tuple[RequestLoad, list[BenchmarkQuestion]]":
    """What is sent, and the questions that it asks, none but for a benchmark."""
    from dilaserve.load.workload import benchmark_load, read_requests, rows_load, trace_load  # noqa: PLC0415
    from dilaserve.quality.benchmarks import read_benchmark  # noqa: PLC0415
    from simulator.lengths import DATA  # noqa: PLC0415

    if sum(source is not None for source in (requests, trace, benchmark)) != 1:
        raise BadInput("one of --requests FILE.jsonl, --trace TRACE.csv and --benchmark NAME is needed")
    if trace is not None:
        load = trace_load(trace, seed)
        return (load if duration is None else load.until(duration)), []
    if benchmark is not None:
        questions = read_benchmark(benchmark, data or DATA)
        return benchmark_load(questions, rate, duration, seed), questions
    assert requests is not None
    return rows_load(read_requests(requests), rate, duration or DURATION_S, seed), []


def _run(
    url: str, load: "RequestLoad", questions: "Sequence[BenchmarkQuestion]", slo_s: float | None, judge: "Judge | None"
) -> "tuple[dict[str, Any], list[LoadReply]]":
    """The load and what is made of its replies, behind progress bars on standard error."""
    import asyncio  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    from dilaserve.load.client import API_KEY  # noqa: PLC0415
    from dilaserve.load.session import graded, judged, run_session  # noqa: PLC0415
    from dilaserve.load.summary import summarize  # noqa: PLC0415

    extra: dict[str, Any] = {}
    if judge is not None:
        asyncio.run(judge.check())
    with Progress(console=Console(stderr=True), transient=True) as progress:
        sent = _bar(progress, "requests", len(load.arrivals_s))
        replies, instances = asyncio.run(run_session(url, load, slo_s, lambda _: sent(), os.environ.get(API_KEY, "")))
        if questions:
            replies = graded(replies, questions, _bar(progress, "grading", len(replies)))
        if judge is not None:
            scored = _bar(progress, "judging", len(replies))
            extra["judge"] = asyncio.run(judged(replies, load, judge, scored))
    return summarize(replies, load.duration_s, instances) | extra, replies


def _bar(progress: "Progress", name: str, total: int) -> Callable[[], None]:
    task = progress.add_task(name, total=total)
    return lambda: progress.advance(task)


def _judge(url: str | None, model: str | None) -> "Judge | None":
    from dilaserve.quality.judge import Judge  # noqa: PLC0415

    if url is None and model is None:
        return None
    if url is None or model is None:
        raise BadInput("--judge-url URL and --judge-model NAME are needed together")
    return Judge(url, model, os.environ.get(JUDGE_KEY, ""))


def _print(result: dict[str, Any], replies: "Sequence[LoadReply]") -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    latency = result["latency_s"]
    rows = {
        "requests": f"{result['requests']} ({result['completed']} completed, {result['failed']} failed)",
        "SLO attainment": _percent(result["slo_attainment"]),
        "latency, s": ", ".join(f"{name} {_number(value)}" for name, value in latency.items()),
        "mean threshold": _number(result["mean_threshold"]),
        "mean steps": _number(result["mean_steps"]),
        "migrations": str(result["migrations"]),
        "accuracy": _percent(result.get("accuracy")),
    }
    if judge := result.get("judge"):
        rows["score, 0 to 10"] = f"{_number(judge['mean_score'])} ({judge['scored']} scored, {judge['unscored']} not)"
    if (kept := result.get("isolation")) and not kept.no_network:
        rows["isolation"] = "the programs were NOT kept from the network: this system permits no network namespace"
    table = Table(box=None, show_header=False)
    for name, text in rows.items():
        table.add_row(name, text)
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for reason, count in Counter(reply.error for reply in replies if reply.error).most_common(5):
        console.print(f"failed: {count} x {reason}", markup=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"

"""`dilaserve bench`: measures a live gateway under load."""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from dilaserve.load.client import API_KEY, InstancesAt, LoadReply, run_load
from dilaserve.load.grading import graded, judged
from dilaserve.load.summary import summarize
from dilaserve.load.workload import RequestLoad, benchmark_load, read_requests, rows_load, trace_load
from dilaserve.outputs import (
    add_bar,
    check_figure,
    check_file,
    distribution,
    number,
    open_progress,
    percent,
    print_rows,
    shared_rows,
)
from dilaserve.quality.benchmarks import DEFAULT_DIRECTORY, BenchmarkQuestion, read_benchmark
from dilaserve.quality.judge import Judge
from dilaserve.quality.sandbox import isolation
from dilaserve.stack.probes import check_url
from shared.errors import BadInput
from shared.urls import without_credentials

EXAMPLE = "Example: dilaserve bench --requests models/demo/heldout.jsonl --rate 2 --duration 30 --slo 5"
DURATION_S = 30.0  # default duration with --requests
JUDGE_KEY = "DILASERVE_JUDGE_KEY"


def bench(
    *,
    requests: Annotated[
        Path | None, typer.Option(help='JSONL, rows such as {"prompt": "...", "answer": "29"}.')
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="TRACE.csv of arrivals and lengths; the prompts are random.")
    ] = None,
    benchmark: Annotated[
        Literal["gsm8k", "mmlu-pro", "mbpp"] | None,
        typer.Option(help="Benchmark of the paper; each question is sent once."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Directory with the benchmark files (*.jsonl.gz).")] = None,
    url: Annotated[str, typer.Option(help="Gateway URL.")] = "http://127.0.0.1:8000",
    ca: Annotated[
        Path | None, typer.Option(help="PEM file of the certificates to trust, for an https URL with a private one.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.001, max=1e5, help="Mean requests per second (Poisson).")] = 1.0,
    duration: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1e7, help="Seconds of arrivals.", show_default="30 for --requests, else all requests"
        ),
    ] = None,
    slo: Annotated[
        float | None, typer.Option(min=0.001, max=86400, help="SLO in seconds of requests without one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the arrival times.")] = 0,
    judge_url: Annotated[
        str | None, typer.Option(help=f"OpenAI-compatible server that scores replies; API key: {JUDGE_KEY}.")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Model name of the judge.")] = None,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Stream the replies, to measure the time to the first text.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Output file of the result (JSON).")] = None,
    plot: Annotated[Path | None, typer.Option(help="Output file of a timeline plot (.png or .html).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Send requests to a gateway and report throughput, goodput, latency, SLO attainment, thresholds and accuracy.

    The API key, if the gateway requires one, is read from DILASERVE_API_KEY.
    """
    check_file("--out", out)
    check_figure("--plot", plot)
    judge = _judge(judge_url, judge_model)
    load, questions = _load(requests, trace, benchmark, data, rate, duration, seed)
    result, replies = _run(check_url("--url", url), load, questions, slo, judge, ca, stream=stream)
    if benchmark == "mbpp":
        result["isolation"] = isolation()
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    if plot is not None:
        from simulator.plot import draw_timelines, write_figure  # noqa: PLC0415

        title = f"{result['requests']} requests to {without_credentials(url)}"
        write_figure(plot, draw_timelines({"": result["timeline"]}, title))
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
) -> tuple[RequestLoad, list[BenchmarkQuestion]]:
    if sum(source is not None for source in (requests, trace, benchmark)) != 1:
        raise BadInput("give exactly one of --requests FILE.jsonl, --trace TRACE.csv and --benchmark NAME")
    if trace is not None:
        load = trace_load(trace, seed)
        return (load if duration is None else load.until(duration)), []
    if benchmark is not None:
        questions = read_benchmark(benchmark, data or DEFAULT_DIRECTORY)
        return benchmark_load(questions, rate, duration, seed), questions
    assert requests is not None
    return rows_load(read_requests(requests), rate, duration or DURATION_S, seed), []


def _run(
    url: str,
    load: RequestLoad,
    questions: Sequence[BenchmarkQuestion],
    slo_s: float | None,
    judge: Judge | None,
    ca: Path | None,
    *,
    stream: bool,
) -> tuple[dict[str, Any], list[LoadReply]]:
    """Send the load, then grade and judge the replies, with progress bars."""
    extra, instances = dict[str, Any](), list[InstancesAt]()
    if judge is not None:
        asyncio.run(judge.check())
    with open_progress() as progress:
        sent = add_bar(progress, "requests", len(load.arrivals_s))
        key = os.environ.get(API_KEY, "")
        sending = run_load(url, load, slo_s, lambda _: sent(), key, ca, stream=stream, instances=instances)
        replies = asyncio.run(sending)
        if questions:
            replies = graded(replies, questions, add_bar(progress, "grading", len(replies)))
        if judge is not None:
            scored = add_bar(progress, "judging", len(replies))
            extra["judge"] = asyncio.run(judged(replies, load, judge, scored))
    return summarize(replies, load.duration_s, instances) | extra, replies


def _judge(url: str | None, model: str | None) -> Judge | None:
    if url and model:
        return Judge(url, model, os.environ.get(JUDGE_KEY, ""))
    if url or model:
        raise BadInput("give both --judge-url URL and --judge-model NAME, or neither")
    return None


def _print(result: dict[str, Any], replies: Sequence[LoadReply]) -> None:
    rows = shared_rows(result) | {
        "time to first text, s": distribution(result["first_text_s"]),
        "requests/s": f"{number(result['requests_per_s'])}, within their SLO {number(result['goodput_per_s'])}",
        "text tokens/s": number(result["text_tokens_per_s"]),
        "accuracy": percent(result.get("accuracy")),
    }
    if judge := result.get("judge"):
        rows["score, 0 to 10"] = f"{number(judge['mean_score'])} ({judge['scored']} scored, {judge['unscored']} not)"
    if (isolation := result.get("isolation")) and not isolation.no_network:
        rows["isolation"] = "the programs HAD network access: this system permits no network namespace"
    print_rows(rows)
    for reason, count in Counter(reply.error for reply in replies if reply.error).most_common(5):
        typer.echo(f"failed: {count} x {reason}")

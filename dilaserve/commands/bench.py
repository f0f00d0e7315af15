"""`dilaserve bench`: load on a live gateway."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import BadInput

if TYPE_CHECKING:
    from dilaserve.load.client import Reply
    from dilaserve.load.workload import LoadRequest

EXAMPLE = "Example: dilaserve bench --requests models/demo/heldout.jsonl --rate 2 --duration 30 --slo 5"


def bench(
    *,
    requests: Annotated[Path, typer.Option(help='JSONL, rows such as {"prompt": "...", "answer": "29"}.')],
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8000",
    rate: Annotated[float, typer.Option(min=0.001, help="Requests a second, on average (Poisson arrivals).")] = 1.0,
    duration: Annotated[float, typer.Option(min=0.001, help="Seconds in which requests arrive.")] = 30.0,
    slo: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds a request may take if its row is silent.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the arrival times.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file, as JSON.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Send requests to a gateway and report latency, SLO attainment, thresholds and, given answers, accuracy."""
    import asyncio  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    from dilaserve.load.summary import summarize  # noqa: PLC0415
    from dilaserve.load.workload import poisson_arrivals, read_requests  # noqa: PLC0415

    rows, arrivals_s = read_requests(requests), poisson_arrivals(rate, duration, seed)
    if out is not None and not out.parent.is_dir():
        raise BadInput(f"--out {out}: there is no directory {out.parent}")
    replies = asyncio.run(_run(url.rstrip("/"), rows, arrivals_s, slo))
    result = summarize(replies, duration)
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    if json:
        typer.echo(msgspec.json.encode(result))
    else:
        _print(result, replies)


async def _run(url: str, rows: "list[LoadRequest]", arrivals_s: list[float], slo_s: float | None) -> "list[Reply]":
    """Run the load behind a progress bar on standard error."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    from dilaserve.load.client import run_load  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("requests", total=len(arrivals_s))
        return await run_load(url, rows, arrivals_s, slo_s, lambda _: progress.advance(bar))


def _print(result: dict[str, Any], replies: "Sequence[Reply]") -> None:
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

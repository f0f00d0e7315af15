"""The overhead of serving: the time from HTTP request to stored outcome, less the iterations that ran its steps.

python -m experiments.gateway_overhead --concurrency 1,32,256

The load is a closed loop of N connections. If N exceeds the batch of one iteration, a request also waits for iterations
of other requests; that wait counts as overhead here. Overhead is given up to the time at which the bus stored the
outcome, and up to the reply's last byte. Time to first committed text is measured on streams, one at a time.
"""

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from dilaserve.load.workload import LoadRequest
from experiments.live_cluster import chat_body, connected, held_out_requests, live_cluster
from experiments.report import RESULTS, Report
from services.scheduler.registry import DEFAULT_POLICY, PolicyName

TARGET_MS = 5.0  # for the median overhead of a request that is alone on the cluster
WARM_UP = 20  # requests on each cluster, not counted
COLUMNS = (
    *("concurrent", "requests", "total p50, ms", "p99", "steps p50, ms", "overhead until stored p50, ms", "p99"),
    *("until replied p50, ms", "p99", "steps of a request"),
)


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """Units: milliseconds; `sent_s` is Unix time."""

    request_id: str
    sent_s: float
    total_ms: float  # from the request's first byte to the reply's last
    step_ms: float
    steps: int

    @property
    def overhead_ms(self) -> float:
        return self.total_ms - self.step_ms


class Connection:
    """A client with little overhead of its own: one keep-alive connection, one request at a time."""

    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> "Connection":
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(f"{host}:{port}", *await asyncio.open_connection(host, int(port)))

    async def complete(self, row: LoadRequest) -> TimedRequest:
        content = self._request(row, stream=False)
        sent_s, start_s = time.time(), time.perf_counter()
        headers = await self._send(content)
        length = next(int(line[15:]) for line in headers.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        content = await self._reader.readexactly(length)
        total_ms = 1000 * (time.perf_counter() - start_s)
        served = json.loads(content)["dilaserve"]
        return TimedRequest(served["request_id"], sent_s, total_ms, served["step_ms"], served["steps"])

    async def first_text_ms(self, row: LoadRequest) -> float:
        """Time to first committed text of a stream, which is then read to its end."""
        content = self._request(row, stream=True)
        start_s = time.perf_counter()
        await self._send(content)
        first_s = 0.0
        while not (line := await self._reader.readline()).startswith(b"data: [DONE]"):
            if not first_s and line.startswith(b"data: ") and _has_text(line):
                first_s = time.perf_counter()
        await self._reader.readuntil(b"0\r\n\r\n")
        return 1000 * ((first_s or time.perf_counter()) - start_s)

    def _request(self, row: LoadRequest, *, stream: bool) -> bytes:
        content = chat_body(row.prompt, slo_ms=60_000, max_tokens=row.output_tokens or 64, stream=stream)
        body = json.dumps(content).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def _send(self, request: bytes) -> bytes:
        """Returns: the reply's headers. Raises: RuntimeError unless it is a success."""
        self._writer.write(request)
        headers = await self._reader.readuntil(b"\r\n\r\n")
        if not headers.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"refused: {headers.decode()}")
        return headers

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def _has_text(line: bytes) -> bool:
    choices = json.loads(line.removeprefix(b"data: "))["choices"]
    return any(choice["delta"].get("content") for choice in choices)


async def closed_loop(url: str, rows: Sequence[LoadRequest], concurrency: int, count: int) -> list[TimedRequest]:
    """Run `count` requests, `concurrency` of them at a time."""
    numbers = iter(range(count))
    timed: list[TimedRequest] = []

    async def one() -> None:
        connection = await Connection.open(url)
        for number in numbers:
            timed.append(await connection.complete(rows[number % len(rows)]))  # noqa: PERF401  (shared by the connections)
        await connection.close()

    await asyncio.gather(*(one() for _ in range(concurrency)))
    return timed


async def stored_s(nats_url: str, timed: Sequence[TimedRequest]) -> list[float]:
    """The time at which each outcome was stored, by the bus's clock. Units: Unix time."""
    async with connected(nats_url) as bus:
        stream = bus.subjects.stream("OUTCOMES")
        found = [await bus.js.get_last_msg(stream, bus.subjects.outcomes(one.request_id)) for one in timed]
    return [msg.time.timestamp() if msg.time else math.nan for msg in found]


async def first_texts(url: str, rows: Sequence[LoadRequest], count: int) -> list[float]:
    connection = await Connection.open(url)
    times_ms = [await connection.first_text_ms(rows[number % len(rows)]) for number in range(count)]
    await connection.close()
    return times_ms


def overheads_ms(timed: Sequence[TimedRequest], stored: Sequence[float]) -> list[float]:
    """The time from each request's first byte to its stored outcome, less the time of its steps."""
    return [1000 * (at_s - one.sent_s) - one.step_ms for one, at_s in zip(timed, stored, strict=True)]


def cells(timed: Sequence[TimedRequest], stored: Sequence[float]) -> list[str]:
    """The figures of one row."""
    total, steps = [one.total_ms for one in timed], [one.step_ms for one in timed]
    until_stored, until_replied = overheads_ms(timed, stored), [one.overhead_ms for one in timed]
    percentiles = ((total, 50), (total, 99), (steps, 50), (until_stored, 50), (until_stored, 99))
    return [
        *(f"{np.percentile(values, q):.2f}" for values, q in (*percentiles, (until_replied, 50), (until_replied, 99))),
        f"{np.mean([one.steps for one in timed]):.1f}",
    ]


def main(
    *,
    concurrency: Annotated[str, typer.Option(help="Numbers of concurrent requests, comma-separated.")] = "1,32,256",
    requests: Annotated[int, typer.Option(help="Requests for each of these.")] = 300,
    instances: Annotated[str, typer.Option(help="As of `dilaserve up`.")] = "1x1",
    policy: Annotated[PolicyName, typer.Option(help="As of `dilaserve up`.")] = DEFAULT_POLICY,
    out: Annotated[Path, typer.Option(help="File of the report.")] = RESULTS / "gateway_overhead.md",
) -> None:
    """Start a cluster, measure, and print the table."""
    rows = held_out_requests()
    report, verdict = Report("Gateway overhead"), ""
    report.add_columns(*COLUMNS)
    with live_cluster("--instances", instances, "--policy", policy) as cluster:
        asyncio.run(closed_loop(cluster.url, rows, 1, WARM_UP))
        for number in map(int, concurrency.split(",")):
            timed = asyncio.run(closed_loop(cluster.url, rows, number, max(requests, 4 * number)))
            stored = asyncio.run(stored_s(cluster.nats_url, timed))
            report.add_row(number, len(timed), *cells(timed, stored))
            if number == 1:
                alone_ms = float(np.median(overheads_ms(timed, stored)))
                verdict = f"Overhead until stored, p50 at 1: {alone_ms:.2f} ms (target: under {TARGET_MS}): "
                verdict += "reached." if alone_ms < TARGET_MS else "MISSED."
        first_ms = asyncio.run(first_texts(cluster.url, rows, requests))
    p50, p99 = np.percentile(first_ms, [50, 99])
    first = f"Time to first committed text, one stream at a time: p50 {p50:.2f} ms, p99 {p99:.2f} ms."
    report.add(*filter(None, (verdict, first)))
    report.write(out)


if __name__ == "__main__":
    typer.run(main)

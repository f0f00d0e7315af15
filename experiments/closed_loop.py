"""A closed loop on a live cluster: a fixed number of requests at a time, each followed by the next at once."""

import asyncio
import time
from collections.abc import Mapping, Sequence

import httpx

from dilaserve.load.client import LoadReply, open_client, request_body, send_request, served_model
from dilaserve.load.workload import LoadRequest

TIMEOUT_S = 300.0


def closed_loop(
    url: str, rows: Sequence[LoadRequest], concurrency: int, slo_s: float, fields: Mapping[str, object]
) -> tuple[list[LoadReply], float]:
    """Send each row once, with these further fields. Returns: the replies by row, and the duration in seconds."""
    return asyncio.run(_run(url, rows, concurrency, slo_s, fields))


async def _run(
    url: str, rows: Sequence[LoadRequest], concurrency: int, slo_s: float, fields: Mapping[str, object]
) -> tuple[list[LoadReply], float]:
    replies: dict[int, LoadReply] = {}
    waiting = iter(enumerate(rows))
    async with open_client(url, httpx.Timeout(TIMEOUT_S), key="") as client:
        model = await served_model(client)
        start_s = time.perf_counter()

        async def turns() -> None:
            for number, row in waiting:
                body = {**request_body(model, row, slo_s), **fields}
                replies[number] = await send_request(client, row, body, time.perf_counter() - start_s)

        await asyncio.gather(*(turns() for _ in range(concurrency)))
        return [replies[number] for number in range(len(rows))], time.perf_counter() - start_s

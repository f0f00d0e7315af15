"""The inputs of a live cluster's simulation, measured on that cluster: computing time of iterations, time of a message,
tokens per step. Nothing is tuned."""

import asyncio
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import httpx
import numpy as np

from dilaserve.load.client import open_client
from dilaserve.load.workload import LoadRequest
from experiments.live_cluster import chat_body
from experiments.live_iterations import BLOCK, RecordedIteration
from shared.errors import BadInput
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.steps_table import StepsTable

MAX_REQUESTS, MAX_TOKENS = 64, 8192  # of an iteration: the last rows of the profile
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """Units: tokens; seconds."""

    request_id: str
    prompt_tokens: int
    output_tokens: int  # of the blocks that were computed
    latency_s: float
    slo_met: bool
    mean_threshold: float
    steps: int
    computing_s: float  # total time of the iterations with its steps


async def serve(
    url: str,
    rows: Sequence[LoadRequest],
    arrivals_s: Sequence[float],
    slo_s: float,
    floor: float = 0.0,
    *,
    watched: bool = False,
) -> list[ServedRequest]:
    """Send the rows at these times; `watched` requests stream their canvas, step by step.

    Raises: BadInput if one failed.
    """

    async def one(client: httpx.AsyncClient, row: LoadRequest, at_s: float) -> str:
        await asyncio.sleep(at_s)
        return await _send(client, row, slo_s, floor, watched=watched)

    async with _client(url) as client:
        names = await asyncio.gather(*(one(client, row, at_s) for row, at_s in zip(rows, arrivals_s, strict=True)))
        return [await _read(client, name) for name in names]


async def serve_loop(url: str, rows: Sequence[LoadRequest], concurrency: int, slo_s: float) -> list[ServedRequest]:
    """Send the rows with `concurrency` of them at a time."""
    waiting = iter(rows)

    async def turns(client: httpx.AsyncClient) -> list[str]:
        return [await _send(client, row, slo_s) for row in waiting]

    async with _client(url) as client:
        names = await asyncio.gather(*(turns(client) for _ in range(concurrency)))
        return [await _read(client, name) for group in names for name in group]


def _client(url: str) -> httpx.AsyncClient:
    """One client for all requests: opening one takes the core for as long as a few steps."""
    return open_client(url, httpx.Timeout(TIMEOUT_S), key="")


async def _send(
    client: httpx.AsyncClient, row: LoadRequest, slo_s: float, floor: float = 0.0, *, watched: bool = False
) -> str:
    """Send a request and wait for its end. Returns: its id."""
    options = {"slo_ms": 1000 * slo_s, "min_threshold": floor, "stream": watched, "canvas": watched}
    body = chat_body(row.prompt, max_tokens=row.output_tokens, **options)
    reply = await client.post("/v1/chat/completions", json=body)
    if reply.is_error:
        raise BadInput(f"a request failed: {reply.text}")
    return reply.headers["X-Request-Id"]


async def _read(client: httpx.AsyncClient, name: str) -> ServedRequest:
    return read((await client.get(f"/v1/requests/{name}")).json())


def read(record: dict) -> ServedRequest:  # type: ignore[type-arg]
    """Parse the reply to GET /v1/requests/{id}. Raises: BadInput if the request failed."""
    if record["status"] != "completed":
        raise BadInput(f"a request failed: {record}")
    steps, how = record["steps"], record["dilaserve"]
    return ServedRequest(
        request_id=record["id"],
        prompt_tokens=record["usage"]["prompt_tokens"],
        output_tokens=BLOCK * (max(step["block"] for step in steps) + 1),
        latency_s=how["latency_ms"] / 1000,
        slo_met=how["slo_met"],
        mean_threshold=how["mean_threshold"],
        steps=len(steps),
        computing_s=how["step_ms"] / 1000,
    )


def fit_profile(run: Sequence[RecordedIteration], slower: float = 0.0) -> tuple[LatencyProfile, float]:
    """Fit the latency of iterations by least squares: a launch, a time per cache step, a time if there are recompute
    steps, and a time per token of these; all longer by the share `slower`.

    The error of an iteration is divided by its number of requests, so that the few large ones do not dominate.
    Returns: the profile, and the launch time in seconds, which an iteration of both kinds pays once.
    """
    cached, recomputed, tokens, y = np.array([astuple(iteration) for iteration in run], dtype=np.float64).T
    columns = np.stack([np.ones_like(y), cached, recomputed > 0, tokens], axis=1)
    weights = 1.0 / (cached + recomputed)
    fitted = np.linalg.lstsq(columns * weights[:, None], y * weights * (1 + slower), rcond=None)[0]
    launch, each, more, token = np.maximum(fitted, 0.0).tolist()
    cache = [(1, BLOCK * count, StepKind.CACHE, launch + each * count) for count in (1, MAX_REQUESTS)]
    recompute = [(1, n, StepKind.RECOMPUTE, launch + more + token * n) for n in (BLOCK, MAX_TOKENS)]
    return LatencyProfile.from_rows([*cache, *recompute]), launch


def charge_s(iteration: RecordedIteration, profile: LatencyProfile, launch_s: float) -> float:
    """The time of an iteration in a simulation, in seconds."""
    cost = profile.with_shared_launch(launch_s).cost(1)
    return float(cost.seconds(cache_tokens=BLOCK * iteration.cached, recompute_tokens=iteration.recomputed_tokens))


def slower(ran: Sequence[RecordedIteration], profile: LatencyProfile, launch_s: float) -> float:
    """The share by which the iterations took longer than in a simulation."""
    return sum(one.computing_s for one in ran) / sum(charge_s(one, profile, launch_s) for one in ran) - 1


def fit_message_s(alone: Sequence[ServedRequest]) -> float:
    """The time of a message in seconds: a lone request waits only for its steps and its messages.

    One message carries the request to the scheduler; each step has a job and a result.
    """
    waiting_s = sum(one.latency_s - one.computing_s for one in alone)
    return waiting_s / sum(1 + 2 * one.steps for one in alone)


def fit_steps(by_threshold: dict[float, list[ServedRequest]]) -> StepsTable:
    """Mean tokens per step at each threshold, made non-increasing in the threshold."""
    thresholds = np.array(sorted(by_threshold))
    means = [
        sum(one.output_tokens for one in by_threshold[c]) / sum(one.steps for one in by_threshold[c])
        for c in thresholds.tolist()
    ]
    return StepsTable(thresholds, np.maximum(np.minimum.accumulate(np.array(means)), 1.0))

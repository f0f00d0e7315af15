"""What a simulation must know of a live cluster, measured on that very cluster: how long iterations compute, what a
message takes, tokens by step. Nothing is tuned.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import httpx
import numpy as np

from dilaserve.load.workload import LoadRequest
from experiments.live_iterations import BLOCK, RecordedIteration
from shared.errors import BadInput
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.instance import iteration_s
from simulator.steps_table import StepsTable

MOST_REQUESTS, MOST_TOKENS = 64, 8192  # of an iteration: the profile's last rows
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """One request as it was served. Units: tokens; seconds."""

    request_id: str
    prompt_tokens: int
    output_tokens: int  # of the blocks that were computed
    latency_s: float
    slo_met: bool
    mean_threshold: float
    steps: int
    computing_s: float  # the iterations that its steps were part of


async def serve(
    url: str,
    rows: Sequence[LoadRequest],
    arrivals_s: Sequence[float],
    slo_s: float,
    floor: float = 0.0,
    *,
    watched: bool = False,
) -> list[Served]:
    """Send the rows at these times and read how each was served; `watched` canvases are told of, step by step.

    Raises: BadInput if one failed.
    """

    async def one(client: httpx.AsyncClient, row: LoadRequest, at_s: float) -> str:
        await asyncio.sleep(at_s)
        return await _send(client, row, slo_s, floor, watched=watched)

    async with _client(url) as client:
        names = await asyncio.gather(*(one(client, row, at_s) for row, at_s in zip(rows, arrivals_s, strict=True)))
        return [await _read(client, name) for name in names]


async def serve_in_turn(url: str, rows: Sequence[LoadRequest], together: int, slo_s: float) -> list[Served]:
    """So many of the rows at a time: each next one is sent when one is done."""
    waiting = iter(rows)

    async def turns(client: httpx.AsyncClient) -> list[str]:
        return [await _send(client, row, slo_s) for row in waiting]

    async with _client(url) as client:
        names = await asyncio.gather(*(turns(client) for _ in range(together)))
        return [await _read(client, name) for mine in names for name in mine]


def _client(url: str) -> httpx.AsyncClient:
    """One for all requests: to open one takes as long as a few steps, on a core that the cluster then lacks."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=TIMEOUT_S, trust_env=False)


async def _send(
    client: httpx.AsyncClient, row: LoadRequest, slo_s: float, floor: float = 0.0, *, watched: bool = False
) -> str:
    """The request's name, when it is done."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": row.prompt}],
        "max_tokens": row.output_tokens,
        "slo_ms": 1000 * slo_s,
        "min_threshold": floor,
        "stream": watched,
        "canvas": watched,
    }
    reply = await client.post("/v1/chat/completions", json=body)
    if reply.is_error:
        raise BadInput(f"a request failed: {reply.text}")
    return reply.headers["X-Request-Id"]


async def _read(client: httpx.AsyncClient, name: str) -> Served:
    return read((await client.get(f"/v1/requests/{name}")).json())


def read(told: dict) -> Served:  # type: ignore[type-arg]
    """From the reply to GET /v1/requests/{id}. Raises: BadInput if the request failed."""
    if told["status"] != "completed":
        raise BadInput(f"a request failed: {told}")
    steps, how = told["steps"], told["dilaserve"]
    return Served(
        request_id=told["id"],
        prompt_tokens=told["usage"]["prompt_tokens"],
        output_tokens=BLOCK * (max(step["block"] for step in steps) + 1),
        latency_s=how["latency_ms"] / 1000,
        slo_met=how["slo_met"],
        mean_threshold=how["mean_threshold"],
        steps=len(steps),
        computing_s=how["step_ms"] / 1000,
    )


def fit_profile(run: Sequence[RecordedIteration], slower: float = 0.0) -> tuple[LatencyProfile, float]:
    """Iterations' latencies by least squares: a launch, so much for each cache step, and for recompute steps so much
    more and so much for each token; all `slower` by so large a share. Returns: the profile, and the launch in seconds,
    which an iteration of both kinds pays once.

    An iteration counts by its error a request, so that the few large ones do not outweigh the many small ones.
    """
    cached, recomputed, tokens, y = np.array([astuple(iteration) for iteration in run], dtype=np.float64).T
    columns = np.stack([np.ones_like(y), cached, recomputed > 0, tokens], axis=1)
    weights = 1.0 / (cached + recomputed)
    fitted = np.linalg.lstsq(columns * weights[:, None], y * weights * (1 + slower), rcond=None)[0]
    launch, each, more, token = np.maximum(fitted, 0.0).tolist()
    cache = [(1, BLOCK * count, StepKind.CACHE, launch + each * count) for count in (1, MOST_REQUESTS)]
    recompute = [(1, n, StepKind.RECOMPUTE, launch + more + token * n) for n in (BLOCK, MOST_TOKENS)]
    return LatencyProfile.from_rows([*cache, *recompute]), launch


def charge_s(iteration: RecordedIteration, profile: LatencyProfile, launch_s: float) -> float:
    """What a simulation charges for it, in seconds."""
    return iteration_s(
        lambda kind, tokens: profile.latency_s(1, tokens, kind),
        BLOCK * iteration.cached,
        iteration.recomputed_tokens,
        launch_s,
    )


def slower(ran: Sequence[RecordedIteration], profile: LatencyProfile, launch_s: float) -> float:
    """By what share iterations took longer than a simulation charges for them."""
    return sum(one.computing_s for one in ran) / sum(charge_s(one, profile, launch_s) for one in ran) - 1


def fit_message_s(alone: Sequence[Served]) -> float:
    """What a message takes: a request that is alone waits for nothing else but its steps.

    One brings it to the scheduler; of each step one goes to the instance and one comes back.
    """
    waiting_s = sum(one.latency_s - one.computing_s for one in alone)
    return waiting_s / sum(1 + 2 * one.steps for one in alone)


def fit_steps(by_threshold: dict[float, list[Served]]) -> StepsTable:
    """Mean tokens by step at each threshold; where chance makes them rise with it, as at the threshold below."""
    thresholds = np.array(sorted(by_threshold))
    means = [
        sum(one.output_tokens for one in by_threshold[c]) / sum(one.steps for one in by_threshold[c])
        for c in thresholds.tolist()
    ]
    return StepsTable(thresholds, np.maximum(np.minimum.accumulate(np.array(means)), 1.0))

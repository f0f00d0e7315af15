"""What a simulation must know of a live cluster, measured on that very cluster: how long iterations compute, what a
message takes, tokens by step. Nothing is tuned.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import httpx
import numpy as np

from dilaserve.load.workload import LoadRequest
from experiments.live_iterations import BLOCK, Iteration
from shared.errors import BadInput
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.steps_table import StepsTable

MOST_REQUESTS, MOST_TOKENS = 64, 8192  # of an iteration: the profile's last rows
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """One request as it was served. Units: tokens; seconds."""

    prompt_tokens: int
    output_tokens: int  # of the blocks that were computed
    latency_s: float
    slo_met: bool
    mean_threshold: float
    steps: int
    computing_s: float  # the iterations that its steps were part of


async def serve(
    url: str, rows: Sequence[LoadRequest], arrivals_s: Sequence[float], slo_s: float, floor: float = 0.0
) -> list[Served]:
    """Send the rows at these times and read how each was served. Raises: BadInput if one failed."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=TIMEOUT_S, trust_env=False) as client:

        async def one(row: LoadRequest, at_s: float) -> str:
            await asyncio.sleep(at_s)
            body = {
                "model": "demo",
                "messages": [{"role": "user", "content": row.prompt}],
                "max_tokens": row.output_tokens,
                "slo_ms": 1000 * slo_s,
                "min_threshold": floor,
            }
            reply = (await client.post("/v1/chat/completions", json=body)).json()
            if "dilaserve" not in reply:
                raise BadInput(f"a request failed: {reply}")
            return str(reply["dilaserve"]["request_id"])

        names = await asyncio.gather(*(one(row, at_s) for row, at_s in zip(rows, arrivals_s, strict=True)))
        return [read((await client.get(f"/v1/requests/{name}")).json()) for name in names]


async def serve_clients(url: str, rows: Sequence[LoadRequest], clients: int, slo_s: float) -> list[Served]:
    """The rows from so many clients, each of which sends its next request when it has its answer."""

    async def client(mine: Sequence[LoadRequest]) -> list[Served]:
        return [one for row in mine for one in await serve(url, [row], [0.0], slo_s)]

    by_client = await asyncio.gather(*(client(rows[first::clients]) for first in range(clients)))
    return [one for served in by_client for one in served]


def read(told: dict) -> Served:  # type: ignore[type-arg]
    """From the reply to GET /v1/requests/{id}."""
    steps, how = told["steps"], told["dilaserve"]
    return Served(
        prompt_tokens=told["usage"]["prompt_tokens"],
        output_tokens=BLOCK * (max(step["block"] for step in steps) + 1),
        latency_s=how["latency_ms"] / 1000,
        slo_met=how["slo_met"],
        mean_threshold=how["mean_threshold"],
        steps=len(steps),
        computing_s=how["step_ms"] / 1000,
    )


def fit_profile(run: Sequence[Iteration]) -> tuple[LatencyProfile, float]:
    """Iterations' latencies by least squares: a launch, so much for each cache step, and for recompute steps so much
    more and so much for each token. Returns: the profile, and the launch in seconds, which an iteration of both kinds
    pays once.

    An iteration counts by its error a request, so that the few large ones do not outweigh the many small ones.
    """
    cached, recomputed, tokens, y = np.array([astuple(iteration) for iteration in run], dtype=np.float64).T
    columns = np.stack([np.ones_like(y), cached, recomputed > 0, tokens], axis=1)
    weights = 1.0 / (cached + recomputed)
    fitted = np.linalg.lstsq(columns * weights[:, None], y * weights, rcond=None)[0]
    launch, each, more, token = np.maximum(fitted, 0.0).tolist()
    cache = [(1, BLOCK * count, StepKind.CACHE, launch + each * count) for count in (1, MOST_REQUESTS)]
    recompute = [(1, n, StepKind.RECOMPUTE, launch + more + token * n) for n in (BLOCK, MOST_TOKENS)]
    return LatencyProfile.from_rows([*cache, *recompute]), launch


def charge_s(iteration: Iteration, profile: LatencyProfile, launch_s: float) -> float:
    """What a simulation charges for it, in seconds."""
    cached_s = profile.latency_s(1, BLOCK * iteration.cached, StepKind.CACHE) if iteration.cached else launch_s
    if not iteration.recomputed:
        return cached_s
    return cached_s + profile.latency_s(1, iteration.recomputed_tokens, StepKind.RECOMPUTE) - launch_s


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

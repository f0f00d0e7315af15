"""What a simulation must know of a live cluster, measured on that very cluster: step latencies, and tokens by step.

A step's latency is the time from its sending to the sending of the next, so it holds all that a live step costs: the
forward, the bus, the scheduler's cycle, and what else the machine does meanwhile. Nothing is tuned.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import numpy as np

from dilaserve.load.workload import LoadRequest
from shared.arrays import Float64
from shared.errors import BadInput
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.steps_table import StepsTable

BLOCK = 32
MOST_REQUESTS = 64  # on an instance: the profile's last row
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """One request as it was served. Units: tokens; seconds."""

    prompt_tokens: int
    output_tokens: int  # of the blocks that were computed
    latency_s: float
    slo_met: bool
    mean_threshold: float
    step_s: Float64  # [n - 1], from each step's sending to the next one's
    recomputes: Float64  # [n - 1], 1 for a recompute step
    together: Float64  # [n - 1], requests on the instance

    @property
    def steps(self) -> int:
        return len(self.step_s) + 1


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


def read(told: dict) -> Served:  # type: ignore[type-arg]
    """From the reply to GET /v1/requests/{id}."""
    steps, how = told["steps"], told["dilaserve"]
    return Served(
        prompt_tokens=told["usage"]["prompt_tokens"],
        output_tokens=BLOCK * (max(step["block"] for step in steps) + 1),
        latency_s=how["latency_ms"] / 1000,
        slo_met=how["slo_met"],
        mean_threshold=how["mean_threshold"],
        step_s=np.diff([step["t_ms"] / 1000 for step in steps]),
        recomputes=np.array([float(step["kind"] == "recompute") for step in steps[:-1]]),
        together=np.array([float(step["batch_requests"]) for step in steps[:-1]]),
    )


def fit_profile(served: Sequence[Served]) -> LatencyProfile:
    """Step latencies by least squares: a cache step of n requests takes `launch + n x each`, a recompute step of one
    request `more` than that, and of several proportionally."""
    y = np.concatenate([one.step_s for one in served])
    n, recompute = (np.concatenate([getattr(one, name) for one in served]) for name in ("together", "recomputes"))
    kept = y < 5 * np.median(y)  # a step that stood behind something else says nothing of steps
    columns = np.stack([np.ones_like(y), n, recompute], axis=1)[kept]
    launch, each, more = np.maximum(np.linalg.lstsq(columns, y[kept], rcond=None)[0], 1e-5).tolist()
    length = float(np.mean([one.prompt_tokens + one.output_tokens for one in served]))
    counts = range(1, MOST_REQUESTS + 1)
    cache = [(1, BLOCK * count, StepKind.CACHE, launch + each * count) for count in counts]
    recomputes = [(1, round(length * count), StepKind.RECOMPUTE, more + each * count) for count in counts]
    return LatencyProfile.from_rows([*cache, *recomputes])


def fit_steps(by_threshold: dict[float, list[Served]]) -> StepsTable:
    """Mean tokens by step at each threshold; where chance makes them rise with it, as at the threshold below."""
    thresholds = np.array(sorted(by_threshold))
    means = [
        sum(one.output_tokens for one in by_threshold[c]) / sum(one.steps for one in by_threshold[c])
        for c in thresholds.tolist()
    ]
    return StepsTable(thresholds, np.maximum(np.minimum.accumulate(np.array(means)), 1.0))

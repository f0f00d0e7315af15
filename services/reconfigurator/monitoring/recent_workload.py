"""Reads the facts on which decisions are based: the requests of a recent window, from Postgres, and latencies."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.monitoring.workload_monitor import WRITE_DELAY_S, check_written
from services.reconfigurator.planning.decision import PlanningContext
from services.reconfigurator.planning.workload_stats import RequestSample
from services.reconfigurator.schedule import PlanTrigger
from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.bus.instance_watch import InstanceWatch
from shared.database.errors import database_errors
from shared.database.profile_store import load_profile, save_profile
from shared.database.schema import RequestRow
from shared.errors import BadInput, RetryLater
from shared.messages.instances import Instance
from shared.messages.requests import OutcomeStatus, ThresholdUse
from shared.profile import LatencyProfile


@dataclass(slots=True)
class RecentWorkload:
    """The requests of one cell, and the latency profile of its instances."""

    _bus: Bus
    _clock: BusClock
    _engine: AsyncEngine
    _instances: InstanceWatch
    _profile: LatencyProfile  # its first curves take precedence; `context` adds those of instances

    async def context(self, trigger: PlanTrigger) -> PlanningContext:
        """The requests of the trigger's span, once Postgres has all of them, and the completed latency profile.

        Raises: RetryLater if Postgres or the bus does not answer, or Postgres lacks arrivals.
        """
        until_s = self._clock.now_s() - WRITE_DELAY_S
        await check_written(self._bus, until_s)
        requests, threshold_uses = await read_window(self._engine, until_s - trigger.span_s, until_s)
        instances = self._instances.instances()
        self._profile = await fill_missing_profiles(self._profile, instances, self._engine)
        block_length = max((instance.model.block_length for instance in instances), default=0)
        return PlanningContext(requests, threshold_uses, trigger, self._profile, block_length=block_length)

    async def count_arrivals(self, span_s: float) -> int:
        """Requests in the last `span_s` that Postgres has; 0 if it is unavailable, which the next decision reports."""
        until_s = self._clock.now_s() - WRITE_DELAY_S
        with suppress(RetryLater):
            return await count_arrivals(self._engine, until_s - span_s, until_s)
        return 0


async def read_window(
    engine: AsyncEngine, start_s: float, end_s: float
) -> tuple[list[RequestSample], list[ThresholdUse]]:
    """The requests that arrived from `start_s` to `end_s`, Unix time, and the steps they took by threshold.

    Requests that were rejected or have no SLO are left out. Raises: RetryLater if Postgres is unavailable.
    """
    row = RequestRow
    columns = (row.prompt_tokens, row.output_tokens, row.slo_s, row.unmasked_tokens)
    uses = (row.thresholds, row.threshold_steps, row.threshold_tokens)
    with database_errors():
        async with engine.connect() as connection:
            rows = (await connection.execute(select(*columns, *uses).where(_arrived(start_s, end_s)))).all()
    samples = [RequestSample(prompt, output, slo_s, unmasked) for prompt, output, slo_s, unmasked, *_ in rows if slo_s]
    return samples, threshold_uses(rows)


def threshold_uses(rows: Iterable[Any]) -> list[ThresholdUse]:
    """The steps of requests by threshold. `rows` have the columns thresholds, threshold_steps and threshold_tokens."""
    return [
        ThresholdUse(threshold=threshold, steps=steps, tokens=tokens)
        for row in rows
        for threshold, steps, tokens in zip(
            row.thresholds or [], row.threshold_steps or [], row.threshold_tokens or [], strict=True
        )
    ]


async def count_arrivals(engine: AsyncEngine, start_s: float, end_s: float) -> int:
    """The number of requests that `read_window` returns. Raises: RetryLater if Postgres is unavailable."""
    with database_errors():
        async with engine.connect() as connection:
            return await connection.scalar(select(func.count()).where(_arrived(start_s, end_s))) or 0


def _arrived(start_s: float, end_s: float) -> ColumnElement[bool]:
    first, last = (datetime.fromtimestamp(at_s, UTC) for at_s in (start_s, end_s))
    served = RequestRow.slo_s.is_not(None) & (RequestRow.status != OutcomeStatus.REJECTED)
    return RequestRow.arrived_at.between(first, last) & served


async def fill_missing_profiles(
    known: LatencyProfile, instances: Iterable[Instance], engine: AsyncEngine
) -> LatencyProfile:
    """Add curves that `known` lacks: those that instances register, then those that Postgres stores for their models
    and devices. Postgres gets the TP degrees that it lacks, which stay known when no such instance runs.

    Raises: RetryLater if Postgres is unavailable.
    """
    registered: defaultdict[tuple[str, str], LatencyProfile] = defaultdict(LatencyProfile)  # by model and device
    for instance in instances:
        found = registered[instance.model.name, instance.device]
        with suppress(BadInput):  # it has no profile yet
            found = found.completed_from(LatencyProfile.from_csv(instance.profile))
        registered[instance.model.name, instance.device] = found
    for profile in registered.values():
        known = known.completed_from(profile)
    for (model, device), profile in sorted(registered.items()):
        stored = await load_profile(engine, model, device) or LatencyProfile()
        for tp in set(profile.tp_degrees) - set(stored.tp_degrees):
            await save_profile(engine, model, device, profile.for_tp(tp))
        known = known.completed_from(stored)
    return known

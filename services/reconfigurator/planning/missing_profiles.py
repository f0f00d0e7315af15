"""Which latencies the planner may count on."""

from collections.abc import Iterable
from contextlib import suppress

from sqlalchemy.ext.asyncio import AsyncEngine

from shared.database.profile_store import load_profile
from shared.errors import BadInput
from shared.messages.instances import Instance
from shared.profile import LatencyProfile


async def fill_missing_profiles(
    known: LatencyProfile, instances: Iterable[Instance], engine: AsyncEngine
) -> LatencyProfile:
    """What is known, then what instances bring, then what Postgres keeps of their models on their devices.

    Raises: RetryLater if Postgres is away.
    """
    curves, alike = known.curves, set()
    for instance in instances:
        alike.add((instance.model.name, instance.device))
        with suppress(BadInput):  # it brings none yet
            curves = {**LatencyProfile.from_csv(instance.profile).curves, **curves}
    for model, device in sorted(alike):
        if (kept := await load_profile(engine, model, device)) is not None:
            curves = {**kept.curves, **curves}
    return LatencyProfile(curves)

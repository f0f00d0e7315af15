"""Completes the latency profile that the planner uses."""

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
    """Add curves that `known` lacks: those that instances register, then those that Postgres stores for their models
    and devices.

    Raises: RetryLater if Postgres is unavailable.
    """
    hardware = set()
    for instance in instances:
        hardware.add((instance.model.name, instance.device))
        with suppress(BadInput):  # it has no profile yet
            known = known.completed_from(LatencyProfile.from_csv(instance.profile))
    for model, device in sorted(hardware):
        if (stored := await load_profile(engine, model, device)) is not None:
            known = known.completed_from(stored)
    return known

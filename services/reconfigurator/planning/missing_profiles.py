"""Completes the latency profile that the planner uses."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from sqlalchemy.ext.asyncio import AsyncEngine

from shared.database.profile_store import load_profile, save_profile
from shared.errors import BadInput
from shared.messages.instances import Instance
from shared.profile import LatencyProfile


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

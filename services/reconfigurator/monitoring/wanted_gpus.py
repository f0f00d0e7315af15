"""Counts the GPUs that the recent workload needs, for autoscalers, also if the reconfigurator changes nothing."""

from math import nan

import structlog

from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.monitoring.recent_workload import RecentWorkload
from services.reconfigurator.planning.decision import Planner
from services.reconfigurator.schedule import PlanTrigger
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.errors import DilaserveError
from shared.run_in_process import run_in_process
from shared.tasks import pause

log = structlog.get_logger(__name__)


async def follow_wanted_gpus(
    workload: RecentWorkload, planner: Planner, metrics: ReconfiguratorMetrics, settings: ReconfiguratorSettings
) -> None:
    """Update the metric at each interval, until cancelled."""
    while True:
        await pause(settings.interval_s)
        try:
            gpus = await count_wanted_gpus(workload, planner, settings)
        except (DilaserveError, ValueError) as error:
            log.warning("cannot count the GPUs that the workload needs", error=str(error))
            gpus = None
        metrics.wanted_gpus.set(nan if gpus is None else gpus)


async def count_wanted_gpus(workload: RecentWorkload, planner: Planner, settings: ReconfiguratorSettings) -> int | None:
    """The GPUs that the arrivals of the last window need; None: not known. Raises: as `RecentWorkload.context`."""
    context = await workload.context(PlanTrigger(settings.window_s))
    return await run_in_process(planner.wanted_gpus, context, settings.wanted_threshold)

"""Counts the GPUs that the recent workload needs, for autoscalers, also if the reconfigurator changes nothing."""

from dataclasses import dataclass
from math import nan

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.monitoring.request_history import read_written
from services.reconfigurator.planning.decision import Planner, PlanningContext
from services.reconfigurator.planning.missing_profiles import fill_missing_profiles
from services.reconfigurator.schedule import PlanTrigger
from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.bus.instance_watch import InstanceWatch
from shared.errors import DilaserveError
from shared.profile import LatencyProfile
from shared.run_in_process import run_in_process
from shared.tasks import pause

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class WantedGpus:
    """Of one cell. `_min_threshold` is the mean threshold to reach."""

    _bus: Bus
    _clock: BusClock
    _engine: AsyncEngine
    _instances: InstanceWatch
    _planner: Planner
    _profile: LatencyProfile
    _metrics: ReconfiguratorMetrics
    _min_threshold: float

    async def run(self, interval_s: float, window_s: float) -> None:
        """Update the metric at each interval, until cancelled."""
        while True:
            await pause(interval_s)
            try:
                gpus = await self.count(window_s)
            except (DilaserveError, ValueError) as error:
                log.warning("cannot count the GPUs that the workload needs", error=str(error))
                gpus = None
            self._metrics.wanted_gpus.set(nan if gpus is None else gpus)

    async def count(self, window_s: float) -> int | None:
        """The GPUs that the arrivals of the last `window_s` need; None: not known. Raises: as `read_written`."""
        requests, threshold_uses = await read_written(self._bus, self._clock, self._engine, window_s)
        instances = self._instances.instances()
        self._profile = await fill_missing_profiles(self._profile, instances, self._engine)
        context = PlanningContext(
            requests=requests,
            threshold_uses=threshold_uses,
            trigger=PlanTrigger(window_s),
            profile=self._profile,
            block_length=max((instance.model.block_length for instance in instances), default=0),
        )
        return await run_in_process(self._planner.wanted_gpus, context, self._min_threshold)

"""Wiring: connect, monitor and reconfigure, drain."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.controller import ReconfigurationController, follow_wanted_gpus
from services.reconfigurator.execution.executor import Executor
from services.reconfigurator.execution.launchers.launcher import make_launcher
from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.monitoring.recent_workload import RecentWorkload
from services.reconfigurator.monitoring.workload_monitor import monitor
from services.reconfigurator.nodes import read_nodes
from services.reconfigurator.planning.decision import Planner
from services.reconfigurator.planning.workload_stats import PlanningSettings
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.cell_config import wait_for_config
from shared.bus.client import Bus
from shared.bus.instance_watch import InstanceWatch
from shared.bus.watch import BusWatch
from shared.database.schema import open_database
from shared.errors import BadInput
from shared.messages.cell import CACHES, DEFAULT_THRESHOLDS, CellConfig, is_exact
from shared.messages.plans import ReconfiguratorStats
from shared.messages.stats import STATS_S
from shared.metrics_server import serve_metrics
from shared.predictor_card import find_predictor_card
from shared.profile import LatencyProfile, read_profile
from shared.service import Service, run_program, run_service, serve_on_bus
from shared.tasks import pause, run_beside, run_together

CLOCK_S = 10.0  # interval of looks at the bus's clock


def main() -> int:
    """Run the reconfigurator until SIGTERM. Returns: the exit status."""
    return run_service("reconfigurator", ReconfiguratorSettings, prepare, asyncio.run)


def prepare(settings: ReconfiguratorSettings) -> Service:
    """Check the settings and the files that they name. Raises: BadInput."""
    if settings.request_retention_s < settings.window_s:
        text = f"DILASERVE_REQUEST_RETENTION_S={settings.request_retention_s:g}: accepted: at least "
        raise BadInput(f"{text}DILASERVE_WINDOW_S={settings.window_s:g}, which decisions read", "request_retention_s")
    read_planner(settings)  # reports wrong settings before the start
    engine = open_database(settings.database_url)
    metrics = ReconfiguratorMetrics()
    serve_metrics(metrics.registry, settings)

    async def serve(bus: Bus, stop: asyncio.Event) -> None:
        try:
            monitoring = monitor(bus, engine, metrics, settings.request_retention_s)
            await run_beside(stop.wait(), [monitoring, plan(bus, engine, settings, metrics)])
        finally:
            await engine.dispose()

    return serve_on_bus("reconfigurator", settings, serve)


def read_planner(settings: ReconfiguratorSettings, cell: CellConfig | None = None) -> tuple[Planner, LatencyProfile]:
    """The planner, and the latency profile that the settings name. `cell`: the configuration of the cell; None: the
    defaults. Raises: BadInput naming the fault in the settings or a file that they name."""
    nodes = read_nodes(settings.nodes)
    if not nodes and settings.launcher != "none":
        raise BadInput("DILASERVE_NODES must name the nodes as NAME:GPUS, separated by commas", "nodes")
    thresholds = sorted(cell.used_thresholds if cell else DEFAULT_THRESHOLDS)
    cache = cell.cache if cell else CACHES[0]
    prior: Mapping[float, float] = {}
    card = None
    if settings.predictor or settings.model:
        card = find_predictor_card(settings.predictor, Path(settings.model))
    if card:
        prior = dict(zip(thresholds, card.mean_tokens_per_step(np.array(thresholds)).tolist(), strict=True))
    planning = PlanningSettings(
        thresholds, settings.tp_degrees, settings.batch_sizes, settings.rps_buffer, exact_cache=is_exact(cache)
    )
    profile = read_profile(Path(settings.profile)) if settings.profile else LatencyProfile()
    return Planner(nodes, planning, prior, cache != "none", settings.solve_s), profile


async def plan(bus: Bus, engine: AsyncEngine, settings: ReconfiguratorSettings, metrics: ReconfiguratorMetrics) -> None:
    """Count the GPUs that the workload needs and, with a launcher, decide and carry out plans, until cancelled."""
    planner, profile = read_planner(settings, await wait_for_config(bus))
    instances, watch = InstanceWatch(), BusWatch(bus, [bus.subjects.stream("REQUESTS")], CLOCK_S)
    await instances.start(bus)
    workload = RecentWorkload(bus, watch.clock, engine, instances, profile)
    counting = follow_wanted_gpus(workload, planner, metrics, settings)
    background = [watch.run(), instances.run(), counting, publish_stats(bus, settings)]
    if settings.launcher == "none":
        await run_together(background)
        return
    launcher = make_launcher(bus, settings, planner.nodes)
    executor = Executor(bus, watch.clock, launcher, instances, settings)
    controller = ReconfigurationController(bus, watch.clock, workload, launcher, executor, planner, metrics)
    try:
        await run_together([*background, controller.run(settings.interval_s, settings.window_s)])
    finally:
        await launcher.close()


async def publish_stats(bus: Bus, settings: ReconfiguratorSettings) -> None:
    """Publish once per second that this reconfigurator runs, until cancelled."""
    stats = ReconfiguratorStats(changes_instances=settings.launcher != "none", interval_s=settings.interval_s)
    while True:
        if bus.nc.is_connected:  # otherwise the client would buffer the message and send it late
            await bus.publish(bus.subjects.stats("reconfigurator"), stats)
        await pause(STATS_S)


if __name__ == "__main__":
    run_program("reconfigurator", main)

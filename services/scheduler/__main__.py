"""Starts the scheduler: connects, leads the cell, runs, drains."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import uvloop
from msgspec.structs import replace

from services.scheduler.cell import cell_config
from services.scheduler.events import StepsLost
from services.scheduler.factory import build_core
from services.scheduler.io.drain_watch import DrainWatch
from services.scheduler.io.event_queue import EventQueue
from services.scheduler.io.instance_events import InstanceEvents
from services.scheduler.io.kept_streams import KeptStreams
from services.scheduler.io.lease import Lease
from services.scheduler.io.lookups import Lookups
from services.scheduler.io.outcome_store import OutcomeStore
from services.scheduler.io.predictor_client import PredictorClient
from services.scheduler.io.reconciliation import reconcile
from services.scheduler.io.recovery import Recovery
from services.scheduler.io.request_consumer import RequestConsumer
from services.scheduler.io.request_preparer import RequestPreparer
from services.scheduler.monitoring.metrics import SchedulerMetrics
from services.scheduler.monitoring.stats_window import StatsWindow
from services.scheduler.registry import find_policy
from services.scheduler.service import SchedulerService
from services.scheduler.settings import SchedulerSettings
from shared.background import DeferredTasks
from shared.bus.cell_config import KeptConfig
from shared.bus.client import Bus
from shared.bus.instance_watch import InstanceWatch
from shared.bus.subjects import stream_names
from shared.bus.watch import BusWatch
from shared.errors import Superseded
from shared.health import process_name
from shared.messages.cell import CellConfig
from shared.metrics_server import serve_metrics
from shared.model_files import default_model_name, find_model
from shared.predictor_card import PredictorCard, find_predictor_card
from shared.service import Service, freeze_startup_objects, run_program, run_service, serve_on_bus
from shared.tasks import cancel, run_beside, run_until_stopped
from shared.text import TextModel

log = structlog.get_logger(__name__)

LOOK_S = 1.0  # interval of looks at the state of the bus


def main() -> int:
    """Run the scheduler until SIGTERM. Returns: the exit status."""
    return run_service("scheduler", SchedulerSettings, prepare, uvloop.run)


def prepare(settings: SchedulerSettings) -> Service:
    """Load the tokenizer and the predictor's card. Raises: BadInput."""
    directory = find_model(settings.model, weights=False)
    name = settings.model_name or default_model_name(settings.model)
    text = TextModel(directory, name, reads_control=settings.control_tokens_in_messages)
    card = find_predictor_card(settings.predictor, directory)
    config = cell_config(settings, text.card, card)
    settings = replace(settings, cache=config.cache)
    metrics = SchedulerMetrics()
    serve_metrics(metrics.registry, settings)
    return serve_on_bus("scheduler", settings, partial(serve, settings, config, text, card, metrics))


async def serve(
    settings: SchedulerSettings,
    config: CellConfig,
    text: TextModel,
    card: PredictorCard | None,
    metrics: SchedulerMetrics,
    bus: Bus,
    stop: asyncio.Event,
) -> int:
    """Lead the cell and serve until `stop` is set. Returns: the exit status."""
    set_up = partial(bus.set_up, settings.max_stored_bytes, settings.stream_replicas)
    await run_until_stopped(stop, set_up())
    caching, needs_profile = config.cache != "none", find_policy(config.policy).needs_profile
    instances = InstanceEvents(text.card.name, needs_profile=needs_profile, caching=caching)
    lease = await run_until_stopped(stop, lead(bus, instances.watch, set_up))
    if lease is None:
        return 0
    kept_config = KeptConfig(bus, config)
    await run_until_stopped(stop, kept_config.store())
    recovery = await run_until_stopped(stop, Recovery.start(bus))
    if recovery is None:
        await lease.release()
        return 0
    log.info("leading", epoch=lease.epoch, policy=config.policy)
    if not config.predictor and find_policy(config.policy).uses_estimates:
        log.warning("no step predictor: estimates follow from each request's own steps", fix="dilaserve tune")
    queue, drain = EventQueue(), DrainWatch(bus)
    streams = KeptStreams(bus, set_up, lambda: queue.put(StepsLost()))
    described = [*streams.step_streams, drain.stream, kept_config.stream]
    watch = BusWatch(bus, described, LOOK_S, expected=stream_names(bus.subjects))
    await watch.look()  # sets the clock
    clock = watch.clock
    outcomes = OutcomeStore(bus, clock, text)
    core = build_core(settings, text, card, lease.epoch, asks_predictor=bool(config.predictor))
    predictor = PredictorClient(bus, core.settings.thresholds, config.predictor, queue)
    deferred = DeferredTasks()
    preparer = RequestPreparer(
        bus,
        text,
        recovery,
        settings.shared_prefixes,
        instances.worker_versions,
        config.edit_threshold,
        settings.stop_at_eos,
    )
    requests = RequestConsumer(
        bus,
        clock,
        preparer,
        queue,
        outcomes,
        deferred,
        core.totals,
        default_slo_s=config.default_slo_s,
        max_held=settings.max_held_requests,
        epoch=lease.epoch,
    )
    stats = StatsWindow(core, config.policy, clock.now_s(), lambda: requests.num_waiting, requests.oldest_late_s)
    service = SchedulerService(bus, clock, lease, core, queue, outcomes, predictor, drain, stats, metrics, deferred)
    instances.on_quarantine = lambda instance: outcomes.distrust(instance.instance_id, instance.unverified_s)
    instances.report_to(queue)
    bus.reconnects.subscribe(lambda: queue.put(StepsLost()))
    for follower in (streams.keep, lease.fenced(kept_config.keep), drain.read_order, requests.deliveries.check):
        watch.follow(follower)
    await requests.subscribe_cancels()
    await Lookups(bus, requests, core).subscribe()
    freeze_startup_objects()
    background = [
        lease.hold(),
        watch.run(),
        instances.watch.run(),
        service.receive_results(lease.epoch),
        service.publish_stats(),
        requests.run(),
        reconcile(bus, clock, lease, requests.knows),
        outcomes.wait_for_failure(),
        deferred.run(),
    ]
    try:
        await run_beside(service.run(stop), background)
    except Superseded as reason:
        log.warning("stopping", reason=str(reason))
        return 1
    await deferred.run_now()
    await outcomes.drain()
    await lease.release()
    return 0


async def lead(bus: Bus, instances: InstanceWatch, set_up: Callable[[], Awaitable[None]]) -> Lease:
    """Wait until this scheduler leads the cell. It then knows the instances from their heartbeats."""
    await instances.start(bus)
    watching = asyncio.create_task(instances.run())
    try:
        return await Lease.acquire(bus, process_name(), set_up)
    finally:
        await cancel([watching])


if __name__ == "__main__":
    run_program("scheduler", main)

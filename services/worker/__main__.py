"""`python -m services.worker`: one instance, settings from the environment."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import structlog
import uvloop
from msgspec.structs import replace

from services.worker.cache.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.io.registration import Registration
from services.worker.io.startup_registration import startup_registration
from services.worker.model.model_loading import NO_CACHE, CacheSize, ModelChoice, check_model, device_name, open_runner
from services.worker.model.model_runner import Runner
from services.worker.model.tensor_parallel import ParallelRunner
from services.worker.monitoring.metrics import WorkerMetrics
from services.worker.profile.stored_profile import default_directory, given_profile, stored_profile
from services.worker.service import WorkerService
from services.worker.settings import WorkerSettings
from shared.bus.client import Bus
from shared.errors import BadInput
from shared.gc_tuning import freeze_startup_objects
from shared.logs import configure_logs
from shared.messages.instances import Instance
from shared.metrics import serve_metrics
from shared.model_files import default_model_name, find_model
from shared.settings import read_settings
from shared.tasks import run_until_stopped
from shared.telemetry import telemetry
from shared.text import read_model_card

log = structlog.get_logger(__name__)


def main(environ: Mapping[str, str]) -> int:
    """Returns: the exit status: 0 after a clean stop, 2 for wrong settings or an unusable model, 1 otherwise."""
    for signum in (signal.SIGTERM, signal.SIGINT):  # nothing to clean up before it serves
        signal.signal(signum, lambda *_: os._exit(0))
    try:
        settings = read_settings(WorkerSettings, environ)
        configure_logs("worker", level=settings.log_level, form=settings.log_format)
        choice = ModelChoice(
            settings.model, settings.device, settings.dtype, settings.tp, settings.threads, settings.gpus
        )
        given = given_profile(Path(settings.profile), settings.tp) if settings.profile else None
        check_model(choice)
        instance = _describe(settings)
        metrics = WorkerMetrics(instance)
        serve_metrics(metrics.registry, settings)
        with ExitStack() as starting:
            starting.enter_context(startup_registration(settings, instance))
            with open_runner(choice, _cache_size(settings)) as runner:
                profile = given or stored_profile(choice, runner, default_directory(environ))
                starting.close()
                loaded = replace(
                    instance,
                    device=device_name(runner.device),
                    profile=profile.to_csv(),
                    cache_tokens=runner.cache_tokens,
                )
                return _run(settings, runner, loaded, metrics)
    except BadInput as error:
        print(f"worker: {error.message}", file=sys.stderr)  # noqa: T201
        return 2


def _run(settings: WorkerSettings, runner: Runner | ParallelRunner, instance: Instance, metrics: WorkerMetrics) -> int:
    try:
        with telemetry("worker", settings.otlp_endpoint):
            uvloop.run(_serve(settings, runner, instance, metrics))
    except Exception as error:
        log.error("worker ended", error=repr(error))  # noqa: TRY400 - one line
        log.debug("worker ended", exc_info=True)
        return 1
    return 0


def _cache_size(settings: WorkerSettings) -> CacheSize:
    if CacheMode(settings.cache) is CacheMode.NONE:
        return NO_CACHE
    return CacheSize(settings.max_batch_requests, settings.cache_tokens)


def _describe(settings: WorkerSettings) -> Instance:
    """The registration, as far as it is known before the model is loaded."""
    return Instance(
        instance_id=f"{settings.instance}-{secrets.token_hex(3)}",
        model=read_model_card(find_model(settings.model), settings.model_name or default_model_name(settings.model)),
        tp_degree=settings.tp,
        node=settings.node,
        gpus=list(settings.gpus),
        max_batch_tokens=settings.max_batch_tokens,
        max_batch_requests=settings.max_batch_requests,
    )


async def _serve(
    settings: WorkerSettings, runner: Runner | ParallelRunner, instance: Instance, metrics: WorkerMetrics
) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    connecting = Bus.connect(
        settings.nats_url, settings.cell, name=instance.instance_id, alive_file=settings.alive_file
    )
    bus = await run_until_stopped(stop, connecting)
    if bus is None:
        return
    limits = EngineLimits(settings.max_batch_tokens, settings.max_batch_requests)
    freeze_startup_objects()
    engine = Engine(runner, CacheMode(settings.cache), limits, instance.instance_id)
    metrics.watch(engine)
    try:
        await WorkerService(bus, engine, Registration(bus, instance, lambda: engine.num_held), metrics).run(stop)
    finally:
        with contextlib.suppress(Exception):
            await bus.close()


if __name__ == "__main__":
    sys.exit(main(os.environ))

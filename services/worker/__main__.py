"""`python -m services.worker`: one instance, settings from the environment."""

import asyncio
import os
import secrets
import signal
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import fields
from functools import partial
from pathlib import Path

import structlog
import uvloop
from msgspec.structs import replace

from services.worker.cache.prefix_pages import NO_PREFIXES, PAGE_TOKENS, PrefixSize
from services.worker.engine.cache_mode import CacheMode, check_mode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.self_check import Canary, CanaryCheck, CanaryFault
from services.worker.io.model_record import check_canary, check_weights, weights_digest
from services.worker.io.registration import Registration, memory_use, startup_registration
from services.worker.model.families import read_config
from services.worker.model.model_loading import NO_CACHE, CacheSize, ModelChoice, check_model, device_name, open_runner
from services.worker.monitoring.metrics import WorkerMetrics
from services.worker.monitoring.watchdog import iteration_limit_s
from services.worker.patterns.model_tokens import model_tokens
from services.worker.patterns.pattern_cache import PatternCache, PatternCompiler
from services.worker.profile.stored_profile import default_directory, given_profile, stored_profile
from services.worker.service import WorkerService
from services.worker.settings import WorkerSettings
from shared.bus.cell_config import wait_for_config_before_start
from shared.bus.client import Bus
from shared.errors import BadInput
from shared.messages.cell import cache_of
from shared.messages.instances import Instance
from shared.messages.versions import VERSION
from shared.metrics_server import serve_metrics
from shared.model_files import default_model_name, find_model, read_model_card
from shared.service import Service, freeze_startup_objects, run_program, run_service, serve_on_bus
from shared.tasks import run_until_stopped

log = structlog.get_logger(__name__)


def main(environ: Mapping[str, str]) -> int:
    """Returns: the exit status: 0 after a clean stop, 2 for wrong settings or an unusable model, 1 otherwise."""
    for signum in (signal.SIGTERM, signal.SIGINT):  # nothing to clean up before it serves
        signal.signal(signum, lambda *_: os._exit(0))
    with ExitStack() as resources:
        return run_service("worker", WorkerSettings, partial(_prepare, environ, resources), _run, environ)


def _prepare(environ: Mapping[str, str], resources: ExitStack, settings: WorkerSettings) -> Service:
    """Load the model; `resources` closes it. Raises: BadInput."""
    choice = ModelChoice(**{field.name: getattr(settings, field.name) for field in fields(ModelChoice)})
    given = given_profile(Path(settings.profile), settings.tp) if settings.profile else None
    directory, _ = check_model(choice)
    config, instance = read_config(directory), _describe(settings)
    cell = asyncio.run(wait_for_config_before_start(instance.instance_id, settings))
    mode = CacheMode(cell.cache if cell else cache_of(None, instance.model))
    check_mode(mode, config)
    size = CacheSize(settings.max_batch_requests, settings.cache_tokens, settings.max_batch_tokens)
    metrics = WorkerMetrics(instance)
    serve_metrics(metrics.registry, settings)
    with startup_registration(settings, instance):
        runner = resources.enter_context(open_runner(choice, size if mode is not CacheMode.NONE else NO_CACHE))
        profile = given or stored_profile(choice, runner, default_directory(environ))
    canary, digest = Canary.measure(runner), weights_digest(find_model(settings.model))
    log.info("weights read", sha256=digest)
    facts = instance.model.name, digest, device_name(runner.device), str(runner.dtype), settings.tp
    prefixes = NO_PREFIXES
    if mode is CacheMode.BLOCK:
        sizes = runner.cache_tokens, settings.prefix_cache, PAGE_TOKENS
        prefixes = PrefixSize.of(*sizes, config.block_length, config.max_length)
    loaded = replace(
        instance,
        device=device_name(runner.device),
        profile=profile.to_csv(),
        cache_tokens=runner.cache_tokens - prefixes.tokens,
        prefix_tokens=prefixes.tokens,
        prefix_page=prefixes.page_tokens,
    )

    async def serve(bus: Bus, stop: asyncio.Event) -> None:
        freeze_startup_objects()
        limits = EngineLimits(settings.max_batch_tokens, settings.max_batch_requests)
        patterns = PatternCache(PatternCompiler(partial(model_tokens, directory, config.vocab_size)))
        engine = Engine(runner, mode, limits, instance.instance_id, prefixes, patterns)
        metrics.watch(engine)
        registration = Registration(bus, loaded, engine, partial(memory_use, runner.device))
        limit_s = partial(iteration_limit_s, profile, settings.tp, settings.max_batch_tokens)
        check = CanaryCheck(canary, settings.canary_interval_s)
        service = WorkerService(bus, engine, registration, metrics, check, iteration_limit_s=limit_s)
        patterns.on_ready = service.wake

        async def compare() -> CanaryFault | None:
            await check_weights(bus, instance.model.name, digest, settings.weights_sha256)
            return await check_canary(bus, canary, *facts)

        fault = await run_until_stopped(stop, compare())
        if not stop.is_set():
            with closing(patterns):
                await service.run(stop, fault)

    return serve_on_bus(instance.instance_id, settings, serve, reports_health=False)


def _run(service: Service) -> int:
    try:
        uvloop.run(service)
    except BadInput:
        raise
    except Exception as error:
        log.error("worker ended", error=repr(error))  # noqa: TRY400 - one line
        log.debug("worker ended", exc_info=True)
        return 1
    return 0


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
        version=VERSION,
    )


if __name__ == "__main__":
    run_program("worker", partial(main, os.environ))

"""Wiring: load the model, connect, answer, drain."""

import asyncio
from functools import partial
from pathlib import Path

import structlog
import uvloop

from services.predictor.metrics import PredictorMetrics
from services.predictor.model import load_predictor
from services.predictor.service import PredictorService
from services.predictor.settings import PredictorSettings
from shared.bus.client import Bus
from shared.metrics_server import serve_metrics
from shared.predictor_card import find_predictor_card
from shared.service import Service, run_program, run_service, serve_on_bus

log = structlog.get_logger(__name__)


def main() -> int:
    """Run the predictor until SIGTERM. Returns: the exit status."""
    return run_service("predictor", PredictorSettings, prepare, uvloop.run)


def prepare(settings: PredictorSettings) -> Service:
    """Load the step predictor. Raises: BadInput."""
    if find_predictor_card(settings.predictor, Path(settings.model)) is None:
        return serve_on_bus("predictor", settings, partial(idle, settings.directory))
    predictor, card = load_predictor(settings.directory)
    metrics = PredictorMetrics(card.version)
    serve_metrics(metrics.registry, settings)

    async def serve(bus: Bus, stop: asyncio.Event) -> None:
        await PredictorService(bus, predictor, card.version, metrics).run(stop)

    return serve_on_bus("predictor", settings, serve)


async def idle(directory: Path, _bus: Bus, stop: asyncio.Event) -> None:
    """Stay idle until `stop` is set, as the model has no step predictor."""
    log.warning("no step predictor: there is nothing to do", directory=str(directory), fix="dilaserve tune")
    await stop.wait()


if __name__ == "__main__":
    run_program("predictor", main)

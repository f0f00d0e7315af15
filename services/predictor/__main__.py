"""Wiring: load the model, connect, answer, drain."""

import asyncio

import uvloop

from services.predictor.metrics import PredictorMetrics
from services.predictor.model import load_predictor
from services.predictor.service import PredictorService
from services.predictor.settings import PredictorSettings
from shared.bus.cell_config import wait_and_check_config
from shared.bus.client import Bus
from shared.metrics import serve_metrics
from shared.service import Service, run_program, run_service, serve_on_bus
from shared.tasks import run_until_stopped


def main() -> int:
    """Run the predictor until SIGTERM. Returns: the exit status."""
    return run_service("predictor", PredictorSettings, prepare, uvloop.run)


def prepare(settings: PredictorSettings) -> Service:
    """Load the model. Raises: BadInput."""
    predictor, card = load_predictor(settings.directory)
    metrics = PredictorMetrics(card.version)
    serve_metrics(metrics.registry, settings)

    async def serve(bus: Bus, stop: asyncio.Event) -> None:
        await run_until_stopped(stop, wait_and_check_config(bus, {"predictor": card.version}))
        await PredictorService(bus, predictor, card.version, metrics).run(stop)

    return serve_on_bus("predictor", settings, serve)


if __name__ == "__main__":
    run_program("predictor", main)

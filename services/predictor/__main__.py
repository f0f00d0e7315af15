"""Wiring: read settings, load the model, connect, answer, drain."""

import asyncio
import os
import signal
import sys

import structlog
import uvloop

from services.predictor.metrics import PredictorMetrics
from services.predictor.model import StepPredictor, load_predictor
from services.predictor.service import PredictorService
from services.predictor.settings import PredictorSettings
from shared.bus.client import Bus
from shared.errors import BadInput
from shared.logs import configure_logs
from shared.metrics import serve_metrics
from shared.settings import read_settings
from shared.tasks import run_until_stopped
from shared.telemetry import telemetry

log = structlog.get_logger(__name__)


def main() -> int:
    """Run the predictor until SIGTERM. Returns: the exit status."""
    try:
        settings = read_settings(PredictorSettings, os.environ)
        configure_logs("predictor", level=settings.log_level, form=settings.log_format)
        predictor, card = load_predictor(settings.directory)
        metrics = PredictorMetrics(card.version)
        serve_metrics(metrics.registry, settings)
    except BadInput as error:
        sys.stderr.write(f"predictor: {error.message}\n")
        return 2
    with telemetry("predictor", settings.otlp_endpoint):
        uvloop.run(serve(settings, predictor, card.version, metrics))
    return 0


async def serve(settings: PredictorSettings, predictor: StepPredictor, version: str, metrics: PredictorMetrics) -> None:
    """Answer until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    connecting = Bus.connect(settings.nats_url, settings.cell, name="predictor", alive_file=settings.alive_file)
    bus = await run_until_stopped(stop, connecting)
    if bus is None:
        return
    await PredictorService(bus, predictor, version, metrics).run(stop)
    await bus.close()


if __name__ == "__main__":
    sys.exit(main())

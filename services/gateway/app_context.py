"""What the routes need, put together once."""

from dataclasses import dataclass

from services.gateway.admission.admission import Gate
from services.gateway.api.idempotency import Claims
from services.gateway.batches.batch_store import Batches
from services.gateway.batches.file_store import Files
from services.gateway.bus_connection import Link
from services.gateway.console.cluster_monitor import Watch
from services.gateway.inflight import Calls
from services.gateway.metrics import Metrics
from services.gateway.readiness import Readiness
from shared.text import TextModel


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one gateway. `started_s` is Unix time in seconds."""

    text: TextModel
    link: Link
    gate: Gate
    claims: Claims
    files: Files
    batches: Batches
    readiness: Readiness
    calls: Calls
    metrics: Metrics
    watch: Watch
    started_s: float

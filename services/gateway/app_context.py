"""What the routes need, put together once."""

from dataclasses import dataclass

from services.gateway.admission.admission import AdmissionController
from services.gateway.api.idempotency import IdempotencyKeys
from services.gateway.batches.batch_store import BatchStore
from services.gateway.batches.file_store import FileStore
from services.gateway.bus_connection import BusConnection
from services.gateway.console.cluster_monitor import ClusterMonitor
from services.gateway.inflight import InFlightRequests
from services.gateway.metrics import GatewayMetrics
from services.gateway.readiness import Readiness
from shared.text import TextModel


@dataclass(frozen=True, slots=True)
class AppContext:
    """The parts of one gateway. `started_s` is Unix time in seconds."""

    text: TextModel
    link: BusConnection
    gate: AdmissionController
    claims: IdempotencyKeys
    files: FileStore
    batches: BatchStore
    readiness: Readiness
    calls: InFlightRequests
    metrics: GatewayMetrics
    watch: ClusterMonitor
    started_s: float

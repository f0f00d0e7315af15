"""The parts of one gateway, which its routes share."""

import time
from dataclasses import dataclass, field

from services.gateway.admission.admission import AdmissionController
from services.gateway.api.idempotency import IdempotencyKeys
from services.gateway.api.serving_fields import ServingTables
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
    text: TextModel
    connection: BusConnection
    admission: AdmissionController
    idempotency: IdempotencyKeys
    files: FileStore
    batches: BatchStore
    readiness: Readiness
    inflight: InFlightRequests
    monitor: ClusterMonitor
    tables: ServingTables = field(default_factory=ServingTables)
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    started_s: float = field(default_factory=time.time)  # Unix time, seconds

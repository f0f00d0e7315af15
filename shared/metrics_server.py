"""Serves a service's Prometheus metrics over HTTP. Each service has its own registry."""

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from shared.errors import BadInput
from shared.settings import ServiceSettings

TIME_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)  # seconds
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # batch sizes, step counts


def serve_metrics(registry: CollectorRegistry, settings: ServiceSettings) -> None:
    """Serve the registry, and metrics of the process, from a thread. Does nothing without a metrics port.

    Raises: BadInput if the address is not available.
    """
    if not settings.metrics_port:
        return
    ProcessCollector(registry=registry)
    try:
        start_http_server(settings.metrics_port, settings.metrics_host, registry)
    except OSError as error:
        address = f"{settings.metrics_host}:{settings.metrics_port}"
        raise BadInput(f"cannot serve metrics on {address}: {error.strerror or error}", "metrics_port") from None

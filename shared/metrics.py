"""Prometheus metrics of a service over HTTP. Each service names its own, in a registry of its own."""

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from shared.errors import BadInput
from shared.settings import ServiceSettings

TIME_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)  # seconds
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # of batches, or steps


def serve_metrics(registry: CollectorRegistry, settings: ServiceSettings) -> None:
    """Answer Prometheus from a thread for as long as the process lives, adding what the process itself takes up.

    Does nothing where no port is set. Raises: BadInput if the address cannot be listened on.
    """
    if not settings.metrics_port:
        return
    ProcessCollector(registry=registry)
    try:
        start_http_server(settings.metrics_port, settings.metrics_host, registry)
    except OSError as error:
        address = f"{settings.metrics_host}:{settings.metrics_port}"
        raise BadInput(f"cannot serve metrics on {address}: {error.strerror or error}", "metrics_port") from None

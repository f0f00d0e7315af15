"""The metrics server."""

import socket

import pytest
from prometheus_client import CollectorRegistry

from shared.errors import BadInput
from shared.metrics_server import serve_metrics
from shared.settings import ServiceSettings


def test_a_taken_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadInput, match=f"cannot serve metrics on 127.0.0.1:{port}: Address already in use"):
            serve_metrics(CollectorRegistry(), ServiceSettings(metrics_port=port))

"""A collector of traces over OTLP/HTTP that keeps them in memory."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.http_server import http_server


class Collector:
    """The received spans with their service."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[tuple[str, Span]] = []

    def receive(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = [pair.value.string_value for pair in group.resource.attributes if pair.key == "service.name"]
            self.spans += [(names[0], span) for scope in group.scope_spans for span in scope.spans]

    def trace(self, trace_id: str) -> dict[str, list[Span]]:
        """The spans of one trace by service."""
        found: dict[str, list[Span]] = {}
        for service, span in list(self.spans):
            if span.trace_id.hex() == trace_id:
                found.setdefault(service, []).append(span)
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.receive(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with http_server(Handler) as url:
        collector = Collector(url)
        yield collector

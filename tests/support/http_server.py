"""An HTTP server within the process of a test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Yields: the URL. The server writes nothing to standard error."""
    quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

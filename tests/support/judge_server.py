"""A small OpenAI-compatible server that plays the judge: its replies are written by the test."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class JudgeServer:
    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)  # as they came


@contextmanager
def judge_server(reply: Callable[[str, int], str]) -> Iterator[JudgeServer]:
    """`reply(content, times)` answers a message that has come so many times before."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": "judge"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = body["messages"][0]["content"]
            with lock:
                times = sum(earlier["messages"][0]["content"] == content for earlier in told.bodies)
                told.bodies.append(body)
            self._send({"choices": [{"message": {"role": "assistant", "content": reply(content, times)}}]})

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing on standard error."""

        def _send(self, content: object) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told = JudgeServer(f"http://127.0.0.1:{server.server_port}/v1")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()

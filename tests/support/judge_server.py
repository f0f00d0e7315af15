"""A small OpenAI-compatible server in the role of the judge; the test supplies its replies."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.http_server import http_server


@dataclass
class JudgeServer:
    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)  # in order of arrival


@contextmanager
def judge_server(reply: Callable[[str, int], str | None]) -> Iterator[JudgeServer]:
    """Serve a judge: `reply(content, times)` answers a message received `times` times before."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": "judge"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = body["messages"][0]["content"]
            with lock:
                times = sum(earlier["messages"][0]["content"] == content for earlier in judge.bodies)
                judge.bodies.append(body)
            self._send({"choices": [{"message": {"role": "assistant", "content": reply(content, times)}}]})

        def _send(self, content: object) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with http_server(Handler) as url:
        judge = JudgeServer(f"{url}/v1")
        yield judge

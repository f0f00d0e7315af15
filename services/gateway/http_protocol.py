"""Limits on a connection before its request is complete, and bodies of requests that offer another protocol, which
uvicorn does not have."""

import asyncio
import json
import sys
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from services.gateway.errors import ApiError

MAX_HEADER_BYTES = 65_536  # of a header that continues after them; one that ends within the next PART_BYTES is accepted
PART_BYTES = 16_384  # data is parsed in parts of this size
HEADER_TIMEOUT_S = 10.0  # from the connection, or the first byte of a later header, to the header's end
LINGER_S = 1.0  # between an answer and the end: closing with unread data resets the connection and discards the answer


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 431 and 408, and closes the connection.

    Without a complete header the parser keeps all that arrived and copies it again with each part: an endless header
    would use the processor alone. Chunk extensions and trailers of a body are bounded as the header is.

    A request may offer another protocol, as Java's HttpClient offers HTTP/2. The parser takes the offer for accepted,
    and skips the body, so such a request is read again without its offer.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._unparsed_bytes = 0  # since the last header or part of a body
        self._header_timer: asyncio.TimerHandle | None = None
        self._in_header = False  # whether one has begun
        self._parsed = b""  # the data given to the parser now
        self._to_parse = b""  # the data to parse next

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PART_BYTES):
            self._to_parse = data[start : start + PART_BYTES]
            while self._to_parse:
                self._parsed, self._to_parse = self._to_parse, b""
                self._unparsed_bytes += len(self._parsed)  # the parser's callbacks set it to 0
                super().data_received(self._parsed)
                if self.transport.is_closing():
                    return
                if self._unparsed_bytes > MAX_HEADER_BYTES:
                    self._refuse(431, f"the header is larger than {MAX_HEADER_BYTES} bytes")
                    return
        if self._header_timer is None and (self._in_header or not self._is_serving()):
            self._start_header_timer()

    def on_message_begin(self) -> None:
        self._in_header = True
        self._unparsed_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_header = False
        self._unparsed_bytes = 0
        self._stop_header_timer()
        if not self._offers_protocol():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offers_protocol():
            super().on_message_complete()

    def _offers_protocol(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"  # which has no body

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn calls it for an offer. Have the request parsed again, without its offer."""
        upgrade = sys.exception()
        if isinstance(upgrade, HttpParserUpgrade) and self._offers_protocol():
            lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
            lines += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
            self._to_parse = b"\r\n".join([*lines, b"", self._parsed[upgrade.args[0] :]])
            self.parser = HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def limit_keep_alive(self, limit_s: int) -> None:
        """Close the connection if no request arrives within `limit_s` from now, or from its next response."""
        self.timeout_keep_alive = limit_s
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = self.loop.call_later(limit_s, self.timeout_keep_alive_handler)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self._header_is_late)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _header_is_late(self) -> None:
        if self._is_serving():  # the next header waits for this response
            self._start_header_timer()
        else:
            self._refuse(408, f"the header did not arrive within {HEADER_TIMEOUT_S:g} s")

    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int, message: str) -> None:
        """Close the connection. Answer only within a header and without a response in progress: else an answer could be
        taken for that to a later request, such as in the rest of a refused body."""
        self._stop_header_timer()
        if self._is_serving():
            self.transport.abort()
            return
        if not self._in_header:
            self.transport.close()
            return
        code = "header_too_large" if status == 431 else "timeout"
        body = json.dumps(ApiError(status, message, code=code).body())
        headers = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.pause_reading()
        self.transport.write(STATUS_LINE[status] + headers.encode() + body.encode())
        if self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()
        self._header_timer = self.loop.call_later(LINGER_S, self.transport.close)

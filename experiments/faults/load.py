"""Loads of requests, each repeated with its Idempotency-Key while it may be."""

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import httpx

from experiments.live_cluster import chat_body

RETRY_S = 0.5
ANSWER_S = 120.0  # time after which a request without an answer counts as lost
OUTPUT_TOKENS = 64
BLOCK_LENGTH = 8  # tokens; short, so that outputs have several blocks and so checkpoints
THRESHOLD = 0.9  # the only candidate: a request's text depends on nothing else
SLO_MS = 120_000


class NextGateway(httpx.AsyncHTTPTransport):
    """Sends each request to the same gateway, until a connection to it fails; then to the next one."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(limits=httpx.Limits(max_connections=None))
        self._urls = itertools.cycle(map(httpx.URL, urls))
        self._url = next(self._urls)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = self._url
        request.url = url.copy_with(raw_path=request.url.raw_path)
        request.headers["Host"] = url.netloc.decode()
        try:
            return await super().handle_async_request(request)
        except httpx.TransportError:
            if self._url is url:
                self._url = next(self._urls)
            raise


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of one request. Times are of time.monotonic."""

    prompt: str
    sent_s: float
    ended_s: float
    errors: list[str]  # of the attempts before the last one, and of the last one if it failed
    text: str | None  # None: lost or failed
    request_id: str = ""
    failed: bool = False  # whether it ended with an error that is no reason to repeat it

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.sent_s


NUMBERS = itertools.count()


def new_form() -> dict[str, str]:
    """A small form of the text, which no gateway knows yet: the same texts under another name."""
    return {"regex": f"(?P<n{next(NUMBERS)}>[a-z]{{5,9}})"}


async def send(http: httpx.AsyncClient, prompt: str, slo_ms: int = SLO_MS, *, has_form: bool = False) -> Answer:
    """Repeat the request after a broken connection or a reply with Retry-After, at most for ANSWER_S."""
    sent_s, errors = time.monotonic(), list[str]()
    body = chat_body(
        prompt, max_tokens=OUTPUT_TOKENS, block_length=BLOCK_LENGTH, slo_ms=slo_ms, min_threshold=THRESHOLD
    )
    body |= new_form() if has_form else {}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            while True:
                try:
                    reply = await http.post("/v1/chat/completions", json=body, headers=headers)
                except httpx.HTTPError as error:
                    errors.append(type(error).__name__)
                else:
                    if reply.is_success:
                        text, served = reply.json()["choices"][0]["message"]["content"], reply.json()["dilaserve"]
                        return Answer(prompt, sent_s, time.monotonic(), errors, text, served["request_id"])
                    errors.append(f"{reply.status_code} {reply.json()['error']['message']}")
                    if "Retry-After" not in reply.headers:
                        return Answer(prompt, sent_s, time.monotonic(), errors, None, failed=True)
                await asyncio.sleep(RETRY_S)
    return Answer(prompt, sent_s, time.monotonic(), errors, None)


async def open_loop(
    http: httpx.AsyncClient,
    prompts: Sequence[str],
    requests: int,
    rate: float,
    *,
    until: asyncio.Event | None = None,
    slo_ms: int = SLO_MS,
    has_form: bool = False,
) -> list[Answer]:
    """Send `requests` at `rate` per second, and more `until` the event, if given; then wait for their answers."""
    start_s, tasks = time.monotonic(), list[asyncio.Future[Answer]]()
    while len(tasks) < requests or (until is not None and not until.is_set()):
        await asyncio.sleep(start_s + len(tasks) / rate - time.monotonic())
        tasks.append(asyncio.ensure_future(send(http, prompts[len(tasks) % len(prompts)], slo_ms, has_form=has_form)))
    return await asyncio.gather(*tasks)


@asynccontextmanager
async def closed_loop(http: httpx.AsyncClient, prompts: Sequence[str], clients: int) -> AsyncIterator[list[Answer]]:
    """During the body each client sends its next request when it has an answer; then wait for the last answers."""
    answers: list[Answer] = []
    numbers, ended = itertools.count(), asyncio.Event()

    async def one_client() -> None:
        while not ended.is_set():
            answers.append(await send(http, prompts[next(numbers) % len(prompts)]))

    tasks = [asyncio.ensure_future(one_client()) for _ in range(clients)]
    try:
        yield answers
    finally:
        ended.set()
        await asyncio.gather(*tasks)

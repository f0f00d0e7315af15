"""A load of requests at a fixed rate, each repeated with its Idempotency-Key while it may be; and its figures."""

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from experiments.fault_load import BLOCK_LENGTH, BusMonitor
from experiments.live_cluster import chat_body

RETRY_S = 0.5
ANSWER_S = 120.0  # time after which a request without an answer counts as lost
OUTPUT_TOKENS = 64
THRESHOLD = 0.9  # the only candidate: a request's text depends on nothing else
SLOW = 2.0  # a request is slow if it takes this multiple of the longest latency before the fault


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


async def send(http: httpx.AsyncClient, prompt: str, slo_ms: int = 120_000) -> Answer:
    """Repeat the request after a broken connection or a reply with Retry-After, at most for ANSWER_S."""
    sent_s, errors = time.monotonic(), list[str]()
    body = chat_body(
        prompt, max_tokens=OUTPUT_TOKENS, block_length=BLOCK_LENGTH, slo_ms=slo_ms, min_threshold=THRESHOLD
    )
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
                        text, request_id = reply.json()["choices"][0]["message"]["content"], reply.json()["dilaserve"]
                        return Answer(prompt, sent_s, time.monotonic(), errors, text, request_id["request_id"])
                    errors.append(f"{reply.status_code} {reply.json()['error']['message']}")
                    if "Retry-After" not in reply.headers:
                        return Answer(prompt, sent_s, time.monotonic(), errors, None, failed=True)
                await asyncio.sleep(RETRY_S)
    return Answer(prompt, sent_s, time.monotonic(), errors, None)


async def open_loop(
    url: str, prompts: Sequence[str], requests: int, rate: float, slo_ms: int = 120_000
) -> list[Answer]:
    """Send `requests` at `rate` per second, and wait for their answers."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, trust_env=False, limits=limits) as http:
        return await send_all(http, prompts, requests, rate, slo_ms)


async def send_all(
    http: httpx.AsyncClient, prompts: Sequence[str], requests: int, rate: float, slo_ms: int = 120_000
) -> list[Answer]:
    """As `open_loop`, with this client."""
    start_s, tasks = time.monotonic(), []
    for number in range(requests):
        await asyncio.sleep(start_s + number / rate - time.monotonic())
        tasks.append(asyncio.ensure_future(send(http, prompts[number % len(prompts)], slo_ms)))
    return await asyncio.gather(*tasks)


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """The figures of one row."""

    requests: int
    repeated: int  # requests with an attempt that failed with a broken connection or a Retry-After
    failed: int  # requests that ended with another error
    lost: int  # requests without an answer in ANSWER_S
    duplicated: int  # requests with two outcomes that differ in text or status
    wrong: int  # texts unlike that of the same prompt alone
    marked: int  # wrong ones whose stored outcome is marked `unverified`
    added_s: float  # the longest latency since the fault above the longest before
    recovery_s: float  # from the end of the fault to the end of the last repeated, failed or slow request
    errors: dict[str, int] = field(default_factory=dict)  # attempts by their error


def figures(
    answers: Sequence[Answer], alone: Mapping[str, str], monitor: BusMonitor, began_s: float, ended_s: float
) -> FaultFigures:
    """`alone`: the text by prompt. The fault lasts from `began_s` to `ended_s`."""
    before = [answer.latency_s for answer in answers if answer.ended_s <= began_s]
    if not before:
        raise ValueError("no request was answered before the fault")
    since = [answer.latency_s for answer in answers if answer.ended_s > began_s]
    slow_s = SLOW * max(before)
    late = [answer.ended_s for answer in answers if answer.errors or answer.latency_s > slow_s]
    wrong = [answer for answer in answers if answer.text is not None and answer.text != alone[answer.prompt]]
    return FaultFigures(
        requests=len(answers),
        repeated=sum(len(answer.errors) > answer.failed for answer in answers),
        failed=sum(answer.failed for answer in answers),
        lost=sum(answer.text is None and not answer.failed for answer in answers),
        duplicated=sum(len(monitor.ends.get(answer.request_id, ())) > 1 for answer in answers),
        wrong=len(wrong),
        marked=sum(answer.request_id in monitor.unverified for answer in wrong),
        added_s=round(max(since, default=0.0) - max(before), 1),
        recovery_s=round(max(0.0, max(late, default=ended_s) - ended_s), 1),
        errors=dict(Counter(error for answer in answers for error in answer.errors)),
    )

"""Sends requests to a gateway at their arrival times."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from dilaserve.load.workload import LoadRequest, RequestLoad
from dilaserve.quality.answers import states_answer
from shared.errors import BadInput
from shared.tasks import during

CONNECT_S = 10.0
POLL_INTERVAL_S = 1.0  # of the cluster's state
REPLY_TIMEOUT_S = 900.0
API_KEY = "DILASERVE_API_KEY"  # environment variable

InstancesAt = tuple[float, dict[str, int]]  # seconds from the start; number of instances by TP degree from then on


def open_client(url: str, timeout: httpx.Timeout, key: str, ca: Path | None = None) -> httpx.AsyncClient:
    """An HTTP client for a gateway; an empty `key`: no API key. `ca`: PEM file of the certificates that it trusts, in
    place of the well-known authorities. Raises: BadInput if the file has none.
    """
    try:
        trusted = ssl.create_default_context(cafile=ca) if ca else httpx.create_ssl_context(trust_env=False)
    except OSError as error:  # also if the file has no certificate
        raise BadInput(f"--ca {ca}: no readable certificates ({error})") from None
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=timeout, trust_env=False, verify=trusted
    )


@dataclass(frozen=True, slots=True)
class LoadReply:
    """The result of one request. A failed one has only `arrival_s`, `latency_s` and `error`."""

    arrival_s: float  # seconds from the start of the load
    latency_s: float  # arrival to last token, by the server; else by the client
    error: str | None = None
    text: str = ""
    correct: bool | None = None  # None: the row has no answer
    slo_met: bool = False
    mean_threshold: float = 0.0
    output_tokens: int = 0  # computed
    text_tokens: int = 0  # of the text, up to its end
    first_text_s: float | None = None  # of a streamed request, from its arrival, by the client
    steps: int = 0
    migrations: int = 0


async def served_model(client: httpx.AsyncClient) -> str:
    """The model's name. Raises: BadInput if no gateway answers or it rejects the API key."""
    try:
        reply = await client.get("/v1/models")
        return str(reply.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED:
            raise BadInput(f"{client.base_url} requires an API key: set {API_KEY}") from None
        raise BadInput(f"no gateway answers at {client.base_url}: {str(error) or type(error).__name__}") from None


async def instances_per_tp(client: httpx.AsyncClient) -> dict[str, int] | None:
    """The number of ready instances by TP degree; None if the server does not report it."""
    try:
        nodes = (await client.get("/cluster", timeout=CONNECT_S)).raise_for_status().json()["nodes"]
        degrees = [i["tp_degree"] for node in nodes for i in node["instances"] if i["state"] == "ready"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None
    return {str(tp): degrees.count(tp) for tp in sorted(set(degrees))}


async def run_load(
    url: str,
    load: RequestLoad,
    slo_s: float | None,
    on_reply: Callable[[LoadReply], None],
    key: str = "",
    ca: Path | None = None,
    *,
    stream: bool = False,
    instances: list[InstancesAt] | None = None,
) -> list[LoadReply]:
    """Send the load, with the SLO `slo_s` for rows without one, and wait for all replies. `ca`: as `open_client`;
    `instances` gets those of the cluster over time.

    Raises: BadInput if no gateway answers.
    """
    async with open_client(url, httpx.Timeout(REPLY_TIMEOUT_S, connect=CONNECT_S), key, ca) as client:
        model = await served_model(client)
        start_s = time.perf_counter()

        async def monitor(found: list[InstancesAt]) -> None:
            while True:
                if (counts := await instances_per_tp(client)) is not None:
                    found.append((time.perf_counter() - start_s, counts))
                await asyncio.sleep(POLL_INTERVAL_S)

        async def send(number: int, arrival_s: float) -> LoadReply:
            await asyncio.sleep(start_s + arrival_s - time.perf_counter())
            request = load.request(number)
            body = request_body(model, request, slo_s)
            reply = await send_request(client, request, body, arrival_s, stream=stream)
            on_reply(reply)
            return reply

        async with nullcontext() if instances is None else during(monitor(instances)):
            return await asyncio.gather(*(send(number, at_s) for number, at_s in enumerate(load.arrivals_s)))


def request_body(model: str, request: LoadRequest, slo_s: float | None) -> dict[str, Any]:
    """The body of a request; `slo_s` is its SLO if the row has none."""
    body: dict[str, Any] = {"model": model, "priority": request.priority}
    if _is_chat(request):
        body["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        body["prompt"] = request.prompt if request.prompt_ids is None else request.prompt_ids
    if request.output_tokens is not None:
        body["max_tokens"] = request.output_tokens
    slo_s = slo_s if request.slo_s is None else request.slo_s
    return body if slo_s is None else body | {"slo_ms": 1000 * slo_s}


def _is_chat(request: LoadRequest) -> bool:
    return not request.raw and request.prompt_ids is None


async def send_request(
    client: httpx.AsyncClient, request: LoadRequest, body: dict[str, Any], arrival_s: float, *, stream: bool = False
) -> LoadReply:
    """Send one request and wait for its reply, if streamed with the time to the first text; a failure is in the
    reply."""
    sent_s, first_text_s = time.perf_counter(), None
    try:
        if stream:
            text, content, first_text_s = await _receive_stream(client, request, body, sent_s)
        else:
            content = _checked(await client.post(_path(request), json=body))
            choice = content["choices"][0]
            text = choice["message"]["content"] if _is_chat(request) else choice["text"]
        reply = _reply(text, content, request, arrival_s, time.perf_counter() - sent_s)
        return replace(reply, first_text_s=first_text_s)
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        return LoadReply(arrival_s, time.perf_counter() - sent_s, error=str(error) or type(error).__name__)


async def _receive_stream(
    client: httpx.AsyncClient, request: LoadRequest, body: dict[str, Any], sent_s: float
) -> tuple[str, dict[str, Any], float | None]:
    """The text, the fields beside it, and the seconds until the first text. Raises: as `_checked` and `_events`."""
    text, content, first_text_s = "", dict[str, Any](), None
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", _path(request), json=streamed) as answer:
        if answer.status_code != httpx.codes.OK:
            await answer.aread()
            _checked(answer)
        async for event in _events(answer):
            for choice in event.get("choices", ()):
                text += (choice["delta"].get("content") or "") if _is_chat(request) else choice["text"]
            if text and first_text_s is None:
                first_text_s = time.perf_counter() - sent_s
            content |= {name: event[name] for name in ("dilaserve", "usage") if event.get(name)}
    return text, content, first_text_s


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a stream. Raises: ValueError if one is an error."""
    async for line in answer.aiter_lines():
        data = line.removeprefix("data: ")
        if data not in (line, "[DONE]"):
            event = json.loads(data)
            if "error" in event:
                raise ValueError(event["error"]["message"])
            yield event


def _path(request: LoadRequest) -> str:
    return "/v1/chat/completions" if _is_chat(request) else "/v1/completions"


def _checked(answer: httpx.Response) -> dict[str, Any]:
    """The body of a reply. Raises: ValueError if it is an error."""
    content: dict[str, Any] = answer.json()
    if answer.status_code != httpx.codes.OK:
        raise ValueError(f"{answer.status_code} {content['error']['message']}")
    return content


def _reply(
    text: str, content: Mapping[str, Any], request: LoadRequest, arrival_s: float, latency_s: float
) -> LoadReply:
    """Raises: LookupError or TypeError if the content is not that of a completion."""
    stats = content["dilaserve"]
    return LoadReply(
        arrival_s=arrival_s,
        latency_s=stats["latency_ms"] / 1000 if "latency_ms" in stats else latency_s,
        text=text,
        correct=None if request.answer is None else states_answer(text, request.answer),
        slo_met=stats.get("slo_met", False),
        mean_threshold=stats.get("mean_threshold", 0.0),
        output_tokens=stats.get("output_tokens", 0),
        text_tokens=content.get("usage", {}).get("completion_tokens", 0),
        steps=stats.get("steps", 0),
        migrations=stats.get("migrations", 0),
    )

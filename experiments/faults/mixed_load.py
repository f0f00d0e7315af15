"""A mixed load: chats, completions, streams, batches and a NATS producer; clients that leave, and cancellations."""

import asyncio
import json
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

import httpx

from experiments.faults.load import send
from experiments.live_cluster import chat_body
from shared.bus.client import Bus
from shared.messages.requests import Request
from shared.retry import retry

OUTPUT_TOKENS = 32
BATCH_LINES = 5
BATCH_EVERY = 100  # requests


@dataclass(slots=True)
class MixedLoad:
    """The clients of a run, and their replies."""

    http: httpx.AsyncClient
    bus: Bus
    prompts: Sequence[str]
    rng: random.Random
    ends: Counter[str] = field(default_factory=Counter)  # by kind of request and its end
    texts: dict[str, str] = field(default_factory=dict)  # by request: the text that its client read
    acknowledged: set[str] = field(default_factory=set)  # requests that the bus has stored

    async def run(self, rate: float, seconds: float) -> None:
        """Send `rate` requests per second, and wait for their ends."""
        clock = asyncio.get_running_loop().time
        kinds = (self._chat, self._completion, self._stream, self._leave, self._cancel, self._produce)
        start_s = clock()
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(rate * seconds)):
                await asyncio.sleep(start_s + number / rate - clock())
                kind = self._batch if number % BATCH_EVERY == BATCH_EVERY // 2 else self.rng.choice(kinds)
                tasks.create_task(self._count(kind.__name__.strip("_"), kind(self.rng.choice(self.prompts))))

    async def _count(self, kind: str, end: Awaitable[str]) -> None:
        try:
            self.ends[f"{kind}: {await end}"] += 1
        except httpx.HTTPError:
            self.ends[f"{kind}: connection lost"] += 1

    async def _chat(self, prompt: str) -> str:
        answer = await send(self.http, prompt)
        if answer.text is None:
            return "failed" if answer.failed else "lost"
        self.texts[answer.request_id] = answer.text
        return "completed"

    async def _completion(self, prompt: str) -> str:
        body = {"model": "demo", "prompt": prompt, "max_tokens": OUTPUT_TOKENS}
        reply = await self.http.post("/v1/completions", json=body)
        if not reply.is_success:
            return str(reply.status_code)
        self.texts[reply.headers["x-request-id"]] = reply.json()["choices"][0]["text"]
        return "completed"

    async def _stream(self, prompt: str) -> str:
        return await self._read_stream(prompt)

    async def _leave(self, prompt: str) -> str:
        return await self._read_stream(prompt, leaves=True)

    async def _cancel(self, prompt: str) -> str:
        return await self._read_stream(prompt, cancels=True)

    async def _read_stream(self, prompt: str, *, leaves: bool = False, cancels: bool = False) -> str:
        body = chat_body(prompt, max_tokens=OUTPUT_TOKENS, block_length=8, stream=True)
        last = ""
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            if not reply.is_success:
                return str(reply.status_code)
            self.acknowledged.add(reply.headers["x-request-id"])
            if cancels:
                path = f"/v1/requests/{reply.headers['x-request-id']}/cancel"
                return f"cancelled, {(await self.http.post(path)).status_code}"
            async for line in reply.aiter_lines():
                if leaves:
                    return "left"
                last = line or last
        return "completed" if last == "data: [DONE]" else "an error event"

    async def _produce(self, prompt: str) -> str:
        request = Request(request_id=uuid.uuid4().hex, prompt=prompt, output_tokens=OUTPUT_TOKENS, key="producer")
        await retry(lambda: self.bus.store(self.bus.subjects.requests, request))
        self.acknowledged.add(request.request_id)
        return "stored"

    async def _batch(self, prompt: str) -> str:
        body = {"model": "demo", "prompt": prompt, "max_tokens": OUTPUT_TOKENS}
        line = {"method": "POST", "url": "/v1/completions", "body": body}
        content = "\n".join(json.dumps({"custom_id": str(number)} | line) for number in range(BATCH_LINES))
        files = {"file": ("lines.jsonl", content.encode())}
        uploaded = await self.http.post("/v1/files", data={"purpose": "batch"}, files=files)
        if not uploaded.is_success:
            return str(uploaded.status_code)
        order = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": uploaded.json()["id"]}
        return f"created, {(await self.http.post('/v1/batches', json=order)).status_code}"

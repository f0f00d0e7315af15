"""A gateway that serves two cells, of one model or of two."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec

from shared.text import TextModel
from tests.support.gateway import RunningGateway, running, settings_of
from tests.support.nats import NatsServer, new_cell
from tests.support.scheduler import AnsweringScheduler, answering
from tests.support.waiting import eventually, until

PATH: Literal["/v1/chat/completions"] = "/v1/chat/completions"
TURNS = [{"role": "user", "content": "How many pears?"}]
FIRST_ANSWER, SECOND_ANSWER = "The answer is 29.", "From the second cell."


@dataclass
class TwoCells:
    """Tests change the statistics that the cells publish."""

    gateway: RunningGateway
    first: AnsweringScheduler
    second: AnsweringScheduler
    stops: AsyncExitStack  # stops the second cell's scheduler
    preferences: int = 0

    async def reset(self) -> None:
        """Let both cells serve again as at the beginning."""
        for each in (self.first, self.second):
            each.reset()
        self.second.answer = lambda _: SECOND_ANSWER
        await self.both_serve()

    async def both_serve(self) -> None:
        for each in (self.first, self.second):
            await self.serves(each)

    async def serves(self, cell: AnsweringScheduler) -> None:
        await eventually(lambda: self.cluster(cell), lambda found: found["ready"])

    async def complete(self, cell: AnsweringScheduler | None = None, **fields: Any) -> httpx.Response:
        """Ask the model of a cell, usually the first one."""
        headers = fields.pop("headers", {})
        body = {"model": (cell or self.first).text.card.name, "messages": TURNS, **fields}
        return await self.gateway.http.post(PATH, json=body, headers=headers)

    async def prefer(self, cell: AnsweringScheduler) -> None:
        """Let this cell have the most slack, and wait until the gateway knows."""
        self.preferences += 1  # other values each time, so that older statistics are not taken for these
        for each in (self.first, self.second):
            slack = (0.9 if each is cell else 0.4) + self.preferences / 1000
            each.stats = msgspec.structs.replace(each.stats, slack=slack, active=10_000)

            async def is_known(each: AnsweringScheduler = each, slack: float = slack) -> bool:
                return bool((await self.cluster(each))["slack"] == slack)

            await until(is_known)

    async def cluster(self, cell: AnsweringScheduler) -> dict[str, Any]:
        """The state of the cell, as the gateway reports it."""
        query = {"model": cell.text.card.name, "cell": cell.bus.subjects.cell}
        state: dict[str, Any] = (await self.gateway.http.get("/cluster", params=query)).json()
        return state

    async def drain(self, cell: AnsweringScheduler) -> None:
        """Let the cell publish that it drains, and wait until the gateway knows."""
        cell.stats = msgspec.structs.replace(cell.stats, draining=True)
        await eventually(lambda: self.cluster(cell), lambda found: "drains" in (found["reason"] or ""))


@asynccontextmanager
async def two_cells(
    server: NatsServer, first: TextModel, second: TextModel, *, serves: bool = True, **settings: Any
) -> AsyncIterator[TwoCells]:
    """`serves`: whether the second cell has a scheduler. `settings`: of the gateway."""
    async with (
        new_cell(server) as bus,
        new_cell(server) as other,
        AsyncExitStack() as stops,
        answering(AnsweringScheduler(bus, first)) as own,
    ):
        scheduler = AnsweringScheduler(other, second, answer=lambda _: SECOND_ANSWER)
        if serves:
            await stops.enter_async_context(answering(scheduler))
        entry = f"{second.card.name}={second.card.name}@{other.subjects.cell}"
        texts = (first,) if first is second else (first, second)
        given = settings_of(bus, Path(first.card.name), more_models=(entry,), **settings)
        async with running(given, *texts) as gateway:
            cells = TwoCells(gateway, own, scheduler, stops)
            await (cells.both_serve() if serves else cells.serves(own))
            yield cells

"""Answers gateways' queries about unfinished requests."""

from itertools import islice

from nats.aio.msg import Msg

from services.scheduler.core import SchedulerCore
from services.scheduler.io.active_request import active_request, matching_requests
from services.scheduler.io.request_consumer import RequestConsumer
from shared.bus.client import Bus, try_decode
from shared.bus.subjects import name_in
from shared.messages.requests import ActiveRequest, UnfinishedQuery, UnfinishedRequests

MAX_LISTED = 500  # requests in one answer
MAX_SEARCHED = 20_000  # requests compared with one query, which takes a few milliseconds


class Lookups:
    def __init__(self, bus: Bus, requests: RequestConsumer, core: SchedulerCore) -> None:
        self._bus = bus
        self._requests = requests
        self._core = core

    async def subscribe(self) -> None:
        """Answer from now on."""
        await self._bus.nc.subscribe(self._bus.subjects.lookup(">"), cb=self._look_up)
        await self._bus.nc.subscribe(self._bus.subjects.unfinished, cb=self._list)

    async def _look_up(self, msg: Msg) -> None:
        if not msg.reply:
            return
        waiting = self._requests.find(name_in(msg.subject))
        found = active_request(waiting, self._core) if waiting else ActiveRequest(is_known=False)
        await self._bus.publish(msg.reply, found)

    async def _list(self, msg: Msg) -> None:
        query = try_decode(msg, UnfinishedQuery) if msg.reply else None
        if query is None:
            return
        searched = list(islice(self._requests.unfinished(), MAX_SEARCHED + 1))
        found = list(islice(matching_requests(query, searched[:MAX_SEARCHED], self._core), MAX_LISTED + 1))
        is_whole = len(found) <= MAX_LISTED and len(searched) <= MAX_SEARCHED
        await self._bus.publish(msg.reply, UnfinishedRequests(requests=found[:MAX_LISTED], is_whole=is_whole))

"""Compares the requests that were accepted with their stored outcomes."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from nats.js.api import DeliverPolicy

from shared.bus.client import Bus, try_decode
from shared.bus.stream_reader import read_stream
from shared.messages.requests import Arrival, Outcome

DRAIN_S = 180.0  # time limit for the last outcomes


@dataclass(frozen=True, slots=True)
class Accounts:
    """The requests of a run."""

    accepted: int
    statuses: Mapping[str, int]  # outcomes of accepted requests by status
    lost: int  # accepted, without an outcome
    duplicated: int  # outcomes that were stored a second time
    different: int  # texts that a client read and that are not those of the outcome
    unfinished: int  # messages left in the stream of requests


async def read_accounts(bus: Bus, acknowledged: set[str], texts: Mapping[str, str]) -> Accounts:
    """Read the streams once the last request has ended. `texts`: by request, what its client read."""
    unfinished = await _drained(bus)
    subjects = bus.subjects
    arrivals = await read_stream(bus, subjects.stream("ARRIVALS"), subjects.arrivals, deliver_policy=DeliverPolicy.ALL)
    stored = await read_stream(
        bus, subjects.stream("OUTCOMES"), subjects.outcomes("*"), deliver_policy=DeliverPolicy.ALL
    )
    outcomes = {outcome.request_id: outcome for msg in stored if (outcome := try_decode(msg, Outcome))}
    arrived = {arrival.request_id for msg in arrivals if (arrival := try_decode(msg, Arrival))}
    state = (await bus.js.stream_info(subjects.stream("OUTCOMES"))).state
    return accounts(arrived | acknowledged | texts.keys(), outcomes, texts, state.last_seq - state.messages, unfinished)


def accounts(
    accepted: set[str], outcomes: Mapping[str, Outcome], texts: Mapping[str, str], duplicated: int, unfinished: int
) -> Accounts:
    """Count the requests by their end."""
    ended = accepted & outcomes.keys()
    return Accounts(
        accepted=len(accepted),
        statuses=Counter(outcomes[request_id].status.value for request_id in ended),
        lost=len(accepted - ended),
        duplicated=duplicated,
        different=sum(outcomes[request_id].text != texts[request_id] for request_id in ended & texts.keys()),
        unfinished=unfinished,
    )


async def _drained(bus: Bus) -> int:
    """Wait until no request is in the stream. Returns: the number that is left after DRAIN_S."""
    end_s = asyncio.get_running_loop().time() + DRAIN_S
    while True:
        left = (await bus.js.stream_info(bus.subjects.stream("REQUESTS"))).state.messages
        if not left or asyncio.get_running_loop().time() > end_s:
            return left
        await asyncio.sleep(1.0)

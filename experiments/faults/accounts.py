"""The account of a load: requests repeated, failed, lost, duplicated and wrong; and the times of a fault."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy

from experiments.faults.load import Answer
from experiments.live_cluster import SUBJECTS, subscribed
from shared.bus.client import Bus, try_decode
from shared.bus.codec import decode
from shared.bus.stream_reader import read_stream
from shared.messages.requests import Arrival, Outcome

SLOW = 2.0  # a request is slow if it takes this multiple of the longest latency before the fault
DRAIN_S = 180.0  # time limit for the last outcomes

Received = defaultdict[str, list[Outcome]]
"""The outcomes that a subscriber of the bus has received, by request."""


@asynccontextmanager
async def received_outcomes(nats_url: str) -> AsyncIterator[Received]:
    """Receive the outcomes from the bus during the body."""
    received = Received(list)

    def on_outcome(msg: Msg) -> None:
        outcome = decode(msg.data, Outcome)
        received[outcome.request_id].append(outcome)

    async with subscribed(nats_url, {SUBJECTS.outcomes("*"): on_outcome}):
        yield received


def is_duplicated(outcomes: Sequence[Outcome]) -> bool:
    """Whether a request's outcomes differ in status or text."""
    return len({(outcome.status, outcome.text) for outcome in outcomes}) > 1


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
    silence_s: float  # the longest time without an answer after the fault began
    recovery_s: float  # from the end of the fault to the end of the last repeated, failed or slow request
    slowdown: float  # p95 of the latencies during the fault as a multiple of that before
    gateway_mb: tuple[float, float, float] | None = None  # of the gateway: before the fault, at most, at the end
    errors: dict[str, int] = field(default_factory=dict)  # attempts by their error


def figures(
    answers: Sequence[Answer], alone: Mapping[str, str], received: Received, began_s: float, ended_s: float
) -> FaultFigures:
    """`alone`: the text by prompt. The fault lasts from `began_s` to `ended_s`.

    Raises: ValueError if no request was answered before the fault.
    """
    before = [answer for answer in answers if answer.ended_s <= began_s]
    if not before:
        raise ValueError("no request was answered before the fault")
    since = [answer for answer in answers if answer.ended_s > began_s]
    during = [answer for answer in since if answer.sent_s < ended_s]
    ends_s = [began_s, *sorted(answer.ended_s for answer in since)]
    longest_s = max(answer.latency_s for answer in before)
    late = [answer.ended_s for answer in answers if answer.errors or answer.latency_s > SLOW * longest_s]
    wrong = [answer for answer in answers if answer.text is not None and answer.text != alone[answer.prompt]]
    return FaultFigures(
        requests=len(answers),
        repeated=sum(len(answer.errors) > answer.failed for answer in answers),
        failed=sum(answer.failed for answer in answers),
        lost=sum(answer.text is None and not answer.failed for answer in answers),
        duplicated=sum(is_duplicated(received[answer.request_id]) for answer in answers),
        wrong=len(wrong),
        marked=sum(any(outcome.unverified for outcome in received[answer.request_id]) for answer in wrong),
        added_s=round(max((answer.latency_s for answer in since), default=0.0) - longest_s, 1),
        silence_s=round(max((later_s - earlier_s for earlier_s, later_s in pairwise(ends_s)), default=0.0), 1),
        recovery_s=round(max(0.0, max(late, default=ended_s) - ended_s), 1),
        slowdown=round(_p95_s(during or since) / _p95_s(before), 2),
        errors=dict(Counter(error for answer in answers for error in answer.errors)),
    )


def _p95_s(answers: Sequence[Answer]) -> float:
    return float(np.quantile([answer.latency_s for answer in answers], 0.95))


@dataclass(frozen=True, slots=True)
class Accounts:
    """The requests of a long run, compared with their stored outcomes."""

    accepted: int
    statuses: Mapping[str, int]  # outcomes of accepted requests by status
    lost: int  # accepted, without an outcome
    duplicated: int  # outcomes that were stored a second time
    different: int  # texts that a client read and that are not those of the outcome
    unfinished: int  # messages left in the stream of requests

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.duplicated or self.different or self.unfinished)


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

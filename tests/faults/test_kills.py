"""Kills processes of a whole stack under load: each accepted request still ends, with the text it has without kills."""

from collections.abc import Iterator

import httpx
import pytest
from nats.aio.msg import Msg

from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.faults.accounts import received_outcomes
from experiments.faults.load import closed_loop
from experiments.live_cluster import SUBJECTS, held_out_requests, subscribed
from shared.bus.client import last_token
from shared.bus.codec import decode
from shared.bus.users import BusUser
from shared.messages.stats import SchedulerStats
from tests.support.stack import Stack, new_data_dir, running_stack
from tests.support.waiting import reached

REQUESTS = 40
CLIENTS, PROMPTS = 4, 10
LIMIT_S = 60.0
# A fixed threshold: the text of a request is independent of time and instance.
OPTIONS = ("--instances", "2x1", "--policy", "dilaserve", "--thresholds", "0.9", "--cache", "none")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *OPTIONS) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_killed_services_lose_and_repeat_nothing_and_checkpoints_are_resumed(stack: Stack) -> None:
    prompts = [row.prompt for row in held_out_requests()[:PROMPTS]]
    nats_url = read_addresses(stack.data_dir).nats_urls[BusUser.OPERATOR]
    checkpoints, stats = set[str](), list[SchedulerStats]()

    def on_stats(msg: Msg) -> None:
        stats.append(decode(msg.data, SchedulerStats))

    handlers = {
        SUBJECTS.checkpoints("*"): lambda msg: checkpoints.add(last_token(msg.subject)),
        SUBJECTS.stats("scheduler"): on_stats,
    }
    async with (
        received_outcomes(nats_url) as received,
        subscribed(nats_url, handlers),
        httpx.AsyncClient(base_url=stack.url, timeout=LIMIT_S) as http,
        closed_loop(http, prompts, CLIENTS) as answers,
    ):
        for victim in ("predictor", "worker", "scheduler"):
            # at least two requests are between blocks
            await reached(lambda: bool(stats) and len(checkpoints - received.keys()) > 1, LIMIT_S)
            served, before = len(answers), len(stats)
            stack.program(f"services.{victim}").kill()
            await reached(lambda: len(answers) > served + CLIENTS + 10 and works(victim, stats, before), LIMIT_S)  # noqa: B023
    assert [answer.errors for answer in answers] == [[]] * len(answers)
    assert len({(answer.prompt, answer.text) for answer in answers}) == PROMPTS
    outcomes = [received[answer.request_id] for answer in answers]
    assert {len(of_request) for of_request in outcomes} == {1}
    assert any(outcome.decisions and outcome.decisions.first_step for [outcome] in outcomes)


def works(service: str, stats: list[SchedulerStats], before: int) -> bool:
    """Whether a service works again that was killed after the first `before` of the scheduler's stats."""
    last, since = stats[before - 1], stats[before:]
    if not since:
        return False
    match service:
        case "scheduler":
            return since[-1].epoch > last.epoch
        case "predictor":
            failing = [each for each in since if each.predictor_fallbacks > last.predictor_fallbacks]
            return bool(failing) and failing[-1].predictions > failing[0].predictions
        case _:
            old, new = ({each.instance_id for each in of.instances} for of in (last, since[-1]))
            return len(new) == len(old) and new != old

"""The client of `dilaserve bench`, against the gateway."""

import pytest

from dilaserve.load.client import run_load
from dilaserve.load.workload import LoadRequest, RequestLoad
from tests.support.gateway import ONE_CELL, RunningGateway

pytestmark = ONE_CELL


@pytest.mark.parametrize("raw", [False, True])
async def test_a_streamed_reply_has_the_same_figures_and_its_first_text(gateway: RunningGateway, *, raw: bool) -> None:
    load = RequestLoad([LoadRequest(prompt="How many pears?", output_tokens=32, raw=raw)], [0.0], 1.0)
    [whole] = await run_load(gateway.url, load, 5.0, lambda _: None)
    [streamed] = await run_load(gateway.url, load, 5.0, lambda _: None, stream=True)
    assert (whole.error, streamed.error, whole.first_text_s) == (None, None, None)
    assert (streamed.text, streamed.text_tokens, streamed.steps) == (whole.text, whole.text_tokens, whole.steps)
    assert streamed.text_tokens > 0
    assert streamed.first_text_s is not None
    assert streamed.first_text_s > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_request_has_the_reason(gateway: RunningGateway, *, stream: bool) -> None:
    load = RequestLoad([LoadRequest(prompt="", output_tokens=32)], [0.0], 1.0)
    [reply] = await run_load(gateway.url, load, 5.0, lambda _: None, stream=stream)
    assert reply.error is not None
    assert reply.error.startswith("400 ")

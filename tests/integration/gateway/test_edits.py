"""Streams of a model whose tokens may change: no text that was sent changes, and the canvas shows the edits."""

from pathlib import Path
from typing import Any

import pytest

from shared.text import TextModel
from tests.support.gateway import ONE_CELL, RunningGateway
from tests.support.scheduler import ANSWER, AnsweringScheduler
from tests.support.tiny_model import write_tiny_llada2

pytestmark = ONE_CELL

MODEL = "tiny-LLaDA2.1"
BODY: dict[str, Any] = {"model": MODEL, "prompt": "How many pears?", "max_tokens": 32}


@pytest.fixture(scope="module")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llada2(tmp_path_factory.mktemp("models") / MODEL)


@pytest.fixture(scope="module")
def text(tiny_model_dir: Path) -> TextModel:
    """Its own, since that of the other tests is kept for the whole session."""
    return TextModel(tiny_model_dir, MODEL)


@pytest.fixture(autouse=True)
def drafts(gateway: RunningGateway, scheduler: AnsweringScheduler) -> None:
    scheduler.drafts = True


async def streamed(gateway: RunningGateway, **fields: Any) -> list[dict[str, Any]]:
    return await gateway.events("/v1/completions", BODY | fields)


def canvas_of(event: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The cells of a canvas event; None for another event."""
    return event["cells"] if event["object"] == "dilaserve.canvas" else None


async def test_text_is_sent_when_it_is_final(gateway: RunningGateway) -> None:
    events = await streamed(gateway, canvas=True)
    final = max(i for i, event in enumerate(events) if canvas_of(event) is not None)
    texts = [event["choices"][0]["text"] if canvas_of(event) is None else "" for event in events]
    assert "".join(texts[:final]) == ""
    assert "".join(texts) == ANSWER


async def test_the_canvas_shows_drafts_and_what_replaces_them(gateway: RunningGateway) -> None:
    *steps, last = [cells for event in await streamed(gateway, canvas=True) if (cells := canvas_of(event)) is not None]
    drafts = [cell for cells in steps for cell in cells if cell.get("draft")]
    assert len(drafts) == len(last) == len({cell["position"] for cell in last})
    assert not any(cell["committed"] or "replaces" in cell for cell in drafts)
    assert all(cell["committed"] and "draft" not in cell for cell in last)
    before = {cell["position"]: cell["text"] for cell in drafts}
    assert [cell["replaces"] for cell in last] == [before[cell["position"]] for cell in last]


async def test_streamed_log_probabilities_are_those_of_the_final_tokens(gateway: RunningGateway) -> None:
    whole = (await gateway.http.post("/v1/completions", json=BODY | {"logprobs": 2})).json()["choices"][0]["logprobs"]
    parts = [event["choices"][0]["logprobs"] for event in await streamed(gateway, logprobs=2)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in parts if part for value in part[name]] == whole[name]


async def test_the_edit_threshold_reaches_the_scheduler(gateway: RunningGateway) -> None:
    for given in (None, 0.4, 1.0):
        await gateway.http.post("/v1/completions", json=BODY | {"edit_threshold": given})
        assert gateway.scheduler.requests[-1].edit_threshold == given


@pytest.mark.parametrize("form", [{"guided_regex": "[0-9]+"}, {"guided_choice": ["a", "b"]}, {"template": "a<mask:8>"}])
async def test_a_text_with_a_form_refuses_edits_by_name(form: dict[str, Any], gateway: RunningGateway) -> None:
    body = {name: value for name, value in BODY.items() if name != "max_tokens" or "template" not in form}
    reply = await gateway.http.post("/v1/completions", json=body | form | {"edit_threshold": 0.5})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "edit_threshold"
    assert "cannot change in a text with a form" in reply.json()["error"]["message"]
    reply = await gateway.http.post("/v1/completions", json=body | form | {"edit_threshold": 1})
    assert reply.status_code == 200, reply.text

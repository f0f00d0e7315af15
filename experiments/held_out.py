"""The demo models' held-out problems."""

from pathlib import Path

from dilaserve.load.workload import LoadRequest, read_requests
from shared.messages.requests import ChatMessage
from shared.text import TextModel


def held_out(model: Path) -> list[LoadRequest]:
    """The problems of a demo model's directory, each with its answer."""
    return read_requests(model / "heldout.jsonl")


def read_prompts(model: Path, count: int) -> list[list[int]]:
    """The first held-out problems, tokenized with the chat template."""
    text = TextModel(model, model.name)
    return [
        text.encode_chat([ChatMessage(role="user", content=row.prompt)]).tolist() for row in held_out(model)[:count]
    ]

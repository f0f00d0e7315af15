"""The demo models' held-out problems, and the length of a decoded text."""

from collections.abc import Sequence
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


def text_length(output: Sequence[int], eos_id: int) -> int:
    """The tokens before the first EOS."""
    return output.index(eos_id) if eos_id in output else len(output)

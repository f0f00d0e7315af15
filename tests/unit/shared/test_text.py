"""The tokenizer of the tiny model."""

from pathlib import Path

import numpy as np
import pytest

from shared.errors import BadInput
from shared.messages.requests import ChatMessage, FinishReason
from shared.text import TextModel, round_up_to_blocks


@pytest.fixture(scope="module")
def text(tiny_model_dir: Path) -> TextModel:
    return TextModel(tiny_model_dir, "tiny-llada")


def test_any_text_round_trips_through_the_tokenizer(text: TextModel) -> None:
    prompt = "Wie viele Äpfel? 苹果 🍎\n  two  spaces"
    assert text.decode(text.encode_prompt(prompt)) == prompt


def test_a_chat_is_encoded_with_the_chat_template(text: TextModel) -> None:
    ids = text.encode_chat([ChatMessage(role="user", content="hi")])
    assert text.decode(ids) == "user: hi\nassistant: "


def test_an_empty_prompt_is_rejected_with_its_field(text: TextModel) -> None:
    with pytest.raises(BadInput) as refused:
        text.encode_prompt("")
    assert refused.value.field == "prompt"


def test_a_long_text_has_the_same_tokens_as_its_parts(text: TextModel) -> None:
    assert text.encode_prompt("pear " * 1_000).tolist() == text.encode_prompt("pear ").tolist() * 1_000


def test_a_far_too_long_text_is_rejected_untokenized(text: TextModel) -> None:
    with pytest.raises(BadInput, match="at most 512 tokens") as refused:
        text.encode_chat([ChatMessage(role="user", content="x" * 4_000_000)])
    assert refused.value.field == "messages"


def test_text_ends_at_the_end_of_text_token(text: TextModel) -> None:
    ids = np.array([*text.encode_prompt("yes"), text.card.eos_token_id, *text.encode_prompt("no")], dtype=np.int32)
    finished = text.finish(ids, stop=[])
    assert (finished.text, finished.finish_reason, finished.completion_tokens) == ("yes", FinishReason.STOP, 3)


def test_text_ends_before_a_stop_string(text: TextModel) -> None:
    finished = text.finish(text.encode_prompt("one. two."), stop=["."])
    assert (finished.text, finished.finish_reason) == ("one", FinishReason.STOP)


@pytest.mark.parametrize(("requested", "rounded"), [(1, 32), (32, 32), (33, 64)])
def test_an_output_length_is_rounded_up_to_whole_blocks(requested: int, rounded: int) -> None:
    assert round_up_to_blocks(requested, 32) == rounded


@pytest.mark.parametrize(
    ("max_tokens", "kept", "reason"),
    [(None, "one. two.", "stop"), (3, "one", "length"), (9, "one. two.", "length"), (10, "one. two.", "stop")],
)
def test_a_text_is_cut_at_its_limit(text: TextModel, max_tokens: int | None, kept: str, reason: str) -> None:
    ids = np.append(text.encode_prompt("one. two."), text.card.eos_token_id)
    finished = text.finish(ids, [], max_tokens)
    assert (finished.text, finished.finish_reason, finished.completion_tokens) == (kept, reason, len(kept))
    assert text.finish(ids, ["."], 5).finish_reason == "stop"

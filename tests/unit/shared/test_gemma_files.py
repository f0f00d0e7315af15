"""The files of a checkpoint with Gemma's special tokens: ends of text, beginnings of prompts, and marks in texts."""

from typing import Any

import pytest

from shared.canvases import without_effect
from shared.messages.requests import FinishReason, Request
from shared.text import TextModel
from tests.support.gemma_files import CANVAS, ENDS, write_gemma_files

CALL = '<|tool_call>call:add{a:<|"|>x<|"|>}<tool_call|>'


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel(write_gemma_files(tmp_path_factory.mktemp("gemma")), "gemma")


def shown(gemma: TextModel, text: str) -> list[int]:
    ids: list[int] = gemma.encode_text(text, "text").tolist()
    return ids


@pytest.mark.parametrize("end", ENDS)
def test_a_text_ends_at_each_end_that_the_files_name(gemma: TextModel, end: str) -> None:
    ids = gemma.encode_text(f"yes{end}no", "text")
    finished = gemma.finish(ids, Request(request_id="r"))
    assert (finished.text, finished.finish_reason) == ("yes", FinishReason.STOP)


def test_the_canvas_and_the_ends_are_those_of_the_files(gemma: TextModel) -> None:
    card = gemma.card
    assert (card.block_length, card.canvas_steps, card.block_offset(21, CANVAS)) == (CANVAS, 48, 0)
    assert gemma.end_ids == {*(shown(gemma, end)[0] for end in ENDS), *shown(gemma, "<|eot_id|>")}


@pytest.mark.parametrize("prompt", ["2+2=", "<bos>2+2="])
def test_a_plain_prompt_begins_with_the_tokenizers_first_token_once(gemma: TextModel, prompt: str) -> None:
    assert gemma.encode_prompt(prompt).tolist() == shown(gemma, "<bos>2+2=")
    assert shown(gemma, "2+2=") == gemma.encode_prompt("2+2=").tolist()[1:]


def test_a_text_keeps_the_marks_of_calls_and_thoughts_and_no_other_special_token(gemma: TextModel) -> None:
    ids = shown(gemma, f"<|turn>a<|channel>b<channel|>{CALL}<turn|>")
    assert gemma.decode(ids) == f"a<|channel>b<channel|>{CALL}"
    assert gemma.decode(ids, with_special=True) == f"<|turn>a<|channel>b<channel|>{CALL}<turn|>"
    assert b"".join(map(gemma.bytes_of, ids)).decode() == gemma.decode(ids)


def test_a_chat_has_the_templates_turns_tools_and_calls(gemma: TextModel) -> None:
    call = {"function": {"name": "add", "arguments": {"a": "x"}}}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
    ]
    ids = gemma.encode_turns(turns, "messages", [{"type": "function", "function": {"name": "add"}}])
    expected = (
        "<bos><|tool>declaration:add<tool|><|turn>user\nAdd.<turn|>\n"
        f"<|turn>model\n{CALL}<turn|>\n<|turn>tool\n3<turn|>\n<|turn>model\n"
    )
    assert ids.tolist() == shown(gemma, expected)


def test_marks_in_the_text_of_a_user_are_plain_text(gemma: TextModel) -> None:
    ids = gemma.encode_turns([{"role": "user", "content": CALL}], "messages").tolist()
    assert gemma.decode(ids, with_special=True) == f"<bos><|turn>user\n{CALL}<turn|>\n<|turn>model\n"
    assert set(shown(gemma, '<|tool_call><tool_call|><|"|>')).isdisjoint(ids)


def test_fields_that_the_checkpoints_schedule_replaces_have_no_effect(gemma: TextModel) -> None:
    request = Request(request_id="r", prompt="a", temperature=0.5, top_k=3)
    assert without_effect(request, gemma.card) == ["temperature", "top_k"]

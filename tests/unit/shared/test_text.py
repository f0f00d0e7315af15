"""The tokenizer of the tiny model, and that of a checkpoint with Gemma's special tokens."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.canvases import without_effect
from shared.errors import BadInput
from shared.messages.requests import ChatMessage, FinishReason, Request
from shared.text import MAX_LABEL_TOKENS, TextModel
from tests.support.gemma_files import CANVAS, ENDS, write_gemma_files


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


def test_text_ends_before_a_stop_string(text: TextModel) -> None:
    finished = text.finish(text.encode_prompt("one. two."), Request(request_id="r", stop=["x", "."]))
    assert (finished.text, finished.finish_reason, finished.stop_reason) == ("one", FinishReason.STOP, ".")


@pytest.mark.parametrize(
    ("words", "stop", "tokens"),
    [("one. two.", ["."], 4), ("one. two", ["two", "ne. t"], 6), ("a🍎b🍎c", ["🍎"], 5), ("abc", ["x"], 3)],
)
def test_the_tokens_of_a_text_end_with_its_stop_string(
    text: TextModel, words: str, stop: list[str], tokens: int
) -> None:
    finished = text.finish(text.encode_prompt(words), Request(request_id="r", stop=stop))
    assert finished.written.tolist() == list(range(tokens))


@pytest.mark.parametrize(
    ("fields", "kept", "finish_reason", "reason"),
    [
        ({}, "ab", "stop", None),
        ({"ignore_eos": True}, "abcd", "length", None),
        ({"stop_token_ids": "b"}, "a", "stop", "b"),
        ({"stop_token_ids": "dc"}, "ab", "stop", None),
        ({"stop_token_ids": "dc", "ignore_eos": True}, "ab", "stop", "c"),
        ({"stop_token_ids": "d", "ignore_eos": True, "max_tokens": 4}, "abc", "length", None),
    ],
)
def test_the_request_decides_on_the_tokens_that_end_its_text(
    text: TextModel, fields: dict[str, Any], kept: str, finish_reason: str, reason: str | None
) -> None:
    ids = {letter: int(text.encode_prompt(letter)[0]) for letter in "abcd"}
    output = np.array([ids["a"], ids["b"], text.card.eos_token_id, ids["c"], ids["d"]], dtype=np.int32)
    stops = {"stop_token_ids": [ids[letter] for letter in fields.get("stop_token_ids", "")]}
    request = Request(request_id="r", **fields | stops)
    finished = text.finish(output, request)
    assert (finished.text, finished.finish_reason) == (kept, finish_reason)
    assert finished.stop_reason == (ids[reason] if reason else None)
    assert text.ended(output[: request.max_tokens], request) == (finish_reason == "stop")


LETTERS = "aé€🍎"  # of one to four bytes, each of which is a token
WHOLE, PARTS, WITHOUT_TEXT = [(0, 1), (1, 3), (3, 6), (6, 10)], [(1, 2), (4, 6), (6, 7), (7, 10)], [(10, 11), (11, 12)]


@given(
    slices=st.lists(st.sampled_from(WHOLE + PARTS + WITHOUT_TEXT), max_size=20),
    stop=st.lists(st.text(LETTERS + "\ufffd", min_size=1, max_size=4), min_size=1, max_size=2),
    block=st.integers(1, 5),
)
@example(slices=[(6, 10), (6, 7), (7, 10), (0, 1), (0, 1)], stop=["🍎🍎"], block=5)  # two checks divide it
@example(slices=[(3, 6)] * 4, stop=["\ufffd"], block=3)  # recent tokens begin within a character
@example(slices=[(0, 1), *[(10, 11)] * 6, (0, 1)], stop=["aa"], block=1)  # special tokens in between
def test_a_check_of_each_block_finds_the_same_end_as_one_of_the_whole_text(
    text: TextModel, slices: list[tuple[int, int]], stop: list[str], block: int
) -> None:
    tokens = np.append(text.encode_prompt(LETTERS), [text.card.eos_token_id, text.card.vocab_size])
    output = np.array([token for begin, end in slices for token in tokens[begin:end]], dtype=np.int32)
    request = Request(request_id="r", stop=stop, ignore_eos=True)
    for end in range(block, len(output) + 1, block):
        ended = text.ended(output[:end], request)
        assert text.ended(output[:end], request, checked=end - block) == ended
        if ended:
            break


@pytest.mark.parametrize("eos_first", [False, True])
def test_an_end_of_text_token_is_no_stop_reason(text: TextModel, eos_first: bool) -> None:
    eos = text.card.eos_token_id
    request = Request(request_id="r", stop_token_ids=[eos], ignore_eos=not eos_first)
    finished = text.finish(np.append(text.encode_prompt("ab"), eos), request)
    assert finished.stop_reason == (None if eos_first else eos)


@pytest.mark.parametrize(
    ("max_tokens", "kept", "reason"),
    [(None, "one. two.", "stop"), (3, "one", "length"), (9, "one. two.", "length"), (10, "one. two.", "stop")],
)
def test_a_text_is_cut_at_its_limit(text: TextModel, max_tokens: int | None, kept: str, reason: str) -> None:
    ids = np.append(text.encode_prompt("one. two."), text.card.eos_token_id)
    finished = text.finish(ids, Request(request_id="r", max_tokens=max_tokens))
    assert (finished.text, finished.finish_reason, finished.completion_tokens) == (kept, reason, len(kept))
    assert text.finish(ids, Request(request_id="r", stop=["."], max_tokens=5)).finish_reason == "stop"


def test_labels_with_more_tokens_than_a_message_holds_are_refused(text: TextModel) -> None:
    request = Request(request_id="r", prompt="hi", choices=["a", "b"])
    labels = [np.zeros(length, dtype=np.int32) for length in (MAX_LABEL_TOKENS, 1)]
    with pytest.raises(BadInput, match=f"together; accepted: {MAX_LABEL_TOKENS}"):
        text.check_choices(request, labels, 1 << 30)


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

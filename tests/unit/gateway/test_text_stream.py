"""The streamed text of an output, and the replies of messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.gateway.api.anthropic_messages.replies import MessageReplies
from services.gateway.api.text_stream import TextStream
from services.gateway.api.token_logprobs import TokenLogprobs, logprobs_of
from services.gateway.api.tool_calls.call_syntax import JsonCalls, TaggedCalls
from services.gateway.api.tool_calls.use import ToolUse, UsableTool
from services.gateway.errors import ApiError
from shared.arrays import pack_float32, pack_int32
from shared.messages.requests import FinishReason, Outcome, OutcomeStatus, Request
from shared.text import TextModel
from shared.token_bytes import other_bytes
from shared.top_tokens import TopTokenTable
from tests.builders import serving_stats

BLOCK_LENGTH = 8
OUTPUT_TOKENS = 24


def stream_of(text: TextModel, stop: list[str] | None = None) -> TextStream:
    return TextStream(text, Request(request_id="a", output_tokens=OUTPUT_TOKENS, stop=stop or []))


def add(stream: TextStream, positions: list[int], tokens: list[int]) -> str:
    return stream.add(np.array(positions, dtype=np.int32), np.array(tokens, dtype=np.int32))


def ids(text: TextModel, words: str) -> list[int]:
    return [int(token) for token in text.encode_prompt(words)]


@pytest.mark.parametrize(
    ("words", "steps", "pieces"),
    [
        ("abc", [[1, 2], [0]], ["", "abc"]),  # a mask is before them
        ("🍎", [[0], [1, 2, 3]], ["", "🍎"]),  # a character has several tokens
        ("a ENT", [[0, 1, 2], [3], [4]], ["a ", "", "ENT"]),  # a stop string may begin
        ("every token at once", [[i] for i in range(19)], list("every token at once")),
    ],
)
def test_text_is_sent_as_soon_as_it_is_final(
    text: TextModel, words: str, steps: list[list[int]], pieces: list[str]
) -> None:
    stream, tokens = stream_of(text, ["END"]), ids(text, words)
    assert [add(stream, positions, [tokens[at] for at in positions]) for positions in steps] == pieces


def test_the_tokens_read_end_with_the_stop_string(text: TextModel) -> None:
    stream = stream_of(text, ["END"])
    add(stream, list(range(7)), [*ids(text, "aENDb"), text.card.eos_token_id, *ids(text, "c")])
    assert stream.tokens_read == 4
    assert stream.tokens_from(0) == ids(text, "aEND")


def test_a_position_keeps_its_first_token(text: TextModel) -> None:
    stream = stream_of(text)
    a, b = ids(text, "ab")
    assert add(stream, [0], [a]) == "a"
    assert add(stream, [0, 1], [b, b]) == "b"


def test_an_outcome_that_contradicts_the_sent_text_is_reported(text: TextModel) -> None:
    stream = stream_of(text)
    add(stream, [0], ids(text, "a"))
    with pytest.raises(ApiError, match="fetch it at /v1/requests/r"):
        stream.finish(outcome(text, "b", "b"))


@settings(max_examples=50)
@given(data=st.data())
def test_the_pieces_join_to_the_text_of_the_outcome(text: TextModel, data: st.DataObject) -> None:
    token = st.integers(0, text.card.vocab_size - 1).filter(lambda token: token != text.card.mask_token_id)
    likely = st.sampled_from([*ids(text, "abéÄ🍎 "), text.card.eos_token_id])
    output = data.draw(st.lists(likely | token, min_size=OUTPUT_TOKENS, max_size=OUTPUT_TOKENS))
    stop = data.draw(st.lists(st.text("abéÄ🍎 \ufffd", min_size=1, max_size=4), max_size=4))
    stream, pieces = stream_of(text, stop), []
    for start in range(0, OUTPUT_TOKENS, BLOCK_LENGTH):
        left = data.draw(st.permutations(range(start, start + BLOCK_LENGTH)))
        while left:
            size = data.draw(st.integers(1, len(left)))
            if data.draw(st.integers(0, 9)):  # else the message is lost
                pieces.append(add(stream, list(left[:size]), [output[i] for i in left[:size]]))
            left = left[size:]
    final = text.finish(np.array(output, dtype=np.int32), Request(request_id="r", stop=stop)).text
    assert final.startswith("".join(pieces))
    assert "".join(pieces) + stream.finish(outcome(text, final, final)) == final


def outcome(text: TextModel, words: str, kept: str, stop: str | None = None) -> Outcome:
    """The outcome of a text that was cut to `kept`; the i-th token has the confidence 1 / (i + 1)."""
    ids = text.encode_prompt(words)
    return Outcome(
        request_id="r",
        status=OutcomeStatus.COMPLETED,
        text=kept,
        finish_reason=FinishReason.STOP,
        stop_reason=stop,
        completion_tokens=len(ids),
        token_ids=pack_int32(ids),
        confidences=pack_float32(1 / np.arange(1, len(ids) + 1)),
    )


@given(words=st.text("aÄ苹🍎 .", min_size=1), cut=st.integers(0, 100))
def test_the_tokens_join_to_the_text_however_they_arrive(text: TextModel, words: str, cut: int) -> None:
    ids, found = text.encode_prompt(words), TokenLogprobs(text)
    found.add(ids[:cut].tolist(), np.ones(len(ids[:cut]), dtype=np.float32))
    tokens = found.take(cut // 2) + found.take(cut)
    tokens += found.finish(outcome(text, words, words))
    assert "".join(token.text for token in tokens) == words
    assert len(tokens) == len(ids)
    assert all(words.startswith(token.text, token.offset) for token in tokens)
    assert b"".join(token.own_bytes for token in tokens) == words.encode()


def test_a_logarithm_is_finite_and_at_most_zero() -> None:
    logs = logprobs_of(np.array([0, 1e-45, 0.5, 1, 1.0000001], dtype=np.float32))
    assert logs == pytest.approx([np.log(np.finfo(np.float32).tiny)] * 2 + [np.log(0.5), 0, 0])


def test_tokens_that_the_form_of_the_text_forbids_are_no_alternatives(text: TextModel) -> None:
    first, second, third = text.encode_prompt("abc").tolist()
    top = TopTokenTable.unknown(1, 3)
    top.tokens[0], top.confidences[0] = [first, second, third], [0.75, 0.25, 0.0]
    found = TokenLogprobs(text, 3)
    found.add([first], np.array([0.75], dtype=np.float32), top)
    [token] = found.take(1)
    assert [each.text for each in token.alternatives] == ["a", "b"]
    assert [each.logprob for each in token.alternatives] == pytest.approx(np.log([0.75, 0.25]))


def test_a_part_of_a_character_has_its_own_bytes(text: TextModel) -> None:
    parts, end = text.encode_prompt("🍎").tolist(), text.card.eos_token_id
    top = TopTokenTable.unknown(4, 2)
    top.tokens[:], top.confidences[:] = [[part, end] for part in parts], [0.75, 0.25]
    found = TokenLogprobs(text, 2)
    found.add(parts, np.ones(4, dtype=np.float32), top)
    tokens = found.take(1)
    assert [list(token.own_bytes) for token in tokens] == [[byte] for byte in "🍎".encode()]
    assert [[list(each.own_bytes) for each in token.alternatives] for token in tokens] == [
        [[byte], []] for byte in "🍎".encode()
    ]


def test_a_byte_of_a_vocabulary_of_pieces_is_itself() -> None:
    assert [other_bytes(piece) for piece in ("<0xF0>", "\u2581the", "<0xF>")] == [b"\xf0", b" the", b"<0xF>"]


@pytest.mark.parametrize(
    "damaged",
    [
        {"confidences": b""},
        {"token_ids": b"abc"},
        {"confidences": pack_float32([np.nan, 1])},
        {"token_ids": b"", "confidences": b""},
    ],
)
def test_an_outcome_without_valid_values_is_an_error_of_the_server(text: TextModel, damaged: dict[str, bytes]) -> None:
    good = outcome(text, "ab", "ab")
    fields = {name: getattr(good, name) for name in good.__struct_fields__}
    with pytest.raises(ApiError, match="/v1/requests/r") as error:
        TokenLogprobs(text).finish(Outcome(**fields | damaged))
    assert error.value.status == 500


STATS = serving_stats(latency_s=1.0, step_s=1.0, cached_tokens=64)
OUTCOME = Outcome(
    request_id="r", status=OutcomeStatus.COMPLETED, text="5", finish_reason=FinishReason.STOP, prompt_tokens=70,
    completion_tokens=1, stats=STATS,
)  # fmt: skip
TOOLS = ToolUse(TaggedCalls(), [UsableTool("tools[0]", "add", None, None, None)])


def test_cached_tokens_of_the_prompt_are_not_input_tokens() -> None:
    replies = MessageReplies("demo", "r", ToolUse(JsonCalls()))
    expected = {"input_tokens": 6, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 64}
    assert replies.whole([OUTCOME])["usage"] == expected
    [ending] = [each for each in replies.ending(0, OUTCOME) if each["type"] == "message_delta"]
    assert ending["usage"] == expected


def test_the_rest_of_a_call_stays_in_its_block_if_text_follows() -> None:
    replies = MessageReplies("demo", "r", TOOLS)
    replies.text(0, '<tool_call>{"name": "add", "arguments": {"a": ', (70, 10))
    events = replies.text(0, "1}}</tool_call>Done.", (70, 16))
    deltas = [(event["index"], event["delta"]["type"]) for event in events if event["type"] == "content_block_delta"]
    assert deltas == [(0, "input_json_delta"), (1, "text_delta")]


@pytest.mark.parametrize("size", [1, 1000])
def test_the_blocks_are_in_the_order_of_the_text_whole_and_streamed(size: int) -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    text = f"First {call}then {call}and done."
    outcome = replace(OUTCOME, text=text)
    kinds = ["text", "tool_use", "text", "tool_use", "text"]
    assert [block["type"] for block in MessageReplies("demo", "r", TOOLS).whole([outcome])["content"]] == kinds
    replies = MessageReplies("demo", "r", TOOLS)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events = [event for piece in pieces for event in replies.text(0, piece, (70, 10))] + replies.ending(0, outcome)
    begun = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == kinds

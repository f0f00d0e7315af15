"""The pieces of a streamed text join to the outcome's text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.api.text_stream import TextChanged, TextStream
from shared.messages.requests import Request
from shared.text import TextModel

BLOCK_LENGTH = 8
OUTPUT_TOKENS = 24


def stream_of(text: TextModel, stop: list[str] | None = None) -> TextStream:
    return TextStream(text.decode, text.end_ids, stop or [], OUTPUT_TOKENS)


def add(stream: TextStream, positions: list[int], tokens: list[int]) -> str:
    return stream.add(np.array(positions, dtype=np.int32), np.array(tokens, dtype=np.int32))


def ids(text: TextModel, words: str) -> list[int]:
    return [int(token) for token in text.encode_prompt(words)]


def test_no_text_is_sent_beyond_the_first_mask(text: TextModel) -> None:
    stream = stream_of(text)
    a, b, c = ids(text, "abc")
    assert add(stream, [1, 2], [b, c]) == ""
    assert add(stream, [0], [a]) == "abc"


def test_a_character_waits_for_all_its_tokens(text: TextModel) -> None:
    stream = stream_of(text)
    first, *others = ids(text, "🍎")
    assert add(stream, [0], [first]) == ""
    assert add(stream, [1, 2, 3], others) == "🍎"


def test_a_possible_start_of_a_stop_string_is_withheld(text: TextModel) -> None:
    stream = stream_of(text, ["END"])
    assert add(stream, [0, 1, 2], ids(text, "a E")) == "a "
    assert add(stream, [3], ids(text, "N")) == ""
    assert add(stream, [4], ids(text, "T")) == "ENT"


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
    with pytest.raises(TextChanged):
        stream.finish("b")


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
    assert "".join(pieces) + stream.finish(final) == final


def test_text_is_sent_as_soon_as_it_is_final(text: TextModel) -> None:
    stream = stream_of(text, ["zz"])
    words = "every token at once"
    assert [add(stream, [i], [token]) for i, token in enumerate(ids(text, words))] == list(words)

"""The outputs of all requests in one array."""

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.state.output_buffer import MASKED, OutputBuffer


@given(turns=st.lists(st.tuples(st.integers(1, 8192), st.booleans()), max_size=60))
def test_each_output_has_its_own_part_all_masked_at_first(turns: list[tuple[int, bool]]) -> None:
    buffer, used = OutputBuffer(), list[tuple[int, int, int]]()  # start, length, the token written
    for number, (length, ends) in enumerate(turns):
        start = buffer.take(length)
        assert (buffer.tokens[start : start + length] == MASKED).all()
        buffer.tokens[start : start + length] = number
        used.append((start, length, number))
        if ends:
            ended = used.pop(number // 2 % len(used))
            buffer.give_back(*ended[:2])
        assert all((buffer.tokens[start : start + length] == token).all() for start, length, token in used)


def test_one_long_output_does_not_widen_the_others() -> None:
    buffer = OutputBuffer()
    for _ in range(32_768):
        buffer.take(128)
    buffer.take(4096)
    assert buffer.tokens.nbytes <= 2 * (32_768 * 128 + 4096) * 4


def test_ended_outputs_make_room_for_later_ones() -> None:
    buffer = OutputBuffer()
    for length in (100, 128, 4000, 4096) * 1000:
        buffer.give_back(buffer.take(length), length)
    assert buffer.tokens.nbytes == OutputBuffer().tokens.nbytes

"""The table of the most probable tokens of an output."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.arrays import pack_float32, pack_int32, unpack_int32
from shared.messages.requests import TopTokens
from shared.top_tokens import TopTokenTable

LENGTH, K, VOCAB = 10, 3, 50


def message(positions: list[int]) -> TopTokens:
    """The i-th token of position p is 3 p + i."""
    tokens = np.array([[3 * p + i for i in range(K)] for p in positions])
    return TopTokens(positions=pack_int32(positions), tokens=pack_int32(tokens), confidences=pack_float32(tokens / 64))


@given(st.lists(st.integers(0, LENGTH - 1), unique=True), st.integers(0, LENGTH))
def test_values_are_read_in_the_order_of_positions(order: list[int], cut: int) -> None:
    table = TopTokenTable.unknown(LENGTH, K)
    for part in (order[:cut], order[cut:]):
        table.write(message(part), VOCAB)
    assert table.read(np.arange(LENGTH)) == message(sorted(order))


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        ({"positions": pack_int32([LENGTH])}, "position"),
        ({"positions": pack_int32([-1])}, "position"),
        ({"positions": b"abc"}, "buffer size"),
        ({"tokens": pack_int32([1, 2])}, "2 tokens"),
        ({"tokens": pack_int32([1, 2, VOCAB])}, "token is outside"),
        ({"tokens": pack_int32([1, 2, -1])}, "token is outside"),
        ({"confidences": pack_float32([0.5, 0.25, np.nan])}, "not finite"),
    ],
)
def test_a_damaged_message_changes_nothing(damaged: dict[str, bytes], reason: str) -> None:
    table = TopTokenTable.unknown(LENGTH, K)
    with pytest.raises(ValueError, match=reason):
        table.write(msgspec.structs.replace(message([4]), **damaged), VOCAB)
    assert len(unpack_int32(table.read(np.arange(LENGTH)).positions)) == 0

"""Damaged messages are refused by the code behind each entry point; `python -m experiments.fuzz` runs for longer."""

import random
from pathlib import Path

import pytest

from experiments.fuzz.mutations import mutated_message
from experiments.fuzz.receivers import RECEIVERS, Receiver
from experiments.fuzz.samples import SAMPLES, plain
from shared.bus.codec import encode
from shared.errors import BadInput

INPUTS = 150
STORED = Path(__file__).parents[2] / "contract" / "samples"


@pytest.mark.parametrize("receiver", RECEIVERS, ids=lambda receiver: receiver.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_damaged_message_is_refused_or_read_without_another_error(receiver: Receiver) -> None:
    rng = random.Random(receiver.name)
    content = plain(SAMPLES[receiver.kind])
    receiver.receive(encode(SAMPLES[receiver.kind]))
    refused = 0
    for _ in range(INPUTS):
        try:
            receiver.receive(mutated_message(content, rng))
        except BadInput:
            refused += 1
    assert 0 < refused < INPUTS


def test_every_type_of_message_is_fuzzed() -> None:
    assert {kind.__name__ for kind in SAMPLES} == {path.stem for path in STORED.glob("*.msgpack")}
